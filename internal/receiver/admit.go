package receiver

import (
	"cmp"
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/protocol"
)

// byAddress is how many times as many look-ups may fail from one address as of one requestor
// there: several may share it.
const byAddress = 10

// penalty is how long a refusal for a rate is held back, over HTTP: who does not wait is slowed
// by it, and refusals do not take the time that others need.
const penalty = 100 * time.Millisecond

// rates count what requestors do (SEC-5).
type rates struct {
	creates, gets, lists *limit.Buckets // by requestor
	tools                *limit.Buckets // creates, by requestor and tool
	misses, missesFrom   *limit.Buckets // by requestor, and by address
	waits                waits
}

func newRates() *rates {
	return &rates{
		creates: limit.NewBuckets(limit.Rate{}), gets: limit.NewBuckets(limit.Rate{}), lists: limit.NewBuckets(limit.Rate{}),
		tools: limit.NewBuckets(limit.Rate{}), misses: limit.NewBuckets(limit.Rate{}), missesFrom: limit.NewBuckets(limit.Rate{}),
		waits: waits{of: map[string]int{}},
	}
}

// waits are the tasks/result calls that are open, by requestor.
type waits struct {
	mu  sync.Mutex
	of  map[string]int
	all int
}

func (w *waits) enter(who string, most int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if limit.Exceeds(w.of[who]+1, most) {
		return false
	}
	w.of[who]++
	w.all++
	return true
}

func (w *waits) leave(who string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all--
	if w.of[who]--; w.of[who] == 0 {
		delete(w.of, who)
	}
}

// Waits returns how many tasks/result calls are open.
func (r *Receiver) Waits() int {
	r.rates.waits.mu.Lock()
	defer r.rates.waits.mu.Unlock()
	return r.rates.waits.all
}

// operation is one thing that a requestor asks for, on its way to an answer.
type operation struct {
	*Receiver
	from   *Requestor
	who    string
	limits limit.Limits
	method string
	task   string // that it is about, as the requestor names it
	tool   string // that it calls
}

func (r *Receiver) begin(from *Requestor, method string) *operation {
	return &operation{Receiver: r, from: from, who: from.Who(), limits: r.limits.For(from.Principal), method: method}
}

// admit lets an operation pass if the requestor's token and rates allow it.
func (o *operation) admit(ctx context.Context) (refused Answer, ok bool) {
	if a, ok := o.allowed(o.from, o.method); !ok {
		o.record(ctx, audit.Event{Kind: audit.Refused, Reason: audit.Scope})
		return a, false
	}
	now := time.Now()
	switch o.method {
	case answering: // nobody could be told to come again: it waits
		for {
			wait := o.rates.gets.TakeAt(o.who, o.limits.Gets, time.Now())
			if wait == 0 || hold(ctx, min(wait, time.Second)) != nil {
				return Answer{}, true
			}
		}
	case protocol.MethodTasksList:
		return o.within(ctx, "lists", o.rates.lists.TakeAt(o.who, o.limits.Lists, now))
	case protocol.MethodTasksGet, protocol.MethodTasksResult, protocol.MethodTasksCancel:
		if a, ok := o.within(ctx, "gets", o.rates.gets.TakeAt(o.who, o.limits.Gets, now)); !ok {
			return a, false
		}
		wait := o.rates.misses.Empty(o.who, o.limits.Misses, now)
		if place, r := o.sharedPlace(); place != "" {
			wait = max(wait, o.rates.missesFrom.Empty(place, r, now))
		}
		return o.within(ctx, "misses", wait)
	}
	if a, ok := o.within(ctx, "creates", o.rates.creates.TakeAt(o.who, o.limits.Creates, now)); !ok {
		return a, false
	}
	if own := o.Receiver.limits.Tool(o.tool).Creates; own != (limit.Rate{}) {
		return o.within(ctx, "creates", o.rates.tools.TakeAt(o.who+"\x00"+o.tool, own, now))
	}
	return Answer{}, true
}

// sharedPlace returns where an identified requestor, beside others perhaps, comes from, and how
// many look-ups may fail from there; "" if that is not counted.
func (o *operation) sharedPlace() (string, limit.Rate) {
	if !o.from.Identified || o.from.Address == "" {
		return "", limit.Rate{}
	}
	r := o.Receiver.limits.For("").Misses // not one principal's own
	return limit.Place(o.from.Address), limit.Rate{PerSecond: r.PerSecond * byAddress, Burst: r.Burst * byAddress}
}

// missed counts a look-up of a task that is not there, for all that the requestor can tell. It
// returns how long until it may have another, if it had one too many.
func (o *operation) missed() (wait time.Duration) {
	now := time.Now()
	wait = o.rates.misses.TakeAt(o.who, o.limits.Misses, now)
	if place, r := o.sharedPlace(); place != "" {
		wait = max(wait, o.rates.missesFrom.TakeAt(place, r, now))
	}
	return wait
}

func (o *operation) within(ctx context.Context, name string, wait time.Duration) (refused Answer, ok bool) {
	if wait == 0 {
		return Answer{}, true
	}
	if !o.from.Connection { // there a flood has no bound but its own
		_ = hold(ctx, penalty)
	}
	return o.exceeded(ctx, &engine.LimitError{Limit: name, RetryAfter: wait, Message: tooOften[name]}), false
}

// hold waits. The error is ctx's.
func hold(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var tooOften = map[string]string{
	"creates": "Too many tasks are created in a short time",
	"gets":    "Too many task requests in a short time",
	"lists":   "Too many listings in a short time",
	"misses":  "Too many requests for tasks that are not there",
	"waits":   "Too many tasks/result requests are open",
}

// exceeded refuses an operation for a limit. What waiting cannot change is a plain error.
func (o *operation) exceeded(ctx context.Context, e *engine.LimitError) Answer {
	o.record(ctx, audit.Event{Kind: audit.Refused, Reason: audit.OverLimit, Limit: e.Limit})
	data := struct {
		Limit        string `json:"limit"`
		RetryAfterMs int64  `json:"retryAfterMs,omitempty"`
	}{Limit: e.Limit}
	if e.RetryAfter > 0 {
		data.RetryAfterMs = max(1, e.RetryAfter.Milliseconds())
	}
	refused := protocol.Errorf(protocol.CodeLimitExceeded, "%s", e.Message)
	refused.Data = protocol.Marshal(data)
	return Answer{Error: refused.JSON(), RetryAfter: e.RetryAfter}
}

// invalid refuses an operation for what it says.
func (o *operation) invalid(ctx context.Context, code int64, format string, args ...any) Answer {
	o.record(ctx, audit.Event{Kind: audit.Refused, Reason: audit.Invalid})
	return refuse(code, format, args...)
}

// record hands an event to the audit (AUD-1, AUD-2).
func (o *operation) record(ctx context.Context, ev audit.Event) {
	if o.audit == nil {
		return
	}
	ev.Time, ev.Method = time.Now(), o.method
	ev.Principal, ev.Address, ev.Session = o.from.Principal, o.from.Address, o.from.Session
	ev.Task, ev.Tool = o.task, cmp.Or(ev.Tool, o.tool)
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		ev.Trace = span.TraceID().String()
	}
	o.audit.Record(ctx, ev)
}
