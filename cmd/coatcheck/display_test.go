package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
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

// onScreen is a display that takes a file for a terminal, and what was written since.
func onScreen(t *testing.T) (*display, func() string) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	d := newDisplay(f)
	d.terminal = true
	seen := 0
	return d, func() string {
		all, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { seen = len(all) }()
		return string(all[seen:])
	}
}

// TestBar: on a terminal progress is a bar with rate and time left, and log lines go above it.
func TestBar(t *testing.T) {
	show, shown := onScreen(t)
	s := newStatus(show)
	now := time.Date(2025, 11, 25, 8, 0, 0, 0, time.UTC)
	s.now = func() time.Time { return now }
	progress := func(rest string) {
		s.notified(protocol.MethodProgress, json.RawMessage(`{"progressToken":"`+progressToken+`",`+rest+`}`))
	}
	want := func(want string) {
		t.Helper()
		if diff := cmp.Diff(want, shown()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	progress(`"progress":50,"total":100,"message":"computing"`)
	want("\r\x1b[Kworking █████░░░░░ 50%: computing")
	now = now.Add(4 * time.Second)
	progress(`"progress":62,"total":100`)
	want("\r\x1b[Kworking ██████░░░░ 62% 3/s 13s left: computing")
	s.notified(protocol.MethodLogMessage, json.RawMessage(`{"level":"info","data":"hello"}`))
	want("\r\x1b[K[info] hello\n\r\x1b[Kworking ██████░░░░ 62% 3/s 13s left: computing")
	progress(`"progress":70`)
	want("\r\x1b[Kworking 70 5/s: computing")
	progress(`"progress":70,"message":"` + strings.Repeat("長", 100) + `"`)
	if got := shown(); !strings.HasSuffix(got, "長…") || ansi.StringWidth(got) > 79 {
		t.Errorf("a long message is shown as %q", got)
	}
	s.polled(protocol.Task{Status: "completed"})
	show.end()
	want("\r\x1b[Kcompleted: " + strings.Repeat("長", 33) + "…\n")
}

// TestHold: while a question is on the screen nothing else is written; then all of it is.
func TestHold(t *testing.T) {
	show, shown := onScreen(t)
	show.status("one", "one")
	show.hold()
	show.say("a question")
	show.status("two", "two")
	show.line("a line")
	if got, want := shown(), "\r\x1b[Kone\na question\n"; got != want {
		t.Errorf("while held: %q, want %q", got, want)
	}
	show.release()
	if got, want := shown(), "a line\n\r\x1b[Ktwo"; got != want {
		t.Errorf("released: %q, want %q", got, want)
	}
	show.hold()
	for i := range maxWaiting + 5 {
		show.line("line %d", i)
	}
	show.end()
	if got := shown(); !strings.HasPrefix(got, "\nline 5\n") || !strings.HasSuffix(got, "line 1004\n") {
		t.Errorf("the lines that waited: %.40q…", got)
	}
}

// PROG-1, REL-1: progress of a task that another command began is its own, whatever its token.
func TestForeignProgress(t *testing.T) {
	show, shown := onScreen(t)
	s := newStatus(show)
	s.of("id", true)
	for _, other := range []string{
		`{"progressToken":"` + progressToken + `","progress":1}`,
		`{"progressToken":7,"progress":2,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"another"}}}`,
	} {
		s.notified(protocol.MethodProgress, json.RawMessage(other))
	}
	s.notified(protocol.MethodLogMessage, json.RawMessage(`{"data":"x","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"another"}}}`))
	if got := shown(); got != "" {
		t.Errorf("another task's progress is shown: %q", got)
	}
	s.notified(protocol.MethodProgress, json.RawMessage(`{"progressToken":7,"progress":3,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"id"}}}`))
	if got, want := shown(), "\r\x1b[Kworking 3"; got != want {
		t.Errorf("shown %q, want %q", got, want)
	}
}

func TestLines(t *testing.T) {
	if diff := cmp.Diff([]string{"one", "[31mtwo", "", "three"}, lines("\none\u202e\n\x1b[31mtwo\n\nthree\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := lines(strings.Repeat("x\n", 100)); len(got) != 41 || got[40] != "…" {
		t.Errorf("%d lines, %q", len(got), got)
	}
	if got := lines(strings.Repeat("é", 1<<20)); len(got) != 1 || len(got[0]) > 10<<10 {
		t.Errorf("%d lines of %d bytes", len(got), len(got[0]))
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
