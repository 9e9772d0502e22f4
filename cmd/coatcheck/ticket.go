package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/client"
)

// ticket is a task of a server by its id.
type ticket struct {
	remote *remote
	id     string
}

// get reads the task. A task the server does not know ends the program (ERR-1).
func (t ticket) get(ctx context.Context) (*client.State, error) {
	state, err := request(ctx, t.remote, func(ctx context.Context, s *client.Session) (*client.State, error) { return s.Get(ctx, t.id) })
	return state, t.failure(err)
}

// attach begins to follow the task.
func (t ticket) attach(ctx context.Context) (*client.Task, error) {
	attached, err := request(ctx, t.remote, func(ctx context.Context, s *client.Session) (*client.Task, error) { return s.Attach(ctx, t.id) })
	return attached, t.failure(err)
}

// cancel cancels the task. The error of one that is terminal already, and stays as it is
// (CAN-1), is a *terminalError.
func (t ticket) cancel(ctx context.Context) (*client.State, error) {
	state, err := request(ctx, t.remote, func(ctx context.Context, s *client.Session) (*client.State, error) { return s.Cancel(ctx, t.id) })
	switch {
	case errors.Is(err, client.ErrTerminal):
		return nil, &terminalError{t.id, state.Status}
	case errors.Is(err, client.ErrUnsupported):
		if _, err := t.remote.current().Get(ctx, t.id); errors.Is(err, client.ErrUnsupported) { // it has no tasks at all
			break
		}
		return nil, fmt.Errorf("the server at %s does not let tasks be cancelled", t.remote.target)
	}
	return state, t.failure(err)
}

// terminalError says that a task cannot be cancelled any more.
type terminalError struct {
	id     string
	status client.Status
}

func (e *terminalError) Error() string {
	return fmt.Sprintf("task %s cannot be cancelled: it is %s", e.id, e.status)
}

// failure makes an error of a request about the task the end of the program.
func (t ticket) failure(err error) error {
	answer, answered := errors.AsType[*jsonrpc.Error](err)
	switch {
	case errors.Is(err, client.ErrUnsupported):
		return fmt.Errorf("the server at %s has no tasks; put a coatcheck gateway in front of it", t.remote.target)
	case !answered:
		return err
	case errors.Is(err, client.ErrNotFound), errors.Is(err, client.ErrExpired):
		return exitf(codeNoTask, "task %s: %s", t.id, oneLine(answer.Message))
	}
	return fmt.Errorf("task %s: %s (code %d)", t.id, oneLine(answer.Message), answer.Code)
}
