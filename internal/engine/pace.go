package engine

import (
	"context"
	"time"

	"golang.org/x/time/rate"

	"github.com/coatcheck/coatcheck/task"
)

const (
	// patience is how many polls may come at once.
	patience = 20
	// longestPause bounds how long a poll is held: clients do not wait for ever.
	longestPause = 5 * time.Second
)

// pace says how often the task may be polled, given how often it asks to be (TTL-4).
func (l *live) pace(interval time.Duration) {
	if interval <= 0 || l.limits.Polls < 0 {
		l.polls.Store(nil)
		return
	}
	l.polls.Store(rate.NewLimiter(rate.Limit(l.limits.Polls/interval.Seconds()), patience))
}

// Poll is Get, but who polls much faster than the task's pollInterval says has to wait that
// long for the answer, 5 s at most, or until the task is over. slowed says that it had to.
func (e *Engine) Poll(ctx context.Context, ref task.Ref) (t *task.Task, slowed bool, err error) {
	if l := e.liveTask(ref); l != nil {
		if polls := l.polls.Load(); polls != nil && !polls.AllowN(e.opts.Now(), 1) {
			slowed = true
			if err := pause(ctx, min(l.state.Load().PollInterval, longestPause), l.done); err != nil {
				return nil, true, err
			}
		}
	}
	t, err = e.Get(ctx, ref)
	return t, slowed, err
}

// pause waits for a while, or until the channel is closed. The error is ctx's.
func pause(ctx context.Context, d time.Duration, over <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-over:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
