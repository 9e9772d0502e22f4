package receiver

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/ticket"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// Collecting is a tools/call that waits for the outcome of a task, as long as its patience lasts:
// a ticket_collect, or a repeat of the call that the task is of.
type Collecting struct {
	*operation
	session    *TicketSession
	ref        task.Ref
	joined     bool
	pace       pace
	attendance *engine.Attendance
	collected  *task.Task // whose outcome the answer is
	held       *keptEntry // what a repeat was taken to, until it was collected
	mute       bool       // only an answer can be given
	own        bool       // the task began with this call
	cancelLost bool
}

// Next is Waiting's. Progress goes out under the call's own token.
func (c *Collecting) Next(ctx context.Context) (m Message, a Answer, last bool, err error) {
	if c.attendance == nil {
		c.attendance = c.engine.Attend(c.ref.ID, c.from.listener())
		if c.mute {
			c.attendance.Deafen()
		}
	}
	for {
		beat, over, wait := c.pace.due(time.Now())
		switch {
		case over:
			return Message{}, c.waiting(ctx), true, nil
		case beat != nil:
			return *beat, Answer{}, false, nil
		}
		waiting, cancel := context.WithTimeout(ctx, wait)
		ev, t, err := c.attendance.Next(waiting)
		cancel()
		switch {
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return Message{}, Answer{}, false, err
		case err != nil && errors.Is(err, context.DeadlineExceeded):
			continue
		case err != nil || t != nil:
			return Message{}, c.outcome(ctx, t, err), true, nil
		}
		if m, ok := c.message(ev); ok {
			return m, Answer{}, false, nil
		}
	}
}

// Mute has Next return nothing but the answer: the requestor takes nothing else. It comes before Next.
func (c *Collecting) Mute() {
	c.mute, c.pace.token = true, nil
}

// message is an event as the call's requestor is told of it, who may know nothing of tasks.
func (c *Collecting) message(ev engine.Event) (Message, bool) {
	m := Message{ID: ev.Ask, Method: ev.Method, Params: ev.Params}
	switch {
	case ev.State != nil:
		return m, false
	case ev.Method != protocol.MethodProgress:
		return m, true
	case !c.pace.progress(ev.Params, time.Now()) || c.pace.token == nil:
		return m, false
	}
	params, err := protocol.Set(ev.Params, "progressToken", c.pace.token)
	m.Params = params
	return m, err == nil
}

// waiting is the answer of a call whose patience is over.
func (c *Collecting) waiting(ctx context.Context) Answer {
	ctx = context.WithoutCancel(ctx) // it may end any moment, when there may be something else to send
	t, err := c.engine.Load(ctx, c.ref)
	if err != nil || t.Status.Terminal() {
		return c.outcome(ctx, t, err)
	}
	state := ticket.State{
		Ticket: t.ID, Tool: toolOf(t), Running: time.Since(t.CreatedAt), Patience: max(0, c.tickets.Patience), Joined: c.joined,
	}
	if t.Status == task.InputRequired {
		state.Asks, state.Question = true, t.StatusMessage
	} else {
		state.Progress = c.engine.ProgressOf(c.ref)
	}
	structured := false
	if c.joined || c.own { // a call of the tool itself
		tool, known := c.session.about(c.tool)
		structured = tool.Output || !known
	}
	return Answer{Result: c.session.names().Waiting(state, structured)}
}

// outcome is the task's own result or error, byte for byte, or says why there is none.
func (c *Collecting) outcome(ctx context.Context, t *task.Task, err error) Answer {
	if err != nil {
		return c.absent(ctx, c.session.names(), err)
	}
	c.about(ctx, t)
	c.record(ctx, audit.Event{Kind: audit.Retrieved, Status: t.Status, Tool: toolOf(t)})
	c.collected = t
	if isKept(t.Key) {
		c.loadKept(ctx, c.ref.Principal) // to have what is dropped, if it is from before a restart
	}
	c.held = c.kept.drop(t.Ref) // before the requestor has it: then a repeat starts anew
	names := c.session.names()
	switch {
	case t.Status == task.Cancelled:
		return Answer{Result: names.Cancelled(t.ID, false)}
	case t.Outcome == nil:
		return c.failed(ctx, "retrieve task", errNoOutcome)
	case engine.Interrupted(t.Outcome):
		return Answer{Result: names.Interrupted(t.ID, toolOf(t))}
	case t.Outcome.Error != nil:
		return Answer{Error: t.Outcome.Error}
	}
	return Answer{Result: t.Outcome.Result}
}

// absent answers for a ticket whose task is not there.
func (o *operation) absent(ctx context.Context, names ticket.Names, err error) Answer {
	switch {
	case errors.Is(err, store.ErrNotFound):
		if wait := o.missed(); wait > 0 {
			return o.exceeded(ctx, &engine.LimitError{Limit: "misses", RetryAfter: wait, Message: tooOften["misses"]})
		}
		o.record(ctx, audit.Event{Kind: audit.Refused, Reason: audit.NotFound})
		return Answer{Result: names.Unknown(o.task)}
	case errors.Is(err, store.ErrExpired):
		o.record(ctx, audit.Event{Kind: audit.Refused, Reason: audit.Gone})
		return Answer{Result: names.Expired(o.task)}
	}
	return o.failed(ctx, "retrieve task", err)
}

// Delivered notes that the answer reached the requestor.
func (c *Collecting) Delivered(ctx context.Context) {
	if c.collected != nil {
		c.letGo(ctx, c.collected)
	}
}

// Lost notes that there is nobody any more to answer.
func (c *Collecting) Lost(ctx context.Context) {
	c.kept.putBack(c.held)
	switch {
	case !c.own:
	case c.cancelLost:
		_, _ = c.engine.Cancel(context.WithoutCancel(ctx), c.ref) // fails only if it has ended
	default:
		c.lose(ctx, c.ref)
	}
}

// GiveUp notes that the requestor gives the call up, before a repeat of it can come. Lost, or
// Delivered, follows.
func (c *Collecting) GiveUp(ctx context.Context) {
	if c.own && !c.cancelLost {
		c.lose(ctx, c.ref)
	}
}

// Close ends the waiting; the task goes on.
func (c *Collecting) Close() {
	if c.attendance != nil {
		c.attendance.Close()
	}
	c.rates.waits.leave(c.who)
}

// collect begins to wait for a task's outcome. If that is not possible it returns the answer.
func (o *operation) collect(ctx context.Context, s *TicketSession, ref task.Ref, patience time.Duration, params json.RawMessage, joined bool) (*Collecting, Answer) {
	o.task = ref.ID
	if _, err := o.engine.Get(ctx, ref); err != nil {
		return nil, o.absent(ctx, s.names(), err)
	}
	if !o.rates.waits.enter(o.who, o.limits.Waits) {
		return nil, o.exceeded(ctx, &engine.LimitError{Limit: "waits", RetryAfter: time.Second, Message: tooOften["waits"]})
	}
	return &Collecting{
		operation: o, session: s, ref: ref, joined: joined, pace: newPace(params, patience, o.tickets.Heartbeat, time.Now()),
	}, Answer{}
}

// ticketTool answers a call of one of the ticket tools, or begins to.
func (o *operation) ticketTool(ctx context.Context, s *TicketSession, name string, params json.RawMessage) (*Collecting, Answer) {
	names := s.names()
	arguments := protocol.Get(params, "arguments")
	if name == names.List {
		o.method = protocol.MethodTasksList
		if a, ok := o.admit(ctx); !ok {
			return nil, a
		}
		return nil, o.listTickets(ctx, names)
	}
	o.method = protocol.MethodTasksResult
	if name == names.Cancel {
		o.method = protocol.MethodTasksCancel
	}
	if a, ok := o.admit(ctx); !ok {
		return nil, a
	}
	id, ok := protocol.Unquote(protocol.Get(arguments, "ticket"))
	if !ok || id == "" {
		return nil, o.invalid(ctx, protocol.CodeInvalidParams, "Invalid arguments: ticket must be a non-empty string")
	}
	ref := task.Ref{Principal: o.from.Principal, ID: id}
	o.task = id
	if name == names.Cancel {
		return nil, o.cancelTicket(ctx, names, ref)
	}
	patience, err := waitSeconds(protocol.Get(arguments, "wait_seconds"), o.tickets.Patience)
	if err != nil {
		return nil, o.invalid(ctx, protocol.CodeInvalidParams, "Invalid arguments: wait_seconds must be a number, 0 or more")
	}
	return o.collect(ctx, s, ref, patience, params, false)
}

// waitSeconds reads how long a ticket_collect is to wait: not longer than the patience.
func waitSeconds(raw json.RawMessage, patience time.Duration) (time.Duration, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return patience, nil
	}
	seconds, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || !(seconds >= 0) {
		return 0, errors.New("no number of seconds")
	}
	const longest = 1e9
	wait := max(time.Duration(min(seconds, longest)*float64(time.Second)), time.Nanosecond)
	if patience > 0 {
		wait = min(wait, patience)
	}
	return wait, nil
}

func (o *operation) cancelTicket(ctx context.Context, names ticket.Names, ref task.Ref) Answer {
	t, err := o.engine.Cancel(engine.By(ctx, &o.from.Caller), ref)
	switch {
	case err == nil:
		o.about(ctx, t)
		o.letGo(ctx, t)
		return Answer{Result: names.Cancelled(ref.ID, true)}
	case errors.Is(err, task.ErrTerminal) && t.Status == task.Cancelled:
		return Answer{Result: names.Cancelled(ref.ID, false)}
	case errors.Is(err, task.ErrTerminal):
		return Answer{Result: names.Ended(ref.ID)}
	}
	return o.absent(ctx, names, err)
}

// maxListing is how many tickets are listed.
const maxListing = 20

// listTickets answers ticket_list.
func (o *operation) listTickets(ctx context.Context, names ticket.Names) Answer {
	tasks, more, err := o.engine.List(ctx, o.from.Principal, store.Position{}, maxListing)
	if err != nil {
		return o.failed(ctx, "list tickets", err)
	}
	all := make([]ticket.Listed, 0, len(tasks))
	for _, t := range tasks {
		whole, err := o.engine.Load(ctx, t.Ref)
		if err != nil {
			continue // it expired just now
		}
		all = append(all, ticket.Listed{
			Ticket: t.ID, Tool: toolOf(whole), Status: string(t.Status), Age: time.Since(t.CreatedAt), Progress: o.engine.ProgressOf(t.Ref),
		})
	}
	return Answer{Result: names.Listing(all, more)}
}

// Take is what becomes of a plain tools/call: a Call goes to the server, and may become a task;
// Do answers it, or begins to; without either it is not for tickets.
type Take struct {
	Call *Call
	Do   func(ctx context.Context) (*Collecting, Answer)
}

// Take says what becomes of a tools/call in a session.
func (r *Receiver) Take(ctx context.Context, from *Requestor, s *TicketSession, m *protocol.Message) Take {
	if !r.tickets.any() || m.Method != protocol.MethodToolsCall {
		return Take{}
	}
	name, ok := protocol.Unquote(protocol.Get(m.Params, "name"))
	if !ok {
		return Take{}
	}
	if protocol.Get(m.Params, "task") != nil {
		s.UsesTasks()
		return Take{}
	}
	if s == nil { // it began before this process did: what it was given is taken all the same
		s = &TicketSession{receiver: r, list: from.Identified}
		if !s.names().Has(name) {
			return Take{}
		}
	}
	o := r.begin(from, m.Method)
	o.tool = name
	if s.names().Has(name) {
		params := append(json.RawMessage(nil), m.Params...)
		return Take{Do: func(ctx context.Context) (*Collecting, Answer) { return o.ticketTool(ctx, s, name, params) }}
	}
	tool, ok := s.of(name)
	if !ok {
		return Take{}
	}
	if _, ok := r.allowed(from, m.Method); !ok || r.asks && engine.HostsAny(from.Initialize) {
		return Take{}
	}
	key := keptKey{principal: from.Principal}
	switch hash := ticket.Key(name, protocol.Get(m.Params, "arguments")); {
	case from.Identified:
		key.call = hash
	case from.Session != "":
		key.call = from.Session + "/" + hash
	}
	about, _ := s.about(name)
	params := append(json.RawMessage(nil), m.Params...)
	if key.call != "" {
		if ref, ok := r.joinable(ctx, key, about.Repeatable); ok {
			return Take{Do: func(ctx context.Context) (*Collecting, Answer) {
				return o.collect(ctx, s, ref, tool.Patience, params, true)
			}}
		}
	}
	if r.tools.ByName[name] == protocol.Required || about.required && r.declares() {
		return Take{Do: func(ctx context.Context) (*Collecting, Answer) {
			return o.runTicket(ctx, s, tool, task.Request{Method: m.Method, Params: params}, key)
		}}
	}
	return Take{Call: newCall(o, s, m, tool, key)}
}

// runTicket runs a call as a task from the start, because its server has it no other way
// (TOOL-4), and begins to wait for the outcome.
func (o *operation) runTicket(ctx context.Context, s *TicketSession, tool TicketTool, request task.Request, key keptKey) (*Collecting, Answer) {
	if a, ok := o.admit(ctx); !ok {
		return nil, a
	}
	t, err := o.createKept(ctx, engine.Creation{Caller: &o.from.Caller, Request: request, Unannounced: true}, key, false)
	if err != nil {
		return nil, o.failed(ctx, "create task", err)
	}
	if key.call != "" {
		o.kept.add(key, keptTask{ref: t.Ref})
	}
	c, a := o.collect(ctx, s, t.Ref, tool.Patience, request.Params, false)
	if c != nil {
		c.own, c.cancelLost = true, tool.CancelLost
	}
	return c, a
}
