package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal with a program on it.
type terminal struct {
	keys *os.File // what is typed
	cmd  *exec.Cmd
	// pressed is how much was on the screen when keys were pressed last.
	pressed int

	mu     sync.Mutex
	screen string
	more   chan struct{} // closed and replaced whenever there is more on the screen
	gone   chan struct{} // closed once all of the program's output is read
}

// onTerminal runs coatcheck on a terminal of its own.
func onTerminal(t *testing.T, args ...string) *terminal {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keys.Close() })
	if err := unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(keys.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 100, Col: 100}); err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	term := &terminal{keys: keys, cmd: exec.Command("coatcheck", args...), more: make(chan struct{}), gone: make(chan struct{})}
	term.cmd.Env = append(os.Environ(), "GORACE="+race, "TERM=xterm-256color")
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = tty, tty, tty
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go term.read()
	t.Cleanup(func() {
		_ = term.cmd.Process.Kill() // it may be gone
		_ = term.cmd.Wait()
		<-term.gone
	})
	return term
}

func (term *terminal) read() {
	defer close(term.gone)
	buf := make([]byte, 4096)
	for {
		n, err := term.keys.Read(buf)
		term.mu.Lock()
		term.screen += string(buf[:n])
		close(term.more)
		term.more = make(chan struct{})
		term.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// see waits until the text is on the screen.
func (term *terminal) see(t *testing.T, text string) {
	t.Helper()
	term.seeFrom(t, 0, text)
}

// answers waits until the text comes after the keys that were pressed last.
func (term *terminal) answers(t *testing.T, text string) {
	t.Helper()
	term.seeFrom(t, term.pressed, text)
}

func (term *terminal) seeFrom(t *testing.T, from int, text string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		term.mu.Lock()
		screen, more := term.screen, term.more
		term.mu.Unlock()
		if strings.Contains(screen[from:], text) {
			return
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("the terminal does not show %q:\n%q", text, screen[from:])
		}
	}
}

func (term *terminal) press(t *testing.T, keys string) {
	t.Helper()
	term.mu.Lock()
	term.pressed = len(term.screen)
	term.mu.Unlock()
	if _, err := term.keys.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// ends waits for the program's end and checks its exit code.
func (term *terminal) ends(t *testing.T, code int) {
	t.Helper()
	err := term.cmd.Wait()
	<-term.gone
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if got != code {
		t.Errorf("exit code %d, want %d:\n%q", got, code, term.screen)
	}
}

const ctrlC = "\x03"

// TestCtrlC: on a terminal Ctrl-C asks, and a second one leaves the task running.
func TestCtrlC(t *testing.T) {
	const question = "[c]ancel it, [d]etach and leave it running"
	call := func(t *testing.T, seconds string) *terminal {
		server := "coatcheck gateway --stdio --poll-interval 50ms --store sqlite:" + quote(filepath.Join(t.TempDir(), "tasks.db")) + " -- coatcheck example-server"
		term := onTerminal(t, "call", "--stdio", server, "slow_compute", "seconds:="+seconds, "label=mine")
		term.see(t, "mine: step 1 of")
		term.press(t, ctrlC)
		term.see(t, question)
		return term
	}
	t.Run("cancel", func(t *testing.T) {
		term := call(t, "600")
		term.press(t, "c\n")
		term.ends(t, codeCancelled)
	})
	t.Run("detach", func(t *testing.T) {
		term := call(t, "600")
		term.press(t, "d\n")
		term.see(t, "coatcheck tasks result --stdio 'coatcheck gateway")
		term.ends(t, codeOther)
	})
	t.Run("twice", func(t *testing.T) {
		term := call(t, "600")
		term.press(t, ctrlC)
		term.see(t, "The task goes on.")
		term.ends(t, codeOther)
	})
	t.Run("go on", func(t *testing.T) {
		term := call(t, "2")
		term.press(t, "\n")
		term.see(t, "mine: done after 8 steps in 2 s")
		term.ends(t, codeDone)
	})
	t.Run("end while asking", func(t *testing.T) {
		term := call(t, "1")
		term.see(t, "mine: done after 4 steps in 1 s")
		term.ends(t, codeDone)
	})
}
