package engine

import (
	"context"
	"time"
)

// Outlet is an open stream of a session.
type Outlet struct {
	engine *Engine
	feed   *Feed
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

// Close takes the stream from those that are told things.
func (o *Outlet) Close() {
	e := o.engine
	e.outlets.remove(o.feed)
	o.feed.take(e.opts.Now()) // nothing is on its way any more
	e.offerAgain(place{o.feed.listener.Principal, o.feed.listener.Session}, o.feed)
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
