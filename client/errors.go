package client

import (
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/protocol"
)

// Errors, possibly wrapped. What the call itself was answered with is a *jsonrpc.Error, as
// the server sent it.
var (
	// ErrNotFound: the server knows no such task of ours.
	ErrNotFound = errors.New("task not found")
	// ErrExpired: the server had the task, and its lifetime is over.
	ErrExpired = errors.New("task has expired")
	// ErrCancelled: the task was cancelled, so it has no outcome.
	ErrCancelled = errors.New("task was cancelled")
	// ErrTerminal: the task has ended, so it cannot be cancelled.
	ErrTerminal = errors.New("task has ended already")
	// ErrDetached: nobody follows the task here any more; it goes on.
	ErrDetached = errors.New("task was let go of")
	// ErrUnsupported: the server does not offer that.
	ErrUnsupported = errors.New("not supported by the server")
	// ErrProtocol: what the server says of a task makes no sense.
	ErrProtocol = errors.New("the server breaks the protocol")
	// ErrClosed: the session has ended, so that nothing more is heard of the task; it may go
	// on, and Attach in a new session finds it.
	ErrClosed = errors.New("the session has ended")
)

// aboutTask makes the error a server answered a task operation with what it says of the task.
func aboutTask(err error) error {
	wire, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok || wire.Code != protocol.CodeInvalidParams {
		return err
	}
	if strings.Contains(strings.ToLower(wire.Message), "expired") {
		return fmt.Errorf("%w: %w", ErrExpired, err)
	}
	return fmt.Errorf("%w: %w", ErrNotFound, err)
}
