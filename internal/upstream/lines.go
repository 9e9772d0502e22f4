package upstream

import (
	"bytes"
	"io"
	"log/slog"
	"sync"
)

// maxLine bounds a line of the log, in bytes; a longer one becomes several.
const maxLine = 8 << 10

// LogLines returns a writer, for one process's stderr, that logs what it gets line by line.
// A last line without an end is not logged.
func LogLines(log *slog.Logger) io.Writer { return &lines{log: log} }

type lines struct {
	log *slog.Logger
	mu  sync.Mutex
	buf []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	for {
		i := bytes.IndexByte(l.buf, '\n')
		next := i + 1
		if i < 0 && len(l.buf) < maxLine {
			return len(p), nil
		}
		if i < 0 || i > maxLine {
			i, next = maxLine, maxLine
		}
		if line := bytes.TrimSpace(l.buf[:i]); len(line) > 0 {
			l.log.Info("server stderr", "line", string(line))
		}
		l.buf = append(l.buf[:0], l.buf[next:]...)
	}
}
