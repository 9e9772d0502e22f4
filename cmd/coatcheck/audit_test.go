package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/task"
)

// recordAll gives an audit log that flags ask for one task and 25 look-ups of tasks that are
// not there. It returns the lines of the file, and what the log was told.
func recordAll(t *testing.T, flags auditFlags) (lines []map[string]any, told string) {
	t.Helper()
	flags.AuditMaxSize, flags.AuditKeep = 1, 1
	if err := flags.checkAudit(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	sink, closer, err := flags.openAudit(slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	sink.Record(t.Context(), audit.Event{
		Kind: audit.Created, Task: "theid", Request: &task.Request{Method: "tools/call", Params: json.RawMessage(`{"a":1}`)},
	})
	for range 25 {
		sink.Record(t.Context(), audit.Event{Kind: audit.Refused, Reason: audit.NotFound, Principal: "mallory", Task: "guess"})
	}
	if err := closer.Close(); err != nil {
		t.Fatal(err)
	}
	if flags.Audit == "" {
		return nil, log.String()
	}
	b, err := os.ReadFile(flags.Audit)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var fields map[string]any
		if err := json.Unmarshal(line, &fields); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fields)
	}
	return lines, log.String()
}

// AUD-1, AUD-2
func TestAuditFlags(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	for _, tc := range []struct {
		flags   auditFlags
		task    any
		content bool
		lines   int
	}{
		{auditFlags{}, nil, false, 0},
		{auditFlags{Audit: path}, audit.Hash("theid"), false, 1 + 25 + 1},
		{auditFlags{Audit: path, AuditTaskIDs: true}, "theid", false, 1 + 25 + 1},
		{auditFlags{Audit: path, AuditContent: true}, audit.Hash("theid"), true, 1 + 25 + 1},
		{auditFlags{Audit: path, AuditThin: true}, audit.Hash("theid"), false, 1 + 20 + 1},
	} {
		lines, told := recordAll(t, tc.flags)
		if strings.Count(told, "\n") != 1 || !strings.Contains(told, "level=WARN msg=suspicious principal=mallory reason=many_misses count=20") {
			t.Errorf("%+v: the log was told %q", tc.flags, told)
		}
		if len(lines) != tc.lines {
			t.Fatalf("%+v: %d lines, want %d", tc.flags, len(lines), tc.lines)
		}
		if tc.lines == 0 {
			continue
		}
		if created := lines[0]; created["task"] != tc.task || (created["request"] != nil) != tc.content {
			t.Errorf("%+v: %v", tc.flags, created)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}
