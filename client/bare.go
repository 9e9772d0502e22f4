package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/protocol"
)

// Get asks where a task stands (GET-1). The error is ErrNotFound, ErrExpired, ErrProtocol,
// ErrUnsupported if the server has no tasks, or that of the exchange.
func (s *Session) Get(ctx context.Context, id string) (*State, error) {
	return s.state(ctx, protocol.MethodTasksGet, id)
}

// Cancel cancels a task and returns it cancelled (CAN-2). The error is ErrTerminal, together
// with the state, if it has ended already (CAN-1), ErrUnsupported if the server does not offer
// it, or as with Get.
func (s *Session) Cancel(ctx context.Context, id string) (*State, error) {
	if !s.declares("tasks", "cancel") { // CAP-3
		return nil, fmt.Errorf("cancelling a task: %w", ErrUnsupported)
	}
	state, err := s.state(ctx, protocol.MethodTasksCancel, id)
	if errors.Is(err, ErrNotFound) { // the code says no more
		if state, getErr := s.Get(ctx, id); getErr == nil && state.Status.Terminal() {
			wire, _ := errors.AsType[*jsonrpc.Error](err)
			return state, fmt.Errorf("%w: %w", ErrTerminal, wire)
		}
	}
	return state, err
}

func (s *Session) state(ctx context.Context, method, id string) (*State, error) {
	if !s.declares("tasks") {
		return nil, fmt.Errorf("tasks: %w", ErrUnsupported)
	}
	raw, err := s.ask(ctx, method, protocol.Marshal(map[string]string{"taskId": id}))
	if err != nil {
		return nil, aboutTask(err)
	}
	state, err := readState(raw)
	if err == nil && state.ID != id {
		err = fmt.Errorf("%w: asked for task %s, told of %s", ErrProtocol, id, state.ID)
	}
	if err != nil {
		return nil, err
	}
	return state, nil
}

// Result returns what a task's call was answered with, as it came, and blocks until that is
// there (RES-1, RES-2). What the tool asks meanwhile goes to the SDK client's handlers. The
// error is what the call was answered with, a *jsonrpc.Error; a server uses the same kind to
// say that it does not have the task. Task.Wait tells them apart, and survives a dropped
// stream.
func (s *Session) Result(ctx context.Context, id string) (json.RawMessage, error) {
	return s.patiently(ctx, func() (json.RawMessage, error) {
		return s.call(ctx, protocol.MethodTasksResult, protocol.Marshal(map[string]string{"taskId": id}))
	})
}

// List returns an iterator over the requestor's tasks at the server, in its order (LST-1). An
// error ends it: ErrUnsupported if the server does not offer it (CAP-3), ErrProtocol, or that
// of the exchange.
func (s *Session) List(ctx context.Context) iter.Seq2[*State, error] {
	return func(yield func(*State, error) bool) {
		if !s.declares("tasks", "list") {
			yield(nil, fmt.Errorf("listing tasks: %w", ErrUnsupported))
			return
		}
		stopped := errors.New("stopped")
		err := s.pages(ctx, protocol.MethodTasksList, func(page json.RawMessage) error {
			all, err := protocol.Elements(protocol.Get(page, "tasks"))
			if err != nil {
				return fmt.Errorf("%w: tasks/list: %w", ErrProtocol, err)
			}
			for _, raw := range all {
				state, err := readState(raw.Value)
				if err != nil {
					return err
				}
				if !yield(state, nil) {
					return stopped
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, stopped) {
			yield(nil, err)
		}
	}
}
