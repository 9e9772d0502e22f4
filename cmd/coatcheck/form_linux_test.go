package main

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Keys as a terminal sends them.
const (
	enter  = "\r"
	up     = "\x1b[A"
	down   = "\x1b[B"
	escape = "\x1b"
	erase  = "\x7f"
)

// lastKeys are shown while the last field has the focus: keys pressed sooner would go to the
// one before.
const lastKeys = "submit"

// TestForm: every kind of field can be filled in.
func TestForm(t *testing.T) {
	for field, c := range map[string]struct{ keys, want string }{
		"name":   {"Ann" + enter, `{"name":"Ann"}`},
		"mail":   {enter, `{}`}, // an optional one is left out
		"share":  {"0.5" + enter, `{"share":0.5}`},
		"count":  {erase + "7" + enter, `{"count":7}`},
		"sure":   {"y", `{"sure":true}`},
		"gift":   {down + down + enter, `{"gift":false}`},
		"colour": {down + enter, `{"colour":"g"}`},
		"size":   {up + enter, `{"size":"s"}`},
		"days":   {up + " " + enter, `{"days":["mo","tu"]}`},
		"extras": {" " + down + " " + enter, `{"extras":["a","b"]}`},
	} {
		t.Run(field, func(t *testing.T) {
			term := onTerminal(t, "call", "--stdio", "asking-server", "field", "name="+field)
			term.see(t, "Send this answer?")
			term.press(t, c.keys)
			term.answers(t, lastKeys)
			term.press(t, enter)
			term.answers(t, "\naccept "+c.want)
			term.ends(t, codeDone)
		})
	}
}

// TestFormComplains: what does not fit is said and not taken.
func TestFormComplains(t *testing.T) {
	term := onTerminal(t, "call", "--stdio", "asking-server", "field", "name=name")
	term.see(t, "Send this answer?")
	term.press(t, "A"+enter)
	term.answers(t, "must have at least 2 characters")
	term.press(t, "nn"+enter)
	term.answers(t, lastKeys)
	term.press(t, enter)
	term.answers(t, "\naccept "+`{"name":"Ann"}`)
	term.ends(t, codeDone)
}

// TestFormLeft: a form can be left to decline, to cancel, or to go back to it.
func TestFormLeft(t *testing.T) {
	t.Run("decline at the end", func(t *testing.T) {
		term := onTerminal(t, "call", "--stdio", "asking-server", "two")
		term.see(t, "Send this answer?")
		term.press(t, "y")
		term.answers(t, lastKeys)
		term.press(t, "n")
		term.answers(t, "Second?")
		term.answers(t, "Send this answer?")
		term.press(t, "y")
		term.answers(t, lastKeys)
		term.press(t, enter)
		term.answers(t, `decline, accept {"sure":true}`)
		term.ends(t, codeDone)
	})
	t.Run("refuse", func(t *testing.T) {
		term := onTerminal(t, "call", "--stdio", "asking-server", "everything")
		term.see(t, "Send this answer?")
		term.press(t, escape)
		term.answers(t, "[r]efuse to answer (decline), [c]ancel the call, or Enter to go on: ")
		term.press(t, "r\n")
		term.answers(t, "\ndecline")
		term.ends(t, codeDone)
	})
	t.Run("go back", func(t *testing.T) {
		term := onTerminal(t, "call", "--stdio", "asking-server", "everything")
		term.see(t, "Send this answer?")
		term.press(t, "Ann")
		term.press(t, ctrlC)
		term.answers(t, "or Enter to go on: ")
		term.press(t, "\n")
		term.answers(t, "Send this answer?")
		term.answers(t, "Ann")
		term.press(t, ctrlC)
		term.answers(t, "or Enter to go on: ")
		term.press(t, "c\n")
		term.ends(t, codeCancelled)
	})
}

// TestFormWithdrawn: a question that the server withdraws leaves the screen.
func TestFormWithdrawn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "withdraw")
	term := onTerminal(t, "call", "--stdio", "asking-server", "withdraw", "file="+file)
	term.see(t, "Send this answer?")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	term.see(t, "The question was withdrawn.")
	term.see(t, "without an answer: true")
	term.ends(t, codeDone)
}

// TestVisit: an address is shown and agreed to; declining is the default.
func TestVisit(t *testing.T) {
	for keys, want := range map[string]string{"y": "signed in", enter: "decline"} {
		term := onTerminal(t, "call", "--stdio", "asking-server", "visit")
		term.see(t, "https://example.com/sign/in?x=1")
		term.see(t, "Do you agree to open example.com yourself?")
		term.press(t, keys)
		term.answers(t, want)
		term.ends(t, codeDone)
	}
}

// TestTaskForm: a task's question is asked in the same way (INP-3), and the task can be
// cancelled or left from the form.
func TestTaskForm(t *testing.T) {
	call := func(t *testing.T) *terminal {
		t.Helper()
		server := "coatcheck gateway --stdio --poll-interval 50ms --store sqlite:" + quote(filepath.Join(t.TempDir(), "tasks.db")) + " -- coatcheck example-server"
		term := onTerminal(t, "call", "--stdio", server, "confirm_delete", "filename=a.txt")
		term.see(t, "  Delete a.txt?")
		term.see(t, "Send this answer?")
		return term
	}
	t.Run("answer", func(t *testing.T) {
		term := call(t)
		term.press(t, "y")
		term.answers(t, lastKeys)
		term.press(t, enter)
		term.answers(t, "Deleted a.txt.")
		term.ends(t, codeDone)
	})
	t.Run("cancel", func(t *testing.T) {
		term := call(t)
		term.press(t, ctrlC)
		term.answers(t, "[r]efuse to answer (decline), [c]ancel it, [d]etach")
		term.press(t, "c\n")
		term.answers(t, "was cancelled")
		term.ends(t, codeCancelled)
	})
	t.Run("detach", func(t *testing.T) {
		term := call(t)
		term.press(t, ctrlC)
		term.answers(t, "[d]etach")
		term.press(t, ctrlC)
		term.answers(t, "The task goes on.")
		term.ends(t, codeOther)
	})
	t.Run("terminated", func(t *testing.T) {
		term := call(t)
		if err := term.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		term.see(t, "The task goes on.")
		term.ends(t, codeOther)
	})
}

// C.7: a form stays on the screen while its stream drops and the question is asked again; the
// answer goes to both requests.
func TestFormOutlivesStream(t *testing.T) {
	s := &taskServer{drops: 1, answered: make(chan struct{})}
	server := httptest.NewServer(s)
	defer server.Close()
	term := onTerminal(t, "tasks", "watch", server.URL, "one")
	term.see(t, "Send this answer?")
	opened := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.opened
	}
	for deadline := time.Now().Add(patience); opened() < 2 && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
	}
	term.press(t, "y")
	term.answers(t, lastKeys)
	term.press(t, enter)
	term.answers(t, "done")
	term.ends(t, codeDone)
	if n := strings.Count(term.screen, "Question from"); n != 1 || opened() < 2 {
		t.Errorf("the question was shown %d times, tasks/result opened %d times", n, opened())
	}
}
