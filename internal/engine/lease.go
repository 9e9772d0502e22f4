package engine

import (
	"context"
	"errors"
	"time"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// renew extends this process's lease on the tasks it runs.
func (e *Engine) renew(ctx context.Context) error {
	return e.store.Renew(ctx, e.owner, e.now().Add(e.opts.Lease))
}

// holdLease keeps this process alive in the eyes of others.
func (e *Engine) holdLease() {
	e.everyThirdOfALease(func() {
		if err := e.renew(e.ctx); err != nil && e.ctx.Err() == nil {
			e.opts.Logger.Error("renewing the lease failed", "error", err)
		}
	})
}

// takeOver looks for processes that are dead. It has a loop of its own: what there is to do
// for many orphans must not hold up the lease.
func (e *Engine) takeOver() {
	e.everyThirdOfALease(func() {
		if err := e.recover(e.ctx); err != nil && e.ctx.Err() == nil {
			e.opts.Logger.Error("looking for tasks left behind failed", "error", err)
		}
	})
}

func (e *Engine) everyThirdOfALease(do func()) {
	tick := time.NewTicker(e.opts.Lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// recover takes care of tasks whose process is dead: its lease has run out (requirements
// C.9, C.11). One that runs as a task of the upstream is continued; any other failed.
func (e *Engine) recover(ctx context.Context) error {
	for {
		orphans, err := e.store.Orphans(ctx, e.now(), 100)
		if err != nil || len(orphans) == 0 {
			return err
		}
		others := false
		for _, t := range orphans {
			// Its own run here still, though a renewal came late; expired ones are the janitor's.
			if t.Owner == e.owner || t.Expired(e.now()) {
				continue
			}
			others = true
			err := e.adopt(ctx, t)
			if errors.Is(err, ErrShutdown) {
				return nil
			}
			if err != nil && !gone(err) {
				return err
			}
		}
		if !others {
			return nil
		}
	}
}

// adopt does for one orphan what can be done. Of several processes one gets it: the others'
// change is a conflict.
func (e *Engine) adopt(ctx context.Context, t *task.Task) error {
	if t.Remote == "" {
		outcome := e.interrupted(wasStopped)
		next, err := t.Finish(outcome, statusMessage(outcome), e.now())
		if err != nil {
			return err
		}
		if e.opts.MinRetention > 0 {
			limits := e.opts.Limits.Call(t.Principal, toolOf(t.Request))
			next.KeepUntil(e.now().Add(e.opts.MinRetention), max(0, e.maxTTL(limits)))
		}
		if err := e.store.Update(ctx, next); err != nil {
			return err
		}
		e.opts.Logger.Warn("a task was lost with its process", "task", audit.Hash(t.ID))
		e.recordOf(ctx, next, audit.Event{Kind: audit.Ended, Outcome: next.Outcome})
		if !e.opts.NoStatusNotifications {
			e.announceTo(place{principal: t.Principal}, Event{Task: t.ID, Method: protocol.MethodTasksStatus, State: next})
		}
		e.wakeWatchers()
		return nil
	}
	next, err := e.takenOver(ctx, t)
	if err != nil {
		return err
	}
	l := newLive(context.WithoutCancel(ctx), next, nil, e.opts.Limits)
	l.job = &Job{Ref: t.Ref, Request: t.Request, Remote: t.Remote}
	l.turn.entered = e.opts.Now()
	l.mu.Lock() // until it is stored as ours nobody may take it for lost
	defer l.mu.Unlock()
	if !e.admit(l) {
		return ErrShutdown
	}
	if err := e.store.Update(ctx, next); err != nil {
		e.endLocked(l, nil, nil)
		e.runs.Done()
		return err
	}
	e.wakeWatchers()
	e.tracing.begin(l)
	go e.run(l)
	return nil
}

// takenOver returns a task as this process goes on with it. What its upstream had asked when
// the connection was lost it will ask again: those requests are closed.
func (e *Engine) takenOver(ctx context.Context, t *task.Task) (*task.Task, error) {
	if t.Status != task.InputRequired {
		return t.OwnedBy(e.owner)
	}
	whole, err := e.store.Load(ctx, t.Ref)
	if err != nil {
		return nil, err
	}
	next, err := whole.To(task.Working, runningMessage, e.now())
	if err != nil {
		return nil, err
	}
	next.Owner = e.owner
	next.Inputs = nil
	for _, input := range whole.Inputs {
		if input.Answer == nil {
			input.Answer = &withdrawn
			next.Inputs = append(next.Inputs, input)
		}
	}
	return next, nil
}

// gone reports whether a change failed because somebody else changed or removed the task.
func gone(err error) bool {
	return errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrExpired)
}

// followOthers reacts to what other processes do to the same store: it wakes those who wait
// for their tasks, and stops work of ours that one of them has ended.
func (e *Engine) followOthers() {
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-e.store.Changed():
		}
		e.wakeWatchers()
		for _, l := range e.runningHere() {
			l.mu.Lock()
			if !l.over {
				t, err := e.store.Get(e.ctx, l.ref)
				if err != nil && gone(err) || err == nil && t.Revision != l.state.Load().Revision {
					_ = e.catchUp(l) // what it cannot read now it finds at the next change
				}
			}
			l.mu.Unlock()
		}
	}
}
