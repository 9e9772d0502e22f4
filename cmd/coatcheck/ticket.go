package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// ticket is a task of a server by its id.
type ticket struct {
	remote *remote
	id     string
}

func (t ticket) params() json.RawMessage {
	return append(protocol.AppendString([]byte(`{"taskId":`), t.id), '}')
}

// get reads the task. A task the server does not know ends the program (ERR-1).
func (t ticket) get(ctx context.Context) (protocol.Task, json.RawMessage, error) {
	var state protocol.Task
	raw, err := t.remote.ask(ctx, pollTimeout, protocol.MethodTasksGet, t.params())
	if err != nil {
		return state, nil, t.failure(err)
	}
	if err := json.Unmarshal(raw, &state); err != nil {
		return state, nil, fmt.Errorf("the server's answer to tasks/get is no task: %w", err)
	}
	return state, raw, nil
}

// failure makes an error answer to a request about the task the end of the program.
func (t ticket) failure(err error) error {
	var answer *protocol.Error
	if !errors.As(err, &answer) {
		return err
	}
	if answer.Code == protocol.CodeInvalidParams {
		return exitf(codeNoTask, "task %s: %s", t.id, oneLine(answer.Message))
	}
	return fmt.Errorf("task %s: %s (code %d)", t.id, oneLine(answer.Message), answer.Code)
}

// watch polls until the task is terminal, telling each state to seen (GET-2, NOT-2).
func (t ticket) watch(ctx context.Context, state protocol.Task, seen func(protocol.Task)) (protocol.Task, error) {
	for {
		seen(state)
		if task.Status(state.Status).Terminal() {
			return state, nil
		}
		select {
		case <-ctx.Done():
			return state, ctx.Err()
		case <-time.After(pollInterval(state)):
		}
		var err error
		if state, _, err = t.get(ctx); err != nil {
			return state, err
		}
	}
}

// pollInterval is how long to wait before the next tasks/get: what the server suggests,
// within reason.
func pollInterval(state protocol.Task) time.Duration {
	const (
		suggested = time.Second
		least     = 20 * time.Millisecond
		most      = time.Minute
	)
	if state.PollInterval == nil || *state.PollInterval <= 0 {
		return suggested
	}
	if *state.PollInterval > most.Milliseconds() {
		return most
	}
	return max(least, time.Duration(*state.PollInterval)*time.Millisecond)
}

// cancel cancels the task. A task that is terminal already stays as it is (CAN-1).
func (t ticket) cancel(ctx context.Context) (json.RawMessage, error) {
	if !t.remote.declares("tasks", "cancel") {
		return nil, fmt.Errorf("the server at %s does not let tasks be cancelled", t.remote.target)
	}
	raw, err := t.remote.ask(ctx, pollTimeout, protocol.MethodTasksCancel, t.params())
	if err == nil {
		return raw, nil
	}
	var answer *protocol.Error
	if errors.As(err, &answer) && answer.Code == protocol.CodeInvalidParams {
		if state, _, getErr := t.get(ctx); getErr == nil {
			return nil, fmt.Errorf("task %s cannot be cancelled: it is %s", t.id, state.Status)
		}
	}
	return nil, t.failure(err)
}
