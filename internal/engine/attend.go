package engine

import (
	"context"
	"time"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// Attendance is one tasks/result call that waits: it is told what the task has to say, and
// in the end its outcome.
type Attendance struct {
	engine *Engine
	ref    task.Ref
	feed   *Feed
	deaf   bool // wants the outcome alone

	live    *live           // this process runs the task
	earlier <-chan struct{} // closed when what it said on an earlier stream of the session is written
	watcher *watcher        // another does, or did when last seen
}

// watcher waits for a task that another process runs.
type watcher struct {
	changed chan struct{}
	feed    *Feed
}

// Deafen has it wait for the outcome alone: what the task says meanwhile is for others. It comes before
// Next.
func (a *Attendance) Deafen() { a.deaf = true }

// Attend begins to wait for a task. Close must be called.
func (e *Engine) Attend(id string, l Listener) *Attendance {
	return &Attendance{engine: e, ref: task.Ref{Principal: l.Principal, ID: id}, feed: newFeed(l)}
}

// Next returns the next event, or, when the task is terminal and there is no more to say,
// the task, whole (RES-2, RES-4). Calling it says that the event it returned before is on its
// way.
//
// Errors: store.ErrNotFound, store.ErrExpired (also when it expires meanwhile, C.4),
// ErrShutdown, or ctx's, after which Next may be called again.
func (a *Attendance) Next(ctx context.Context) (Event, *task.Task, error) {
	for {
		var ended, changed <-chan struct{}
		l := a.follow()
		over := false
		if l != nil {
			ended = l.done
			select {
			case <-l.done:
				over = true
			default:
			}
		}
		if err := a.afterEarlier(ctx); err != nil {
			return Event{}, nil, err
		}
		ev, ok, wait := a.feed.take(a.engine.opts.Now())
		if ok {
			return ev, nil, nil
		}
		switch {
		case over && (l.final != nil || l.err != nil):
			return Event{}, l.final, l.err
		case over:
			a.live = nil // lost to another process: the store knows more
			continue
		case l == nil:
			t, more, err := a.look(ctx)
			if err != nil || t != nil {
				return Event{}, t, err
			}
			if more {
				continue
			}
			changed = a.watcher.changed
		}
		select {
		case <-a.engine.ctx.Done():
			if l == nil {
				return Event{}, nil, ErrShutdown
			}
		default:
		}
		if err := a.feed.await(ctx, wait, ended, changed); err != nil {
			return Event{}, nil, err
		}
	}
}

// follow returns the task's live entry, if this process runs it or ran it to its end.
func (a *Attendance) follow() *live {
	if a.live != nil {
		return a.live
	}
	e := a.engine
	l := e.liveTask(a.ref)
	if l == nil {
		if a.watcher == nil {
			a.watcher = &watcher{changed: make(chan struct{}, 1), feed: a.feed}
			e.watch(a.ref, a.watcher)
			l = e.liveTask(a.ref) // it may have become ours just before
		}
		if l == nil {
			return nil
		}
	}
	if a.watcher != nil {
		e.unwatch(a.ref, a.watcher)
		a.watcher = nil
	}
	a.live = l
	if !a.deaf {
		a.earlier = e.attach(l, a.feed)
	}
	return l
}

// afterEarlier waits, not for long, until what the task said before comes before what it
// says here: both may go over one connection.
func (a *Attendance) afterEarlier(ctx context.Context) error {
	if a.earlier == nil {
		return nil
	}
	timeout := time.NewTimer(writePatience)
	defer timeout.Stop()
	select {
	case <-a.earlier:
	case <-timeout.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	a.earlier = nil
	return nil
}

// look reads a task that another process runs. It returns the task once it is terminal, and
// asks what is open there on the stream; more says that there is something to take.
func (a *Attendance) look(ctx context.Context) (final *task.Task, more bool, err error) {
	t, err := unexpiredFrom(a.engine.store.Load(ctx, a.ref))(a.engine.now())
	if err != nil || t.Status.Terminal() {
		return t, false, err
	}
	if a.deaf {
		return nil, false, nil
	}
	for _, input := range t.Inputs {
		name := question{a.ref.ID, input.Key}
		switch {
		case input.Answer != nil:
			more = a.feed.closed(name, "") || more
		case refusal(a.feed.listener.Initialize, input.Method, input.Params) == nil:
			more = a.feed.askOnce(&openQuestion{name: name, input: input}) || more
		}
	}
	return nil, more, nil
}

// Close ends the waiting. Questions that are out on its stream go to another.
func (a *Attendance) Close() {
	if a.live != nil && !a.deaf {
		a.engine.detach(a.live, a.feed)
	}
	if a.watcher != nil {
		a.engine.unwatch(a.ref, a.watcher)
	}
	a.feed.end()
}

// Await blocks until a task is terminal and returns it whole; see Attendance.Next.
func (e *Engine) Await(ctx context.Context, ref task.Ref) (*task.Task, error) {
	a := e.Attend(ref.ID, Listener{Principal: ref.Principal})
	a.Deafen()
	defer a.Close()
	_, t, err := a.Next(ctx)
	return t, err
}

func (e *Engine) watch(ref task.Ref, w *watcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watchers[ref] == nil {
		e.watchers[ref] = map[*watcher]struct{}{}
	}
	e.watchers[ref][w] = struct{}{}
}

func (e *Engine) unwatch(ref task.Ref, w *watcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.watchers[ref], w)
	if len(e.watchers[ref]) == 0 {
		delete(e.watchers, ref)
	}
}

// wakeWatchers has everyone who waits for another process's task look again.
func (e *Engine) wakeWatchers() {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, watchers := range e.watchers {
		for w := range watchers {
			select {
			case w.changed <- struct{}{}:
			default:
			}
		}
	}
}

// unexpired turns a task whose lifetime is over into the error it is answered with, deleted
// or not.
func unexpired(t *task.Task, err error, now time.Time) (*task.Task, error) {
	if err == nil && t.Expired(now) {
		return nil, store.ErrExpired
	}
	return t, err
}

func unexpiredFrom(t *task.Task, err error) func(time.Time) (*task.Task, error) {
	return func(now time.Time) (*task.Task, error) { return unexpired(t, err, now) }
}
