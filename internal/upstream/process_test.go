//go:build unix

package upstream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/coatcheck/coatcheck/protocol"
)

// pidIn reads what the tool wait reports; 0 would be this process's own group.
func pidIn(progress string) int {
	var pid int
	if _, err := fmt.Sscanf(progress, "pid %d", &pid); err != nil || pid <= 0 {
		panic(progress)
	}
	return pid
}

func TestCommandThatDoesNotExist(t *testing.T) {
	for _, command := range [][]string{{"no-such-command-here"}, {"/no/such/path"}, {}} {
		if _, err := Process(command, nil); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", command, err)
		}
	}
}

func TestProcessIsKept(t *testing.T) {
	logged, log := newLogs()
	p, err := Process([]string{os.Args[0]}, &ProcessOptions{Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	first, second := textOf(mustRun(t, p, "pid").Result), textOf(mustRun(t, p, "pid").Result)
	if first != second {
		t.Errorf("processes %s and %s", first, second)
	}
	eventually(t, "stderr in the log", func() bool {
		return strings.Contains(logged.all(), `level=INFO msg="server stderr" line="hello from `+first)
	})
}

// A process that dies takes its task with it, and is replaced.
func TestProcessDies(t *testing.T) {
	p := newProcesses(t, 1)
	job, progress := newJob("wait")
	go func() {
		pid := pidIn(<-progress)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}()
	_, err := p.Run(t.Context(), job)
	var wire *protocol.Error
	if !errors.As(err, &wire) || wire.Code != protocol.CodeInternalError ||
		wire.Message != "The server process ended before it answered (signal: killed)" {
		t.Errorf("error %v", err)
	}
	job, _ = newJob("exit")
	if _, err = p.Run(t.Context(), job); err == nil || !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("error %v", err)
	}
	mustRun(t, p, "echo")
}

// One that dies while it is idle is not used again.
func TestIdleProcessDies(t *testing.T) {
	p := newProcesses(t, 1)
	pid := pidIn("pid " + textOf(mustRun(t, p, "pid").Result))
	idle := p.idle[0]
	_ = syscall.Kill(pid, syscall.SIGKILL)
	<-idle.session.Done()
	mustRun(t, p, "echo")
}

// At most so many run at a time, one task in each, and a cancelled one frees its place.
func TestPoolIsBounded(t *testing.T) {
	p := newProcesses(t, 2)
	pids := make(chan string)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	for range 2 {
		go func() {
			job, progress := newJob("wait")
			go func() { pids <- <-progress }()
			_, err := p.Run(ctx, job)
			ended <- err
		}()
	}
	if one, two := <-pids, <-pids; one == two {
		t.Errorf("two tasks in one process, %s", one)
	}
	third := make(chan error)
	go func() {
		job, _ := newJob("echo")
		_, err := p.Run(t.Context(), job)
		third <- err
	}()
	waiting, giveUp := context.WithCancel(t.Context())
	giveUp()
	job, _ := newJob("echo")
	if _, err := p.Run(waiting, job); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	select {
	case err := <-third:
		t.Fatalf("a third ran beside: %v", err)
	default:
	}
	cancel()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if err := <-third; err != nil {
		t.Error(err)
	}
}

func TestCloseEndsProcesses(t *testing.T) {
	p := newProcesses(t, 2)
	job, progress := newJob("wait")
	ended := make(chan error)
	go func() {
		_, err := p.Run(t.Context(), job)
		ended <- err
	}()
	pid := pidIn(<-progress)
	p.Close()
	if err := <-ended; err == nil {
		t.Error("no error")
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d: %v", pid, err)
	}
	job, _ = newJob("echo")
	if _, err := p.Run(t.Context(), job); err == nil {
		t.Error("a run after Close")
	}
}
