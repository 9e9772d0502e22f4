package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coatcheck/coatcheck/protocol"
)

// TestStatusLines: what polls and progress say is joined; what says nothing new is not shown.
func TestStatusLines(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := newStatus(newDisplay(f))
	progress := func(token, rest string) {
		s.notified(protocol.MethodProgress, json.RawMessage(`{"progressToken":"`+token+`",`+rest+`}`))
	}
	s.polled(protocol.Task{Status: "working", StatusMessage: "started"})
	s.polled(protocol.Task{Status: "working", StatusMessage: "started"})
	progress(progressToken, `"progress":1,"total":3,"message":"one"`)
	progress("another", `"progress":2,"total":3,"message":"not ours"`)
	s.notified(protocol.MethodLogMessage, json.RawMessage(`{"level":"info","logger":"db\u001b[2J","data":{"rows": 3}}`))
	s.notified(protocol.MethodLogMessage, json.RawMessage(`{"level":"warning","data":"disk\nfull"}`))
	s.polled(protocol.Task{Status: "working", StatusMessage: "started"})
	progress(progressToken, `"progress":5`)
	s.polled(protocol.Task{Status: "completed", StatusMessage: "done\n\x1b[31m at last"})
	got, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	want := "working: started\nworking 33%: one\n[info db [2J] {\"rows\":3}\n[warning] disk full\nworking 5: one\ncompleted: done [31m at last\n"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestResultText(t *testing.T) {
	for raw, want := range map[string]string{
		`{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`:                 "a\nb",
		`{"content":[],"structuredContent":{"a": 1.0}}`:                                       `{"a": 1.0}`,
		`{"content":[{"type":"image","data":"AAAA","mimeType":"image/png"}]}`:                 "[image image/png, 4 bytes of base64; --json shows it]",
		`{"content":[{"type":"resource_link","uri":"file:///x"}]}`:                            "[resource file:///x]",
		`{"content":[{"type":"resource","resource":{"uri":"x","text":"inside"}}]}`:            "inside",
		`{"content":[{"type":"resource","resource":{"uri":"x","mimeType":"m","blob":"AA"}}]}`: "[resource x m, 2 bytes of base64; --json shows it]",
		`{"content":[{"type":"hologram"}]}`:                                                   "[hologram; --json shows it]",
		`{"other": true}`:                                                                     `{"other": true}`,
		`{"content":"odd"}`:                                                                   `{"content":"odd"}`,
	} {
		if got := resultText(json.RawMessage(raw)); got != want {
			t.Errorf("%s: %q, want %q", raw, got, want)
		}
	}
	if got, want := harmless("a\tb\x1b[2J\nc\u009b"), "a\tb[2J\nc"; got != want {
		t.Errorf("harmless: %q, want %q", got, want)
	}
}
