package receiver

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/ticket"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// Call is a plain tools/call that its server is at, and that may become a task: it is handed off
// when its requestor has waited long enough, or is lost. The tap tells it what the server says,
// and may do so from one goroutine only.
type Call struct {
	*operation
	session *TicketSession
	request task.Request
	key     keptKey // "" in call: a repeat is not recognized
	keep    bool
	pace    pace

	mu      sync.Mutex
	ref     task.Ref
	lost    bool // its requestor got no answer
	job     *engine.Job
	ended   func(task.Outcome, error)
	stop    func()
	over    *ending             // how it ended, before there was a job to tell
	pending []func(engine.Line) // what the server said meanwhile
	asked   map[string]func()   // how to take back what the server asks, by its own id
}

type ending struct {
	outcome task.Outcome
	err     error
}

func newCall(o *operation, s *TicketSession, m *protocol.Message, tool TicketTool, key keptKey) *Call {
	params := append(json.RawMessage(nil), m.Params...)
	return &Call{
		operation: o, session: s, request: task.Request{Method: m.Method, Params: params}, key: key, keep: !tool.CancelLost,
		pace:  newPace(params, tool.Patience, o.tickets.Heartbeat, time.Now()),
		asked: map[string]func(){},
	}
}

// Keeps reports whether the work goes on when its requestor is lost.
func (c *Call) Keeps() bool { return c.keep }

// Due says what is due: a heartbeat, for which m is what to send; the end of the requestor's
// patience; and when to look again.
func (c *Call) Due(now time.Time) (beat *Message, handOff bool, next time.Duration) {
	return c.pace.due(now)
}

// Progress notes progress of the server's that is about to be sent to the requestor. It reports
// false if that must not be: it would go back (PROG-1).
func (c *Call) Progress(params json.RawMessage) bool { return c.pace.progress(params, time.Now()) }

// IsProgress reports whether a notification is about the call's progress.
func (c *Call) IsProgress(m *protocol.Message) bool {
	return m.Method == protocol.MethodProgress && c.pace.token != nil && engine.SameToken(protocol.Get(m.Params, "progressToken"), c.pace.token)
}

// Token returns the call's progress token as the requestor wrote it, or nil.
func (c *Call) Token() json.RawMessage { return c.pace.token }

// HandOff makes the call a task, durable when it returns (requirements, promise 1), and returns
// the answer with its ticket. stop is called at most once, if the work is to stop. If it fails the
// requestor waits on: Due says for how long.
func (c *Call) HandOff(ctx context.Context, stop func()) (Answer, error) {
	return c.handOff(ctx, false, stop)
}

// Lost makes the call a task whose requestor got no answer.
func (c *Call) Lost(ctx context.Context, stop func()) error {
	_, err := c.handOff(context.WithoutCancel(ctx), true, stop)
	return err
}

// LoseTicket notes that the answer with the ticket did not reach the requestor.
func (c *Call) LoseTicket() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = true
	c.lose(context.Background(), c.ref)
}

// Cancel stops the work of a call that was handed off.
func (c *Call) Cancel() {
	c.mu.Lock()
	ref := c.ref
	c.mu.Unlock()
	_, _ = c.engine.Cancel(context.Background(), ref) // fails only if it has ended
}

func (c *Call) handOff(ctx context.Context, lost bool, stop func()) (Answer, error) {
	caller := c.from.Caller
	c.mu.Lock()
	c.stop = stop
	c.mu.Unlock()
	creation := engine.Creation{
		Caller: &caller, Request: c.request, Ongoing: c, Began: c.pace.began, Unannounced: true,
	}
	t, err := c.createKept(ctx, creation, c.key, lost)
	if err != nil {
		wait := time.Second
		if full, ok := errors.AsType[*engine.LimitError](err); ok {
			wait = max(wait, full.RetryAfter)
		} else if !errors.Is(err, engine.ErrShutdown) {
			c.log.Error("a call could not be handed off; its requestor waits on", "error", err)
		}
		c.pace.wait(time.Now().Add(wait))
		return Answer{}, err
	}
	c.mu.Lock()
	c.ref = t.Ref
	if c.key.call != "" {
		c.kept.add(c.key, keptTask{t.Ref, lost})
		if c.lost {
			c.lose(ctx, t.Ref)
		}
	}
	c.mu.Unlock()
	c.about(ctx, t)
	tool, known := c.session.about(c.tool)
	return Answer{Result: c.session.names().Waiting(ticket.State{
		Ticket: t.ID, Tool: c.tool, Running: time.Since(c.pace.began), Progress: c.pace.text, Patience: max(0, c.tickets.Patience),
	}, tool.Output || !known)}, nil
}

// Start implements engine.Starter: the work is under way, and tells how it ended.
func (c *Call) Start(ctx context.Context, job *engine.Job, ended func(task.Outcome, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.job, c.ended = job, ended
	if c.pace.last != nil {
		job.Notify(protocol.MethodProgress, c.pace.last)
	}
	for _, say := range c.pending {
		say(job)
	}
	c.pending = nil
	if c.over != nil {
		ended(c.over.outcome, c.over.err)
		return
	}
	context.AfterFunc(ctx, func() {
		if c.end(ending{err: ctx.Err()}) {
			c.stop()
		}
	})
}

// Notified takes a notification of the server, once the call is handed off.
func (c *Call) Notified(m *protocol.Message) {
	method, params := m.Method, append(json.RawMessage(nil), m.Params...)
	if method == protocol.MethodCancelled { // of what it asked
		c.Answered(protocol.Get(params, "requestId"))
		return
	}
	c.say(func(line engine.Line) { line.Notify(method, params) })
}

func (c *Call) say(to func(engine.Line)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.over != nil:
	case c.job == nil:
		c.pending = append(c.pending, to)
	default:
		to(c.job)
	}
}

// Asked takes a request that the server made in the call, once that is handed off. answer is
// called once with what it is answered, unless that comes by another way.
func (c *Call) Asked(m *protocol.Message, answer func(task.Outcome)) {
	id, method, params := string(m.ID), m.Method, append(json.RawMessage(nil), m.Params...)
	c.say(func(line engine.Line) {
		withdraw, err := line.Ask(method, params, answer)
		if err != nil {
			refused, ok := errors.AsType[*protocol.Error](err)
			if !ok {
				refused = protocol.Errorf(protocol.CodeInternalError, "Internal error")
			}
			go answer(task.Outcome{Error: refused.JSON()})
			return
		}
		c.asked[id] = withdraw
	})
}

// Answered notes that a request of the server's needs no answer any more, and reports whether it
// was one that the task asked.
func (c *Call) Answered(id json.RawMessage) bool {
	c.mu.Lock()
	withdraw := c.asked[string(id)]
	delete(c.asked, string(id))
	c.mu.Unlock()
	if withdraw != nil {
		withdraw()
	}
	return withdraw != nil
}

// Ended tells what the server answered, once the call is handed off. Without an answer both
// are nil.
func (c *Call) Ended(result, refused json.RawMessage) {
	var outcome task.Outcome
	switch {
	case refused != nil:
		outcome.Error = append(json.RawMessage(nil), refused...)
	case result != nil:
		outcome.Result = append(json.RawMessage(nil), result...)
		outcome.IsError = string(protocol.Get(result, "isError")) == "true"
	default:
		outcome.Error = protocol.Errorf(protocol.CodeInternalError, "The connection to the server was lost before it answered").JSON()
	}
	c.end(ending{outcome: outcome})
}

// Interrupted tells that the server's answer can no longer come, once the call is handed off.
func (c *Call) Interrupted() { c.end(ending{outcome: c.engine.Interruption()}) }

// end reports whether the work had not ended before.
func (c *Call) end(how ending) bool {
	c.mu.Lock()
	if c.over != nil {
		c.mu.Unlock()
		return false
	}
	c.over = &how
	ended := c.ended
	c.mu.Unlock()
	if ended != nil {
		ended(how.outcome, how.err)
	}
	return true
}
