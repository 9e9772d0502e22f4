package session

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// How long a child process is waited for: after its stdin was closed, and after it was asked
// to terminate. Then it is killed.
const (
	exitGrace      = 2 * time.Second
	terminateGrace = 2 * time.Second
)

// outputGrace is how long the output of a process that has ended is still read: a process it
// left behind may hold the pipe open for ever.
const outputGrace = time.Second

// ProcessError says that the server's process has ended.
type ProcessError struct {
	Status string // such as "exit status 1" or "signal: killed"
}

func (e *ProcessError) Error() string { return "the server process ended (" + e.Status + ")" }

// CommandTransport returns a transport that starts cmd, which must not have been started, and
// speaks with it over stdin and stdout. Closing the connection ends the process, and with it
// where the system allows those that it started: stdin is closed, then SIGTERM is sent, then
// SIGKILL. Lines on stdout that are no messages go to cmd.Stderr. It can be connected once.
func CommandTransport(cmd *exec.Cmd) mcp.Transport { return &command{cmd: cmd} }

type command struct{ cmd *exec.Cmd }

func (t *command) Connect(ctx context.Context) (mcp.Connection, error) {
	// The pipe is not exec's own: Wait must be called at once to see the end, and would close
	// that one before all of it was read.
	out, childOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer childOut.Close()
	t.cmd.Stdout = childOut
	if t.cmd.Stderr != nil {
		if _, ok := t.cmd.Stderr.(*os.File); !ok { // stray lines of stdout go there too
			t.cmd.Stderr = &lockedWriter{w: t.cmd.Stderr}
		}
	}
	in, err := t.cmd.StdinPipe()
	if err != nil {
		out.Close()
		return nil, err
	}
	t.cmd.WaitDelay = outputGrace
	ownGroup(t.cmd)
	if err := t.cmd.Start(); err != nil {
		out.Close()
		return nil, err
	}
	inner, err := (&mcp.IOTransport{
		Reader:        newMessageLines(out, t.cmd.Stderr),
		Writer:        in,
		MaxLineLength: maxMessage,
	}).Connect(ctx)
	if err != nil {
		panic(err) // it cannot fail
	}
	c := &commandConn{Connection: inner, cmd: t.cmd, in: in, out: out, exited: make(chan struct{})}
	go c.wait()
	return c, nil
}

type commandConn struct {
	mcp.Connection
	cmd    *exec.Cmd
	in     io.Closer
	out    *os.File
	status string        // set before exited is closed
	exited chan struct{} // the process has ended

	closing  sync.Once
	closeErr error
}

func (c *commandConn) wait() {
	err := c.cmd.Wait()
	if state := c.cmd.ProcessState; state != nil {
		c.status = state.String()
	} else {
		c.status = err.Error()
	}
	signalGroup(c.cmd, kill) // what it left behind
	_ = c.out.SetReadDeadline(time.Now().Add(outputGrace))
	close(c.exited)
}

func (c *commandConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	msg, err := c.Connection.Read(ctx)
	if err == nil || ctx.Err() != nil {
		return msg, err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrDeadlineExceeded) {
		select { // it closed its output; most likely it is about to end
		case <-c.exited:
			return nil, &ProcessError{Status: c.status}
		case <-time.After(outputGrace):
		}
	}
	return nil, err
}

func (c *commandConn) Write(ctx context.Context, msg jsonrpc.Message) error {
	err := c.Connection.Write(ctx, msg)
	if err == nil || ctx.Err() != nil {
		return err
	}
	select {
	case <-c.exited:
		return &ProcessError{Status: c.status}
	case <-time.After(outputGrace):
		return err
	}
}

// Close returns when the process is gone.
func (c *commandConn) Close() error {
	c.closing.Do(func() {
		c.in.Close()
		if !c.endsWithin(exitGrace) {
			signalGroup(c.cmd, terminate)
			if !c.endsWithin(terminateGrace) {
				signalGroup(c.cmd, kill)
				<-c.exited
			}
		}
		c.closeErr = c.Connection.Close()
		c.out.Close()
		if errors.Is(c.closeErr, os.ErrClosed) { // stdin, above
			c.closeErr = nil
		}
	})
	return c.closeErr
}

func (c *commandConn) endsWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.exited:
		return true
	case <-timer.C:
		return false
	}
}
