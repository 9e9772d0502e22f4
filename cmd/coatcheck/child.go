package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// child is a gateway that runs as a process of its own.
type child struct {
	cmd    *exec.Cmd
	url    string
	exited chan struct{} // closed once it is gone and its stderr is read
}

// startChild starts a command that says where it listens, and waits until it has. What else
// it says goes to log.
func startChild(ctx context.Context, log io.Writer, name string, args ...string) (*child, error) {
	c := &child{cmd: exec.CommandContext(context.WithoutCancel(ctx), name, args...), exited: make(chan struct{})}
	detached(c.cmd)
	stderr, err := c.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	listening := make(chan string, 1)
	last := ""
	go func() {
		defer close(c.exited)
		lines := bufio.NewReader(stderr)
		for {
			line, err := lines.ReadString('\n')
			line = strings.TrimSpace(line)
			if url, ok := strings.CutPrefix(line, readyPrefix); ok {
				select {
				case listening <- url:
				default:
				}
			} else if line != "" {
				last = line
				fmt.Fprintln(log, "  [gateway]", oneLine(line))
			}
			if err != nil {
				break
			}
		}
		_ = c.cmd.Wait() // how it ended is in ProcessState
	}()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	select {
	case c.url = <-listening:
		return c, nil
	case <-c.exited:
		if last == "" {
			last = c.cmd.ProcessState.String()
		}
		return nil, errors.New(last)
	case <-ctx.Done():
		c.kill()
		return nil, fmt.Errorf("it did not listen: %w", ctx.Err())
	}
}

// kill ends the child as kill -9 does.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.exited
}

// stop asks the child to end, and makes it.
func (c *child) stop() {
	if c.cmd.Process.Signal(syscall.SIGTERM) != nil {
		_ = c.cmd.Process.Kill()
	}
	select {
	case <-c.exited:
	case <-time.After(20 * time.Second):
		c.kill()
	}
}
