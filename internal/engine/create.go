package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// Lifetime is the ttl a requestor asks for (CRE-2).
type Lifetime struct {
	Asked bool          // false: the default applies
	TTL   time.Duration // 0 asks for an unlimited one
}

// Creation is a request to be run as a task.
type Creation struct {
	Caller   *Caller
	Request  task.Request
	Lifetime Lifetime
	Key      string // idempotency key; "" is none (requirements C.8)
	Fresh    bool   // a repeat by Key is refused, with ErrKeyReused
	// Immediate is how long Immediate may wait for what the model is told for now (CRE-4);
	// 0 is not at all.
	Immediate time.Duration

	// Ongoing, if set, is work that is under way already and goes on as the task's, in place of
	// the Runner's. The task is at work at once, or refused with a *LimitError.
	Ongoing Starter
	Began   time.Time // when Ongoing did
	// Unannounced leaves out notifications/tasks/status, and what the work says outside of the
	// calls that wait for it: the requestor may know nothing of tasks.
	Unannounced bool
}

// Create makes a task, durable when it returns, and starts its work (CRE-1, CRE-3), or has it
// wait for its turn (RSC-1). If the principal has a task with the same idempotency key it
// returns that one.
// Errors: ErrShutdown, ErrKeyReused (with Fresh also for a repeat), a *LimitError, or one of
// the store's.
func (e *Engine) Create(ctx context.Context, c Creation) (*task.Task, error) {
	ctx = By(ctx, c.Caller)
	now := e.now()
	t := &task.Task{
		Ref:           task.Ref{Principal: c.Caller.Principal, ID: e.opts.NewID()},
		Revision:      1,
		Status:        task.Working,
		StatusMessage: runningMessage,
		CreatedAt:     now,
		UpdatedAt:     now,
		PollInterval:  max(0, e.opts.PollInterval),
		Key:           c.Key,
		Request:       c.Request,
		Owner:         e.owner,
	}
	// The work keeps the values of the request that asked for it, not its end.
	l := newLive(context.WithoutCancel(ctx), t, c.Caller, e.opts.Limits)
	if n := int64(len(c.Request.Params)); limit.Exceeds(n, l.limits.Request) {
		return nil, &LimitError{Limit: "request", Message: fmt.Sprintf("The request is too large: its params have %d bytes, and may have %d", n, l.limits.Request)}
	}
	t.TTL = e.lifetime(c.Lifetime, l.limits)
	l.ongoing, l.unannounced = c.Ongoing, c.Unannounced
	if c.Unannounced {
		l.home.session = ""
	}
	limits := l.limits
	if c.Ongoing != nil {
		t.CreatedAt, limits.NoQueue = task.Instant(c.Began), true
	}
	l.job = &Job{Ref: t.Ref, Request: c.Request, Caller: c.Caller}
	if c.Immediate > 0 {
		l.immediate = make(chan string, 1)
	}
	if refused := e.turns.enter(l, limits, e.opts.Now()); refused != nil {
		if existing := e.withKey(ctx, t); existing != nil { // C.8
			return e.repeated(ctx, c, existing)
		}
		return nil, refused
	}
	shown := l.view()
	l.mu.Lock() // until it is stored nobody may take it for lost
	if !e.admit(l) {
		l.mu.Unlock()
		e.leave(l)
		return nil, ErrShutdown
	}
	existing, err := e.store.Create(context.WithoutCancel(ctx), t, store.Quota{Tasks: l.limits.Tasks, Bytes: l.limits.Bytes})
	if err != nil || existing != nil {
		e.endLocked(l, nil, nil)
	}
	l.mu.Unlock()
	if err != nil || existing != nil {
		e.runs.Done()
		if full, ok := errors.AsType[*store.QuotaError](err); ok {
			return nil, &LimitError{Limit: full.Limit, RetryAfter: -1, Message: "As many tasks, or bytes of them, are stored as may be: wait until some expire"}
		}
		if err != nil {
			return nil, fmt.Errorf("storing a task: %w", err)
		}
		return e.repeated(ctx, c, existing)
	}
	e.expectExpiry(t)
	e.tracing.begin(l)
	e.recordOf(ctx, t, audit.Event{Kind: audit.Created, Method: c.Request.Method, Request: &c.Request})
	starting, dropped := e.turns.stored(l)
	if dropped {
		e.runs.Done()
		l.cancel(nil)
	}
	e.begin(starting)
	return shown, nil
}

// withKey returns the task that has the key of a new one for which there is no place; nil if
// none has.
func (e *Engine) withKey(ctx context.Context, t *task.Task) *task.Task {
	if t.Key == "" || len(t.Request.Params) < 2 {
		return nil
	}
	existing, err := e.store.Create(context.WithoutCancel(ctx), t, store.Quota{Bytes: 1}) // stores nothing: a key goes before the quota
	if err != nil {
		return nil
	}
	return existing
}

// Immediate waits, for the time given at most, for what the work of a task that was just
// created has to say to the model for now (CRE-4). "" is nothing.
func (e *Engine) Immediate(ctx context.Context, ref task.Ref, wait time.Duration) string {
	l := e.liveTask(ref)
	if l == nil || l.immediate == nil {
		return ""
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case text := <-l.immediate:
		return text
	case <-l.done:
	case <-timer.C:
	case <-ctx.Done():
	}
	select { // both may be ready
	case text := <-l.immediate:
		return text
	default:
		return ""
	}
}

// admit enters a task among the live ones, before it is stored, so that no moment exists
// in which it is stored but nobody here runs it. Its id is not known to anyone yet.
func (e *Engine) admit(l *live) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return false
	}
	e.live[l.ref] = l
	e.runs.Add(1)
	return true
}

// dismiss takes a task from the live ones.
func (e *Engine) dismiss(l *live) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.live[l.ref] == l {
		delete(e.live, l.ref)
	}
}

// repeated answers a create whose key the principal used before.
func (e *Engine) repeated(ctx context.Context, c Creation, existing *task.Task) (*task.Task, error) {
	if c.Fresh {
		return nil, ErrKeyReused
	}
	now := e.now()
	if existing.Expired(now) {
		if l := e.liveTask(existing.Ref); l != nil {
			e.expireLive(l, now)
		}
		e.settled.drop(existing.Ref)
		if err := e.store.Expire(ctx, now, []task.Ref{existing.Ref}, now.Add(e.opts.Remember)); err != nil {
			return nil, err
		}
		e.recordExpired(existing, now)
		return e.Create(ctx, c)
	}
	if existing.Request.Method != c.Request.Method ||
		!bytes.Equal(withoutMeta(existing.Request.Params), withoutMeta(c.Request.Params)) {
		return nil, ErrKeyReused
	}
	return e.Get(ctx, existing.Ref)
}

// withoutMeta returns params less _meta: a repeat has its own progress token.
func withoutMeta(params []byte) []byte {
	if less, err := protocol.Delete(params, "_meta"); err == nil {
		return less
	}
	return params
}

// lifetime returns the ttl in force for the one asked for (TTL-2, requirements C.3).
func (e *Engine) lifetime(asked Lifetime, limits limit.Limits) time.Duration {
	ttl := e.opts.DefaultTTL
	if asked.Asked {
		ttl = asked.TTL
	}
	most := e.maxTTL(limits)
	switch {
	case most == Unlimited:
		return ttl
	case ttl == 0:
		return most
	}
	return min(ttl, most)
}

// maxTTL returns the longest lifetime in force (RSC-2): that of the limits, if they have one.
func (e *Engine) maxTTL(limits limit.Limits) time.Duration {
	switch {
	case limits.MaxTTL > 0:
		return limits.MaxTTL.Truncate(time.Millisecond)
	case limits.MaxTTL < 0:
		return Unlimited
	}
	return e.opts.MaxTTL
}
