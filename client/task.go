package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/protocol"
)

// Task is a handle on one call. Its methods may be called concurrently.
type Task struct {
	session   *Session
	id        string
	origin    origin // zero if not known
	token     string // progress token, as JSON; "" if another's
	immediate string
	answer    json.RawMessage // to its creation; nil if another's

	ctx    context.Context // of the following
	cancel context.CancelCauseFunc
	hints  chan struct{} // receives when the server says that something changed

	mu       sync.Mutex
	update   Update
	poll     time.Duration // that the server suggests
	changed  chan struct{} // closed and made anew with each update
	done     chan struct{} // closed when outcome is set
	outcome  outcome
	recorded bool // in the ledger
}

// outcome is how a call ended.
type outcome struct {
	result json.RawMessage
	err    error
}

// goesOn reports whether the call has not ended, but is not heard of here any more.
func (o outcome) goesOn() bool { return errors.Is(o.err, ErrDetached) || errors.Is(o.err, ErrClosed) }

// Update is what is known of a call at a moment.
type Update struct {
	Status   Status
	Message  string    // what it is at, in words
	Progress *Progress // the last reported; nil if none was
	Err      error     // why the server, asked last, did not say; nil if it did
}

// Progress is what a tool reported. Total 0 is not known.
type Progress struct {
	Progress, Total float64
	Message         string
}

func newTask(s *Session, id string) *Task {
	t := &Task{
		session: s, id: id, hints: make(chan struct{}, 1),
		update: Update{Status: Working}, changed: make(chan struct{}), done: make(chan struct{}),
	}
	t.ctx, t.cancel = context.WithCancelCause(s.ctx)
	return t
}

// ID returns the task's id at the server; "" says that the call runs plainly.
func (t *Task) ID() string { return t.id }

// Immediate returns what the server gave for the model to go on with (CRE-4), or "".
func (t *Task) Immediate() string { return t.immediate }

// Created returns what the server answered when it made the task, as it came; nil for a plain
// call and for a task that was attached.
func (t *Task) Created() json.RawMessage { return t.answer }

// Status returns where the call stands, as last heard.
func (t *Task) Status() Update {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.update
}

// Wait blocks until the call has ended and returns its result, as the plain call would have.
//
// The error is what the call was answered with, a *jsonrpc.Error as the server sent it;
// ErrCancelled; ErrExpired or ErrNotFound if the server has the task no longer; ErrDetached;
// ErrProtocol; ErrClosed; or ctx's, after which Wait may be called again.
func (t *Task) Wait(ctx context.Context) (*mcp.CallToolResult, error) {
	raw, err := t.WaitRaw(ctx)
	if err != nil {
		return nil, err
	}
	result := &mcp.CallToolResult{}
	if err := json.Unmarshal(raw, result); err != nil {
		return nil, fmt.Errorf("%w: a malformed result: %w", ErrProtocol, err)
	}
	return result, nil
}

// WaitRaw is Wait for the result as it came.
func (t *Task) WaitRaw(ctx context.Context) (json.RawMessage, error) {
	select {
	case <-t.done:
		t.forget()
		return t.outcome.result, t.outcome.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// WaitOrDetach is Wait for d at most. If the call has not ended by then, ended is false: the
// task is let go of, and goes on at the server. Attach comes back to it; meanwhile a host may
// hand the model what Immediate says. A plain call, which cannot be come back to, is waited
// for.
func (t *Task) WaitOrDetach(ctx context.Context, d time.Duration) (result *mcp.CallToolResult, ended bool, err error) {
	if t.id == "" {
		result, err = t.Wait(ctx)
		return result, true, err
	}
	patience, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	result, err = t.Wait(patience)
	if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return result, true, err
	}
	t.Detach()
	return nil, false, nil
}

// Updates returns an iterator over what becomes of the call, beginning with what is known
// now. It ends when the call has, or with ctx. Of several changes in a row the last may be
// all that is seen.
func (t *Task) Updates(ctx context.Context) iter.Seq[Update] {
	return func(yield func(Update) bool) {
		for {
			t.mu.Lock()
			update, changed := t.update, t.changed
			t.mu.Unlock()
			if !yield(update) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			case <-t.done:
				select {
				case <-changed: // one last thing
				default:
					return
				}
			}
		}
	}
}

// Cancel cancels the call and returns when the server has confirmed it (CAN-2). The error is
// ErrTerminal if it has ended already (CAN-1), ErrUnsupported if the server does not let
// tasks be cancelled, ErrNotFound, ErrExpired, ErrProtocol if the server confirms something
// else, or that of the exchange.
func (t *Task) Cancel(ctx context.Context) error {
	select {
	case <-t.done:
		return ErrTerminal
	default:
	}
	if t.id == "" {
		t.cancel(ErrCancelled)
		return nil
	}
	state, err := t.session.Cancel(ctx, t.id)
	if err != nil {
		return err
	}
	if err := t.saw(state); err != nil {
		return err
	}
	if state.Status != Cancelled {
		return fmt.Errorf("%w: the task is %s after it was cancelled", ErrProtocol, state.Status)
	}
	t.settle(outcome{err: ErrCancelled})
	return nil
}

// Detach lets go of the call: whoever waits gets ErrDetached. A task goes on at the server,
// and stays in the ledger; a plain call ends.
func (t *Task) Detach() { t.cancel(ErrDetached) }

// saw takes a state that the server told. The error is ErrProtocol if it cannot be.
func (t *Task) saw(state *State) error {
	if state.ID != t.id {
		return fmt.Errorf("%w: asked for task %s, told of %s", ErrProtocol, t.id, state.ID)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if before := t.update.Status; before.Terminal() && state.Status != before {
		return fmt.Errorf("%w: the task went from %s to %s", ErrProtocol, before, state.Status) // LIFE-3
	}
	t.poll = state.Poll
	next := t.update
	next.Status, next.Message, next.Err = state.Status, state.Message, nil
	if next != t.update {
		if next.Status != t.update.Status {
			t.session.opts.Logger.Debug("task status", "task", t.id, "status", string(next.Status))
		}
		t.publish(next)
	}
	return nil
}

// unheard notes that the server does not say where the task stands.
func (t *Task) unheard(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := t.update
	next.Err = err
	t.publish(next)
}

// progressed takes the params of a progress notification.
func (t *Task) progressed(params json.RawMessage) {
	var p struct {
		Progress, Total float64
		Message         string
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.update.Status.Terminal() {
		return
	}
	next := t.update
	next.Progress = &Progress{p.Progress, p.Total, p.Message}
	t.publish(next)
}

func (t *Task) publish(next Update) {
	t.update = next
	close(t.changed)
	t.changed = make(chan struct{})
}

// hint has the server asked soon.
func (t *Task) hint() {
	select {
	case t.hints <- struct{}{}:
	default:
	}
}

// settle ends the call, once.
func (t *Task) settle(o outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.done:
		return
	default:
	}
	if t.id == "" { // what a plain call is told of nowhere else
		next := t.update
		if next.Status = Completed; o.err != nil || string(protocol.Get(o.result, "isError")) == "true" {
			next.Status = Failed
		}
		if errors.Is(o.err, ErrCancelled) {
			next.Status = Cancelled
		}
		t.publish(next)
	}
	t.outcome = o
	close(t.done)
	t.cancel(nil)
	if t.id != "" {
		t.logEnd(o)
	}
}

func (t *Task) logEnd(o outcome) {
	opts := t.session.opts
	log := opts.Logger.With("task", t.id, "server", opts.Server, "status", string(t.update.Status))
	switch {
	case o.goesOn():
		log.Info("task is not followed any more", "reason", o.err)
	case o.err != nil:
		log.Info("task ended", "error", o.err)
	default:
		log.Info("task ended")
	}
}
