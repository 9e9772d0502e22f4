package engine

import (
	"context"
	"slices"
	"time"

	"github.com/coatcheck/coatcheck/protocol"
)

// Outlet is an open stream of a session.
type Outlet struct {
	engine *Engine
	feed   *Feed
}

// Outlet opens a stream that belongs to a session and carries what its tasks say while none
// of its tasks/result calls is open, and changes of status. It takes the place of one opened
// before. Close ends it.
func (e *Engine) Outlet(l Listener) *Outlet {
	o := &Outlet{engine: e, feed: newFeed(l)}
	home := place{l.Principal, l.Session}
	before := e.outlets.at(home)
	e.outlets.add(o.feed)
	for _, l := range e.runningFor(home) {
		l.audience.mu.Lock()
		if e.spokenOn(l, home.session) == o.feed {
			l.catchUp(o.feed)
		}
		e.offerAgain(l, nil)
		if before != nil {
			e.offerAgain(l, before)
		}
		l.audience.mu.Unlock()
	}
	return o
}

// offerAgain offers what a task asks on a stream that is no longer the one to use; nil: on
// none.
func (e *Engine) offerAgain(l *live, gone *Feed) {
	for _, q := range l.audience.open {
		if q.on == gone {
			q.on = nil
			e.offer(l, q)
		}
	}
	for _, q := range l.audience.calls.open {
		if q.on == gone {
			q.on = nil
			e.offerCall(l, q)
		}
	}
}

// Next returns what is to be sent next, when there is something. Calling it says that what
// it returned before is on its way. The error is ctx's.
func (o *Outlet) Next(ctx context.Context) (Event, error) {
	for {
		ev, ok, wait := o.feed.take(o.engine.opts.Now())
		if ok {
			return ev, nil
		}
		if err := o.feed.await(ctx, wait, nil, nil); err != nil {
			return Event{}, err
		}
	}
}

// Close takes the stream from those that are told things. Questions that were out on it go to
// another, and so does progress that was not told: as it is now, since another may have been
// told more meanwhile.
func (o *Outlet) Close() {
	e := o.engine
	home := place{o.feed.listener.Principal, o.feed.listener.Session}
	e.outlets.remove(o.feed)
	unsaid := o.feed.end()
	for _, l := range e.runningFor(home) {
		l.audience.mu.Lock()
		progress := func(ev Event) bool { return ev.Task == l.ref.ID && ev.Method == protocol.MethodProgress }
		if other := e.spokenOn(l, home.session); other != nil && slices.ContainsFunc(unsaid, progress) {
			l.catchUp(other)
		}
		e.offerAgain(l, o.feed)
		l.audience.mu.Unlock()
	}
}

// await blocks until there may be something to take, one of the channels given is ready, or
// ctx is done.
func (f *Feed) await(ctx context.Context, wait time.Duration, ended, changed <-chan struct{}) error {
	var due <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-f.wake:
	case <-due:
	case <-ended:
	case <-changed:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
