package audit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/task"
)

// FuzzEvent checks that an event is one line of JSON, whatever is in it, and that no text in it
// is long.
func FuzzEvent(f *testing.F) {
	f.Fuzz(func(t *testing.T, kind, principal, address, session, method, tool, id, trace, reason, limit string, raw []byte, content, ids bool) {
		var b bytes.Buffer
		audit.Log(slog.NewJSONHandler(&b, nil), &audit.LogOptions{Content: content, TaskIDs: ids}).Record(context.Background(), audit.Event{
			Kind: audit.Kind(kind), Principal: task.Principal(principal), Address: address, Session: session, Method: method,
			Tool: tool, Task: id, Trace: trace, Reason: reason, Limit: limit, Status: task.Status(kind),
			Request: &task.Request{Method: method, Params: raw}, Outcome: &task.Outcome{Result: raw, Error: raw},
		})
		text := b.Bytes()
		if bytes.Count(text, []byte("\n")) != 1 || text[len(text)-1] != '\n' {
			t.Fatalf("not one line: %q", text)
		}
		var fields map[string]any
		if err := json.Unmarshal(text, &fields); err != nil {
			t.Fatalf("%v: %q", err, text)
		}
		if (fields["request"] != nil) != content || (fields["outcome"] != nil) != content {
			t.Fatalf("content %v: %q", content, text)
		}
		for key, value := range fields {
			if s, ok := value.(string); ok && len(s) > 256 {
				t.Fatalf("%s has %d bytes", key, len(s))
			}
		}
		if id != "" && !ids && fields["task"] != audit.Hash(id) {
			t.Fatalf("the task is %q", fields["task"])
		}
	})
}
