package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// Why a task's work was stopped, as the cause of its context.
var (
	errCancelled = errors.New("the task was cancelled")
	errExpired   = errors.New("the task has expired")
	errLost      = errors.New("the task was changed by another process")
	errUnwound   = errors.New("the server is shutting down")
)

// Stopped reports whether a run's context was cancelled because its task is over, so that
// what an upstream runs for it as a task of its own is to be cancelled too. It is not when
// this process is shutting down, or when another has the task now.
func Stopped(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return cause != nil && !errors.Is(cause, errUnwound) && !errors.Is(cause, errLost)
}

// live is a task that this process runs.
type live struct {
	ref    task.Ref
	ctx    context.Context // of the work
	cancel context.CancelCauseFunc

	home        place           // the session that made it
	unannounced bool            // see Creation
	initialize  json.RawMessage // params of that session's initialize request, if known
	tool        string          // that it calls, if it calls one
	limits      limit.Limits    // in force when it was made
	turn        turn            // when it works
	queued      atomic.Bool     // it waits for its turn
	ongoing     Starter         // what works on it in place of the Runner, or nil
	job         *Job            // what is run, set before it is
	began       atomic.Pointer[time.Time]
	span        atomic.Pointer[trace.Span]   // of its work; nil if there is none
	polls       atomic.Pointer[rate.Limiter] // how often it may be polled; nil: as one likes
	immediate   chan string                  // what the model is told for now; nil if nobody waits for it

	state    atomic.Pointer[task.Task] // as last stored, without its Inputs
	progress atomic.Pointer[string]    // what the work is at, if it reports
	said     atomic.Pointer[string]    // what it says it is at

	audience audience

	mu    sync.Mutex    // held to change the task; guards over
	over  bool          // nothing more will be recorded from here
	done  chan struct{} // closed when over
	final *task.Task    // set when done is closed: the ended task, whole; nil if lost or expired
	err   error         // set when done is closed: store.ErrExpired, or nil
}

const (
	runningMessage = "The operation is in progress."
	queuedMessage  = "The operation waits for its turn."
)

func newLive(ctx context.Context, t *task.Task, caller *Caller, policy *limit.Policy) *live {
	l := &live{ref: t.Ref, done: make(chan struct{}), home: place{principal: t.Principal}, tool: toolOf(t.Request)}
	l.limits = policy.Call(t.Principal, l.tool)
	l.turn.tool = l.tool
	l.pace(t.PollInterval)
	if caller != nil {
		l.turn.who = caller.Who()
		l.home.session, l.initialize = caller.Session, caller.Initialize
	}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	l.state.Store(t)
	return l
}

// view returns the task as its requestor may see it now.
func (l *live) view() *task.Task {
	t := l.state.Load()
	if t.Status == task.Working && l.queued.Load() {
		c := *t
		c.StatusMessage = queuedMessage
		return &c
	}
	if message := l.progress.Load(); message != nil && t.Status == task.Working && l.said.Load() == nil {
		c := *t
		c.StatusMessage = *message
		return &c
	}
	return t
}

// message returns the statusMessage to store while the task is working.
func (l *live) message() string {
	if said := l.said.Load(); said != nil {
		return *said
	}
	return runningMessage
}

// run does the work of a task and records its outcome.
func (e *Engine) run(l *live) {
	job := l.job
	now := e.opts.Now()
	l.began.Store(&now)
	e.recordLive(l, audit.Event{Kind: audit.Started, Duration: max(0, now.Sub(l.turn.entered))})
	var ctx context.Context
	ctx, job.Request = l.work(job.Request)
	job.Line = &line{engine: e, live: l, token: progressToken(job.Request.Params)}
	starter, ok := l.ongoing, l.ongoing != nil
	if !ok {
		starter, ok = e.opts.Runner.(Starter)
	}
	if !ok {
		e.ended(l, e.invoke(ctx, job))
		return
	}
	var once sync.Once
	tell := func(o task.Outcome, err error) { once.Do(func() { e.ended(l, ended{o, err}) }) }
	defer func() {
		if p := recover(); p != nil {
			tell(task.Outcome{}, panicked(p))
		}
	}()
	starter.Start(ctx, job, tell)
}

// ended is how the work of a task ended.
type ended struct {
	outcome task.Outcome
	err     error
}

// ended records how the work ended.
func (e *Engine) ended(l *live, how ended) {
	defer e.runs.Done()
	defer l.cancel(nil)
	if errors.Is(context.Cause(l.ctx), errUnwound) && l.state.Load().Remote != "" {
		e.end(l, nil, nil) // the next process goes on with it
		return
	}
	if how.err != nil {
		how.outcome = e.failure(l.ref, how.err)
	}
	e.finish(l, how.outcome)
}

// invoke calls the runner. A panic is an error, not the end of the process.
func (e *Engine) invoke(ctx context.Context, job *Job) (how ended) {
	defer func() {
		if p := recover(); p != nil {
			how.err = panicked(p)
		}
	}()
	how.outcome, how.err = e.opts.Runner.Run(ctx, job)
	return how
}

func panicked(p any) error {
	return fmt.Errorf("panic while running a task: %v\n%s", p, debug.Stack())
}

// failure makes an error of the runner the task's JSON-RPC error (ERR-2).
func (e *Engine) failure(ref task.Ref, err error) task.Outcome {
	var wire *protocol.Error
	if !errors.As(err, &wire) {
		if !errors.Is(err, context.Canceled) {
			e.opts.Logger.Error("running a task failed", "task", audit.Hash(ref.ID), "error", err)
		}
		wire = protocol.Errorf(protocol.CodeInternalError, "Internal error")
	}
	return task.Outcome{Error: wire.JSON()}
}

// finish records the outcome, unless the task has ended otherwise meanwhile. It does not
// give up on a store that fails for a while: the work is done and must not be lost.
func (e *Engine) finish(l *live, outcome task.Outcome) {
	if n := int64(len(outcome.Result) + len(outcome.Error)); limit.Exceeds(n, l.limits.Result) {
		outcome = task.Outcome{Error: protocol.Errorf(protocol.CodeInternalError,
			"The outcome is too large: it has %d bytes, and may have %d", n, l.limits.Result).JSON()}
	}
	e.lastWord(l)
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		if now := e.now(); l.state.Load().Expired(now) { // it was called expired already
			e.expireLive(l, now)
			return
		}
		err := e.change(context.Background(), l, func(t *task.Task) (*task.Task, error) {
			now := e.now()
			next, err := t.Finish(outcome, statusMessage(outcome), now)
			if err == nil && e.opts.MinRetention > 0 {
				next.KeepUntil(now.Add(e.opts.MinRetention), max(0, e.maxTTL(l.limits)))
			}
			return next, err
		})
		if err == nil || errors.Is(err, errLost) || errors.Is(err, store.ErrClosed) {
			return
		}
		e.opts.Logger.Error("recording an outcome failed; trying again", "task", audit.Hash(l.ref.ID), "error", err)
		select {
		case <-time.After(wait):
		case <-l.done:
			return
		}
	}
}

// change stores what next makes of a live task; nil leaves it as it is. The error is errLost
// if the task is no longer ours to change.
func (e *Engine) change(ctx context.Context, l *live, next func(*task.Task) (*task.Task, error)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return e.changeLocked(ctx, l, next)
}

func (e *Engine) changeLocked(ctx context.Context, l *live, next func(*task.Task) (*task.Task, error)) error {
	for {
		if l.over {
			return errLost
		}
		t, err := next(l.state.Load())
		if err != nil || t == nil {
			return err
		}
		err = e.store.Update(context.WithoutCancel(ctx), t)
		switch {
		case err == nil:
			e.changed(l, t)
			return nil
		case !gone(err):
			return err
		}
		if err := e.catchUp(l); err != nil {
			return err
		}
	}
}

// changed shows a task as it is stored now.
func (e *Engine) changed(l *live, t *task.Task) {
	if t.Inputs != nil {
		light := *t
		light.Inputs = nil
		t = &light
	}
	before := l.state.Load()
	l.state.Store(t)
	if t.Status.Terminal() {
		e.silence(l)
	}
	e.step(l, before.Status, t.Status)
	if t.Status != before.Status || t.StatusMessage != before.StatusMessage || t.PollInterval != before.PollInterval {
		e.announce(l, t)
	}
	if t.Status.Terminal() {
		if t.Status != task.Cancelled { // Cancel records that
			e.recordLive(l, audit.Event{Kind: audit.Ended, Duration: l.ran(e.opts.Now()), Outcome: t.Outcome})
		}
		e.endLocked(l, t, nil)
	}
}

// catchUp takes over what another process did to a task of ours: it may have stored answers.
// The error is errLost if the task is no longer ours.
func (e *Engine) catchUp(l *live) error {
	t, err := e.store.Load(context.Background(), l.ref)
	switch {
	case err != nil && !gone(err):
		return err
	case err == nil && !t.Status.Terminal() && t.Owner == e.owner:
		e.resumeAnswered(l, t)
		before := l.state.Load()
		t.Request, t.Inputs = before.Request, nil
		l.state.Store(t)
		e.step(l, before.Status, t.Status)
		return nil
	}
	e.endLocked(l, nil, nil)
	if err == nil && t.Status == task.Cancelled {
		l.cancel(errCancelled) // so that the upstream's own task is cancelled, too
	} else {
		l.cancel(errLost)
	}
	return errLost
}

// end takes a task from the live ones: finished, expired, or lost to another process.
func (e *Engine) end(l *live, final *task.Task, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		e.endLocked(l, final, err)
	}
}

func (e *Engine) endLocked(l *live, final *task.Task, err error) {
	if final != nil {
		e.settled.add(final)
	}
	e.silence(l)
	e.tracing.end(l, final, err)
	e.dismiss(l)
	l.over, l.final, l.err = true, final, err
	close(l.done)
	e.leave(l)
}

// leave gives up a task's place, so that others begin to work.
func (e *Engine) leave(l *live) {
	starting, dropped := e.turns.leave(l, l.ran(e.opts.Now()))
	if dropped {
		e.runs.Done()
		l.cancel(nil)
	}
	e.begin(starting)
}

// step lets others work while a task waits for input.
func (e *Engine) step(l *live, before, now task.Status) {
	if before != now {
		e.begin(e.turns.step(l, now))
	}
}

// begin has tasks work whose turn it is.
func (e *Engine) begin(starting []*live) {
	for _, l := range starting {
		if l.turn.waited {
			e.announce(l, l.state.Load())
		}
		go e.run(l)
	}
}

// recordUnfinished ends what still runs at shutdown.
func (e *Engine) recordUnfinished(ctx context.Context) {
	e.turns.close()
	for _, l := range e.runningHere() {
		if l.state.Load().Remote == "" {
			outcome := e.interrupted(wasShut)
			err := e.change(ctx, l, func(t *task.Task) (*task.Task, error) {
				return t.Finish(outcome, statusMessage(outcome), e.now())
			})
			if err != nil && !errors.Is(err, errLost) {
				e.opts.Logger.Error("recording an unfinished task failed", "task", audit.Hash(l.ref.ID), "error", err)
			}
		}
		l.cancel(errUnwound)
	}
}
