package engine

import (
	"context"
	"time"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// Get returns the current state of a task, without request and outcome (GET-1).
// Errors: store.ErrNotFound, store.ErrExpired.
func (e *Engine) Get(ctx context.Context, ref task.Ref) (*task.Task, error) {
	now := e.now()
	if l := e.liveTask(ref); l != nil {
		return unexpired(l.view(), nil, now)
	}
	if t := e.settled.get(ref); t != nil {
		if !t.Expired(now) {
			return t, nil
		}
		e.settled.drop(ref) // the store knows for how long it is to be called expired
	}
	t, err := unexpiredFrom(e.store.Get(ctx, ref))(now)
	if err == nil && t.Status.Terminal() {
		e.settled.add(t)
	}
	return t, err
}

// Result returns a task whole if it is terminal, or its state alone if it is not.
// Errors: store.ErrNotFound, store.ErrExpired.
func (e *Engine) Result(ctx context.Context, ref task.Ref) (*task.Task, error) {
	if l := e.liveTask(ref); l != nil {
		return unexpired(l.view(), nil, e.now())
	}
	return unexpiredFrom(e.store.Load(ctx, ref))(e.now())
}

// List returns up to limit of the principal's tasks after a position, newest first, and
// whether there are more (LST-1, LST-2, SEC-2).
func (e *Engine) List(ctx context.Context, p task.Principal, after store.Position, limit int) (page []*task.Task, more bool, err error) {
	now := e.now()
	for {
		tasks, err := e.store.List(ctx, p, after, limit+1)
		if err != nil {
			return nil, false, err
		}
		for _, t := range tasks {
			after = store.Position{CreatedAt: t.CreatedAt, ID: t.ID}
			if t.Expired(now) {
				continue
			}
			if len(page) == limit {
				return page, true, nil
			}
			if l := e.liveTask(t.Ref); l != nil {
				t = l.view()
			}
			page = append(page, t)
		}
		if len(tasks) <= limit {
			return page, false, nil
		}
	}
}

// Keyed returns the tasks of a principal that were made after an instant and have an idempotency
// key, newest first, without request and outcome.
func (e *Engine) Keyed(ctx context.Context, p task.Principal, since time.Time) ([]*task.Task, error) {
	var keyed []*task.Task
	after := store.Position{}
	for {
		tasks, err := e.store.List(ctx, p, after, 256)
		if err != nil {
			return nil, err
		}
		for _, t := range tasks {
			if t.CreatedAt.Before(since) {
				return keyed, nil
			}
			after = store.Position{CreatedAt: t.CreatedAt, ID: t.ID}
			if t.Key != "" {
				keyed = append(keyed, t)
			}
		}
		if len(tasks) < 256 {
			return keyed, nil
		}
	}
}

// Rekey gives a task another idempotency key, or none: a create with the one it had makes a new
// task.
// Errors: store.ErrConflict if another task has the key, store.ErrNotFound, store.ErrExpired.
func (e *Engine) Rekey(ctx context.Context, ref task.Ref, key string) error {
	return e.store.Rekey(context.WithoutCancel(ctx), ref, key)
}

// Load returns a task whole, as its requestor may see it now.
// Errors: store.ErrNotFound, store.ErrExpired.
func (e *Engine) Load(ctx context.Context, ref task.Ref) (*task.Task, error) {
	t, err := unexpiredFrom(e.store.Load(ctx, ref))(e.now())
	if err != nil {
		return nil, err
	}
	if l := e.liveTask(ref); l != nil {
		view := *t
		view.StatusMessage = l.view().StatusMessage
		t = &view
	}
	return t, nil
}

// ProgressOf returns in words what the work of a task reported last, if this process runs it.
func (e *Engine) ProgressOf(ref task.Ref) string {
	l := e.liveTask(ref)
	if l == nil {
		return ""
	}
	if said := l.said.Load(); said != nil {
		return *said
	}
	if message := l.progress.Load(); message != nil {
		return *message
	}
	return ""
}

// Stats is what an engine has at hand.
type Stats struct {
	// Tasks that this process runs, by tool and status; those that wait for their turn have the
	// status "queued".
	Tasks map[ToolStatus]int
}

// ToolStatus is a tool's name and a task's status.
type ToolStatus struct{ Tool, Status string }

// Queued stands for the status of a task that waits for its turn, in Stats.
const Queued = "queued"

// Stats counts the tasks that this process runs.
func (e *Engine) Stats() Stats {
	s := Stats{Tasks: map[ToolStatus]int{}}
	for _, l := range e.runningHere() {
		status := string(l.state.Load().Status)
		if l.queued.Load() {
			status = Queued
		}
		s.Tasks[ToolStatus{l.tool, status}]++
	}
	return s
}
