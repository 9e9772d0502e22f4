package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/coatcheck/coatcheck/protocol"
)

// maxFailures is how often in a row a server may answer with nonsense, or with an error of its
// own, before it is believed.
const maxFailures = 5

// follow follows the task at the server until it has ended or is let go of.
func (t *Task) follow() {
	t.session.work.Go(func() {
		defer t.session.leave(t)
		f := &following{task: t, params: protocol.Marshal(map[string]string{"taskId": t.id}), results: make(chan outcome, 1)}
		t.settle(f.run())
		f.close()
	})
}

// following is the loop that follows one task: it polls (GET-2, NOT-2), and keeps a
// tasks/result open beside that, on which progress and questions come (GET-3, INP-3).
type following struct {
	task   *Task
	params json.RawMessage

	results chan outcome       // of the open tasks/result
	stop    context.CancelFunc // ends it; nil while none is open
	again   time.Time          // before which none is opened
	refused bool               // the server answers it at the end alone
	ending  bool               // the task has ended, so that it must be answered
	late    *time.Timer        // ends it if it is not; set while ending

	hinted   bool      // the server says that something changed since
	polled   time.Time // when the server was asked last
	failures int       // polls in a row that failed
	errors   int       // of these, the ones that were answered
	nonsense int       // answers of tasks/result in a row that make no sense
}

func (f *following) run() outcome {
	t := f.task
	for {
		f.open()
		timer := time.NewTimer(f.untilNextPoll())
		var o outcome
		var ended bool
		select {
		case <-t.ctx.Done():
			timer.Stop()
			if t.session.ctx.Err() != nil {
				return outcome{err: ErrClosed}
			}
			return outcome{err: context.Cause(t.ctx)}
		case <-t.session.conn.ended:
			timer.Stop()
			return outcome{err: t.session.conn.err}
		case answer := <-f.results:
			o, ended = f.answered(answer)
		case <-t.hints:
			f.hinted = true
		case <-timer.C:
			o, ended = f.poll()
		}
		timer.Stop()
		if ended {
			return o
		}
	}
}

func (f *following) close() {
	if f.stop != nil {
		f.stop()
		<-f.results
	}
	if f.ending {
		f.late.Stop()
	}
}

// open opens tasks/result, unless it is open, was tried just now, or makes no sense yet.
func (f *following) open() {
	status := f.task.Status().Status
	if f.stop != nil || time.Now().Before(f.again) || f.refused && status == Working {
		return
	}
	ctx, stop := context.WithCancel(f.task.ctx)
	f.stop = stop
	f.due(status)
	go func() {
		result, err := f.task.session.call(ctx, protocol.MethodTasksResult, f.params)
		f.results <- outcome{result, err}
	}()
}

// due has a tasks/result end that is not answered though the task has ended.
func (f *following) due(status Status) {
	if status.Terminal() && f.stop != nil && !f.ending {
		f.ending = true
		stop := f.stop
		f.late = time.AfterFunc(askTimeout, stop)
	}
}

// answered takes the answer to tasks/result. It is the call's own only if the task has ended.
func (f *following) answered(o outcome) (outcome, bool) {
	f.stop()
	f.stop = nil
	if f.ending {
		f.ending = false
		f.late.Stop()
	}
	if f.task.ctx.Err() != nil {
		return outcome{}, false
	}
	if wait, limited := busy(o.err); limited { // that says nothing of the task
		f.again = time.Now().Add(wait)
		return outcome{}, false
	}
	if o.err == nil {
		if _, err := protocol.Members(o.result); err != nil {
			o.err = fmt.Errorf("%w: the result is no object", ErrProtocol)
		}
	}
	if final, ended := f.poll(); ended {
		if o.err == nil && isGone(final.err) {
			return o, true // it was collected in its last moment
		}
		return final, true
	}
	status := f.task.Status().Status
	switch {
	case status.Terminal() && (o.err == nil || isWire(o.err)):
		return o, true
	case o.err == nil: // not ended, the server says: so this is no outcome
		return f.senseless(fmt.Errorf("%w: tasks/result was answered while the task is %s", ErrProtocol, status))
	case isWire(o.err):
		if status == InputRequired {
			return f.senseless(fmt.Errorf("%w: tasks/result is refused while the task waits for input: %w", ErrProtocol, o.err))
		}
		f.refused = true // it answers this at the end alone
	case status.Terminal():
		return f.senseless(fmt.Errorf("%w: tasks/result has no answer: %w", ErrProtocol, o.err))
	}
	f.again = time.Now().Add(f.backOff(1 + f.nonsense))
	return outcome{}, false
}

// senseless counts answers that make no sense, and gives up after some in a row.
func (f *following) senseless(err error) (outcome, bool) {
	f.nonsense++
	f.again = time.Now().Add(f.backOff(f.nonsense))
	f.task.session.opts.Logger.Warn("a server's answer makes no sense", "task", f.task.id, "error", err)
	return outcome{err: err}, f.nonsense >= maxFailures
}

// poll asks the server where the task stands. ended is true if that is the end of it.
func (f *following) poll() (o outcome, ended bool) {
	t := f.task
	f.polled, f.hinted = time.Now(), false
	raw, err := t.session.ask(t.ctx, protocol.MethodTasksGet, f.params)
	if t.ctx.Err() != nil {
		return outcome{}, false
	}
	var state *State
	if err == nil {
		if state, err = readState(raw); err == nil {
			err = t.saw(state)
		}
		if err != nil { // it is reached, and does not make sense
			return outcome{err: err}, true
		}
	}
	switch {
	case err == nil:
		f.failures, f.errors = 0, 0
		if state.Status == Cancelled {
			return outcome{err: ErrCancelled}, true // requirements C.2
		}
		f.due(state.Status)
		return outcome{}, false
	case errors.Is(err, ErrClosed):
		return outcome{err: err}, true
	case isGone(aboutTask(err)):
		return outcome{err: aboutTask(err)}, true
	case isWire(err):
		if f.errors++; f.errors >= maxFailures {
			return outcome{err: err}, true
		}
	}
	f.failures++
	t.unheard(err)
	t.session.opts.Logger.Warn("asking for a task failed", "task", t.id, "error", err)
	return outcome{}, false
}

// untilNextPoll returns how long to wait: what the server suggests, within bounds, longer
// after failures, and never exactly (so that many clients do not ask at once).
func (f *following) untilNextPoll() time.Duration {
	if f.hinted {
		return f.task.session.opts.MinPoll - time.Since(f.polled)
	}
	wait := f.interval()
	if f.failures > 0 { // in a row
		wait = f.backOff(f.failures)
	}
	if f.stop == nil && !f.again.IsZero() { // a tasks/result is to be opened again
		wait = min(wait, max(time.Until(f.again), f.task.session.opts.MinPoll))
	}
	return wait*9/10 + rand.N(wait/5+1)
}

func (f *following) interval() time.Duration {
	opts := f.task.session.opts
	f.task.mu.Lock()
	suggested := f.task.poll
	f.task.mu.Unlock()
	if suggested == 0 {
		return opts.Poll
	}
	return min(max(suggested, opts.MinPoll), opts.MaxPoll)
}

func (f *following) backOff(failures int) time.Duration {
	opts := f.task.session.opts
	return min(f.interval()<<min(failures, 16), opts.MaxPoll)
}

func isGone(err error) bool { return errors.Is(err, ErrNotFound) || errors.Is(err, ErrExpired) }
