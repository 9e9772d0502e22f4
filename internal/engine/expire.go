package engine

import (
	"context"
	"time"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// sweep is how often the janitor looks at the least, so that deleted ids are forgotten.
const sweep = time.Minute

// janitor removes tasks when their lifetime is over (RSC-3). One timer serves all tasks.
func (e *Engine) janitor() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-timer.C:
		case <-e.poke:
		}
		looked, err := e.expire(e.ctx)
		if err != nil && e.ctx.Err() == nil {
			e.opts.Logger.Error("removing expired tasks failed", "error", err)
		}
		timer.Reset(e.untilNextDue(e.ctx, looked))
	}
}

// untilNextDue returns how long there is nothing to expire. What was due when the janitor last
// looked is not counted: it is another process's.
func (e *Engine) untilNextDue(ctx context.Context, looked time.Time) time.Duration {
	now := e.now()
	wait := sweep
	// From here on a shorter-lived new task pokes; one stored before is seen by NextDue.
	e.nextDue.Store(now.Add(sweep).UnixMilli())
	if at, ok, err := e.store.NextDue(ctx, looked); err == nil && ok && at.Sub(now) < sweep {
		wait = at.Sub(now)
		e.nextDue.Store(at.UnixMilli())
	}
	return wait
}

// expectExpiry wakes the janitor early if a new task ends before it would look again.
func (e *Engine) expectExpiry(t *task.Task) {
	if at, ok := t.ExpiresAt(); ok && at.UnixMilli() < e.nextDue.Load() {
		select {
		case e.poke <- struct{}{}:
		default:
		}
	}
}

// expire ends what is due: waiters are answered, work is stopped, then the tasks go
// (requirements C.4). It returns the time up to which it did so.
func (e *Engine) expire(ctx context.Context) (now time.Time, err error) {
	for {
		now = e.now()
		due, err := e.store.Due(ctx, now, e.owner, 256)
		if err != nil {
			return now, err
		}
		refs := make([]task.Ref, 0, len(due))
		looked, removed := len(due), due[:0]
		for _, t := range due {
			if l := e.liveTask(t.Ref); l != nil && !e.expireLive(l, now) {
				continue // it ended just now, and is kept longer for it
			}
			e.settled.drop(t.Ref)
			refs = append(refs, t.Ref)
			removed = append(removed, t)
		}
		if err := e.store.Expire(ctx, now, refs, now.Add(e.opts.Remember)); err != nil {
			return now, err
		}
		for _, t := range removed {
			e.recordExpired(t, now)
		}
		e.wakeWatchers()
		if looked < 256 {
			return now, nil
		}
	}
}

func (e *Engine) expireLive(l *live, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || !l.state.Load().Expired(now) {
		return false
	}
	e.endLocked(l, nil, store.ErrExpired)
	l.cancel(errExpired)
	return true
}

func (e *Engine) recordExpired(t *task.Task, now time.Time) {
	at, _ := t.ExpiresAt()
	e.recordOf(context.Background(), t, audit.Event{Kind: audit.Expired, Duration: max(0, now.Sub(at))})
}
