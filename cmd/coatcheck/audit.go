package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/coatcheck/coatcheck/audit"
)

// auditFlags are those flags of the gateway that say what is recorded of tasks (AUD-1, AUD-2).
type auditFlags struct {
	Audit        string `placeholder:"FILE" help:"Write who did what to which task to this file, as lines of JSON; - is stderr."`
	AuditMaxSize int64  `default:"100" placeholder:"MIB" help:"When the file of --audit is put aside and a new one begun, in MiB."`
	AuditKeep    int    `default:"10" help:"How many files that were put aside are kept."`
	AuditTaskIDs bool   `name:"audit-task-ids" help:"Write the ids of tasks as they are, not as hashes."`
	AuditContent bool   `help:"Write the requests and outcomes of tasks, too, with all that is secret in them."`
	AuditThin    bool   `help:"Of many refusals of the same kind write the first ones and how many there were, not each."`
}

// checkAudit checks the flags.
func (f *auditFlags) checkAudit() error {
	switch {
	case f.AuditMaxSize < 1 || f.AuditMaxSize > 1<<30:
		return errors.New("--audit-max-size must be at least 1 and at most 1073741824")
	case f.AuditKeep < 1:
		return errors.New("--audit-keep must be at least 1")
	case f.Audit != "":
		return nil
	case f.AuditTaskIDs:
		return errors.New("--audit-task-ids says what is written: add --audit FILE")
	case f.AuditContent:
		return errors.New("--audit-content says what is written: add --audit FILE")
	case f.AuditThin:
		return errors.New("--audit-thin says what is written: add --audit FILE")
	}
	return nil
}

// openAudit returns what takes the events, and is closed at the end. Suspicious patterns go to the
// log, too.
func (f *auditFlags) openAudit(log *slog.Logger) (audit.Sink, io.Closer, error) {
	warn := audit.Log(log.Handler(), nil)
	suspicious := audit.SinkFunc(func(ctx context.Context, ev audit.Event) {
		if ev.Kind == audit.Suspicious {
			warn.Record(ctx, ev)
		}
	})
	if f.Audit == "" {
		return audit.Watch(suspicious, nil), io.NopCloser(nil), nil
	}
	file, err := audit.File(f.Audit, &audit.FileOptions{
		Log:     audit.LogOptions{TaskIDs: f.AuditTaskIDs, Content: f.AuditContent, Logger: log},
		MaxSize: f.AuditMaxSize << 20,
		Keep:    f.AuditKeep,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("cannot open the audit log: %w; choose another file with --audit", err)
	}
	return audit.Watch(audit.Join(file, suspicious), &audit.WatchOptions{Thin: f.AuditThin}), file, nil
}
