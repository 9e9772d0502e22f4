package engine

import (
	"context"
	"time"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// watcher waits for a task that another process runs.
type watcher struct{ changed chan struct{} }

// Await blocks until a task is terminal and returns it whole (RES-2, RES-4).
// Errors: store.ErrNotFound, store.ErrExpired (also when it expires meanwhile, C.4),
// ErrShutdown, or ctx's.
func (e *Engine) Await(ctx context.Context, ref task.Ref) (*task.Task, error) {
	if t, ended, err := e.awaitLive(ctx, ref); ended {
		return t, err
	}
	w := &watcher{changed: make(chan struct{}, 1)}
	e.watch(ref, w)
	defer e.unwatch(ref, w)
	for {
		// It may have become ours: adopted from a dead process.
		if t, ended, err := e.awaitLive(ctx, ref); ended {
			return t, err
		}
		t, err := unexpiredFrom(e.store.Load(ctx, ref))(e.now())
		if err != nil || t.Status.Terminal() {
			return t, err
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-e.ctx.Done():
			return nil, ErrShutdown
		}
	}
}

// awaitLive waits for a task that this process runs. ended is false if it does not, or not
// to the end.
func (e *Engine) awaitLive(ctx context.Context, ref task.Ref) (t *task.Task, ended bool, err error) {
	l := e.liveTask(ref)
	if l == nil {
		return nil, false, nil
	}
	select {
	case <-l.done:
		return l.final, l.final != nil || l.err != nil, l.err
	case <-ctx.Done():
		return nil, true, ctx.Err()
	}
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
