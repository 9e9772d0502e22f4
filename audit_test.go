package coatcheck_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/protocol"
)

// line is what the tests look at in a line of the audit log.
type line struct {
	Msg, Principal, Address, Session, Method, Tool, Task, Status, Reason string
}

func auditLog(t *testing.T, path string) []line {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var lines []line
	for text := range bytes.Lines(data) {
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		lines = append(lines, l)
	}
	return lines
}

// AUD-1: what happens to a task is recorded: what, by whom, from where; nothing of what is in it,
// and nothing that opens it.
func TestAudit(t *testing.T) {
	for _, f := range faces {
		t.Run(f.name, func(t *testing.T) {
			s := settings{
				Database: "sqlite:" + filepath.Join(t.TempDir(), "tasks.db"), Audit: filepath.Join(t.TempDir(), "audit.jsonl"),
				Capabilities: ableToAll, PushInput: true, Listen: true, Retention: -1,
			}
			p := f.open(t, s)("alice")
			done := p.create(`{"name":"echo","arguments":{"key":"SECRET"},"task":{}}`).TaskID
			p.call("tasks/result", idParams(done))
			failed := p.create(`{"name":"error","arguments":{},"task":{}}`).TaskID
			p.call("tasks/result", idParams(failed))
			asking := p.create(script("ask")).TaskID
			question := p.await(t, 1, method(protocol.MethodElicit))[0]
			if err := p.answer(question, `{"action":"accept","content":{"n":1}}`); err != nil {
				t.Fatal(err)
			}
			p.call("tasks/result", idParams(asking))
			stopped := p.create(gate("x")).TaskID
			p.tool("started", "x")
			p.call("tasks/cancel", idParams(stopped))
			p.call("tasks/cancel", idParams(stopped))
			p.call("tasks/get", idParams("nobody's"))
			gone := p.create(`{"name":"echo","arguments":{},"task":{"ttl":1}}`).TaskID

			want := map[string][]line{
				done: {
					{Msg: "created", Tool: "echo", Status: "working", Method: "tools/call"}, {Msg: "started", Tool: "echo", Status: "working"},
					{Msg: "ended", Tool: "echo", Status: "completed"}, {Msg: "retrieved", Tool: "echo", Status: "completed", Method: "tasks/result"},
				},
				failed: {
					{Msg: "created", Tool: "error", Status: "working", Method: "tools/call"}, {Msg: "started", Tool: "error", Status: "working"},
					{Msg: "ended", Tool: "error", Status: "failed"}, {Msg: "retrieved", Tool: "error", Status: "failed", Method: "tasks/result"},
				},
				asking: {
					{Msg: "created", Tool: "asking", Status: "working", Method: "tools/call"}, {Msg: "started", Tool: "asking", Status: "working"},
					{Msg: "asked", Tool: "asking", Status: "input_required", Reason: "elicitation/create"},
					{Msg: "answered", Tool: "asking", Status: "working", Reason: "elicitation/create"},
					{Msg: "ended", Tool: "asking", Status: "completed"}, {Msg: "retrieved", Tool: "asking", Status: "completed", Method: "tasks/result"},
				},
				stopped: {
					{Msg: "created", Tool: "gate", Status: "working", Method: "tools/call"}, {Msg: "started", Tool: "gate", Status: "working"},
					{Msg: "cancelled", Tool: "gate", Status: "cancelled"}, {Msg: "refused", Method: "tasks/cancel", Reason: "invalid"},
				},
				"nobody's": {{Msg: "refused", Method: "tasks/get", Reason: "not_found"}},
			}
			isGone := func(l line) bool { return l.Msg == "expired" && l.Task == audit.Hash(gone) }
			for deadline := time.Now().Add(30 * time.Second); !slices.ContainsFunc(auditLog(t, s.Audit), isGone); time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("no task expired")
				}
			}
			lines := auditLog(t, s.Audit)
			for id, want := range want {
				var got []line
				for _, l := range lines {
					if l.Task != audit.Hash(id) {
						continue
					}
					if l.Principal != "alice" || p.http != (l.Address == "127.0.0.1") || l.Session == "" {
						t.Errorf("not as it should be: %+v", l)
					}
					l.Principal, l.Address, l.Session, l.Task = "", "", "", ""
					got = append(got, l)
				}
				// The work may begin before its creation is recorded, and end before its outcome is.
				slices.SortStableFunc(got, func(a, b line) int { return slices.IndexFunc(want, a.is) - slices.IndexFunc(want, b.is) })
				if !slices.Equal(got, want) {
					t.Errorf("got  %+v\nwant %+v", got, want)
				}
			}
			data, err := os.ReadFile(s.Audit)
			if err != nil {
				t.Fatal(err)
			}
			for _, secret := range []string{"SECRET", done, asking, `"n"`} {
				if bytes.Contains(data, []byte(secret)) {
					t.Errorf("%s is in the log", secret)
				}
			}
		})
	}
}

func (l line) is(other line) bool { return l.Msg == other.Msg }
