package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// maxReopenDelay bounds how long to wait before tasks/result is opened again.
const maxReopenDelay = 10 * time.Second

// following is the wait for a task, with polling and an open tasks/result side by side
// (GET-3): the stream brings questions, progress and log at once (INP-3), and polling notices
// what the stream, if it drops, does not bring (NOT-2).
type following struct {
	ticket ticket
	seen   func(protocol.Task)
	opened func() // tasks/result is about to be opened
	stop   context.CancelFunc
	done   chan struct{} // closed when the fields below are set

	state  protocol.Task   // as it was seen last
	result json.RawMessage // of the task's request
	err    error           // instead of a result: a *protocol.Error if it is the server's answer
}

// follow begins to wait for a task, whose state is known already.
func (t ticket) follow(ctx context.Context, state protocol.Task, seen func(protocol.Task), opened func()) *following {
	f := &following{ticket: t, seen: seen, opened: opened, state: state, done: make(chan struct{})}
	ctx, f.stop = context.WithCancel(ctx)
	go func() {
		defer close(f.done)
		defer f.stop()
		f.run(ctx)
	}()
	return f
}

// end stops waiting.
func (f *following) end() {
	f.stop()
	<-f.done
}

func (f *following) run(ctx context.Context) {
	polling, stopPolling := context.WithCancel(ctx)
	defer stopPolling()
	streaming, stopStreaming := context.WithCancel(ctx)
	defer stopStreaming()
	var polled error
	ended := make(chan struct{}) // polling is over, most often because the task is
	go func() {
		defer close(ended)
		f.state, polled = f.ticket.watch(polling, f.state, f.seen)
		if polled != nil || task.Status(f.state.Status) == task.Cancelled {
			stopStreaming() // there is no result to come (requirements C.2)
		}
	}()
	f.result, f.err = f.outcome(streaming, ended)
	stopPolling()
	<-ended
	switch {
	case ctx.Err() != nil:
		f.err = ctx.Err()
	case polled != nil && !errors.Is(polled, context.Canceled):
		f.err = polled
	case !task.Status(f.state.Status).Terminal():
		f.catchUp(ctx)
	}
}

// catchUp reads how the task stands after tasks/result was answered. An error is the task's
// outcome, or a refusal to wait for it: then polling alone must do.
func (f *following) catchUp(ctx context.Context) {
	state, _, err := f.ticket.get(ctx)
	if err != nil {
		if f.err != nil {
			f.err = err
		}
		return
	}
	f.state = state
	if f.err == nil || task.Status(state.Status).Terminal() {
		f.seen(state)
		return
	}
	if f.state, err = f.ticket.watch(ctx, state, f.seen); err != nil {
		f.err = err
		return
	}
	f.opened()
	f.result, f.err = f.ticket.remote.ask(ctx, 0, protocol.MethodTasksResult, f.ticket.params())
}

// outcome returns what tasks/result is answered with. While the task runs, a stream that
// drops is opened again; polling says if the server is gone for good.
func (f *following) outcome(ctx context.Context, ended <-chan struct{}) (json.RawMessage, error) {
	r, params := f.ticket.remote, f.ticket.params()
	for delay := reconnectDelay; ; delay = min(2*delay, maxReopenDelay) {
		f.opened()
		opening := time.Now()
		result, err := f.untilLate(ctx, ended, func(ctx context.Context) (json.RawMessage, error) {
			return r.askOnce(ctx, 0, false, protocol.MethodTasksResult, params)
		})
		if err == nil || errors.As(err, new(*protocol.Error)) || ctx.Err() != nil {
			return result, err
		}
		if time.Since(opening) > maxReopenDelay {
			delay = reconnectDelay // it was a good stream
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ended:
			return r.ask(ctx, 0, protocol.MethodTasksResult, params)
		case <-time.After(delay):
		}
	}
}

// untilLate calls a function whose context ends some time after the task has ended: a stream
// that brings nothing then is broken, though nothing says so.
func (f *following) untilLate(ctx context.Context, ended <-chan struct{}, call func(context.Context) (json.RawMessage, error)) (json.RawMessage, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-ended:
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollTimeout):
			cancel()
		}
	}()
	return call(ctx)
}
