package audit

import (
	"context"
	"io"
	"log/slog"
	"os"
	"time"
)

// FileOptions configures File. A nil *FileOptions means all defaults.
type FileOptions struct {
	Log LogOptions // what is written of an event
	// MaxSize is how many bytes a file may have before it is put aside; a line that is longer
	// has a file of its own. Default 100 MiB; negative for no limit.
	MaxSize int64
	// Keep is how many files that were put aside are kept. Default 10; negative for all.
	Keep int
	// MaxAge is how long they are kept since they were put aside. They are looked at when File
	// opens, when another is put aside, and with the first event of each hour. Default:
	// whatever their age.
	MaxAge time.Duration
}

// FileSink writes events to a file.
type FileSink struct {
	log  *logger
	file *rotated // nil for stderr
}

// File returns a Sink that writes each event as a line of JSON (see Log) at the end of a file;
// "-" is stderr. When Record returns, the line is with the operating system: it outlives the
// process, but perhaps no power failure. Events that cannot be written are lost, and Log.Logger
// is told so, once a minute at most.
//
// The file is created with mode 0600. One that is there loses all permissions but the group's to
// read, which the files after it have, too. A full one is renamed: audit.log becomes
// audit-2026-01-31T12-00-00.000000000.log. If the file is renamed or deleted by somebody else,
// by logrotate say, a new one is made within a second. What is no regular file is only
// written to.
func File(path string, opts *FileOptions) (*FileSink, error) {
	var o FileOptions
	if opts != nil {
		o = *opts
	}
	var out io.Writer = os.Stderr
	s := &FileSink{}
	if path != "-" {
		var err error
		if s.file, err = openRotated(path, o); err != nil {
			return nil, err
		}
		out = s.file
	}
	s.log = Log(slog.NewJSONHandler(out, nil), &o.Log).(*logger)
	return s, nil
}

// Record implements Sink.
func (s *FileSink) Record(ctx context.Context, ev Event) { s.log.Record(ctx, ev) }

// Close closes the file. Events after it are lost.
func (s *FileSink) Close() error {
	s.log.faults.flush(time.Time{})
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}
