package receiver

import (
	"context"
	"encoding/json"
	"errors"

	"go.opentelemetry.io/otel/trace"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// Message is a request or notification about a task, on its way to the requestor.
type Message struct {
	ID     string // of a request; "" for a notification
	Method string
	Params json.RawMessage
}

// Append appends the message as JSON-RPC.
func (m Message) Append(dst []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0",`...)
	if m.ID != "" {
		dst = append(dst, `"id":`...)
		dst = append(protocol.AppendString(dst, m.ID), ',')
	}
	dst = append(dst, `"method":`...)
	dst = protocol.AppendString(dst, m.Method)
	dst = append(dst, `,"params":`...)
	dst = append(dst, m.Params...)
	return append(dst, '}')
}

// message is an event as its requestor is told of it: marked as the task's (INP-2, REL-1,
// REL-4), whatever mark the server gave it, except for a change of status (NOT-3).
func message(ev engine.Event) Message {
	if ev.State != nil {
		wire := wireTask(ev.State)
		return Message{Method: ev.Method, Params: wire.AppendJSON(nil)}
	}
	switch ev.Method {
	case protocol.MethodTasksGet, protocol.MethodTasksResult, protocol.MethodTasksCancel, protocol.MethodTasksList: // REL-2
		return Message{ID: ev.Ask, Method: ev.Method, Params: ev.Params}
	}
	if !ev.OfTask() {
		return Message{ID: ev.Ask, Method: ev.Method, Params: ev.Params}
	}
	marked, err := protocol.SetMeta(ev.Params, protocol.MetaRelatedTask, protocol.RelatedTask(ev.Task))
	if err != nil { // no params, or none that could carry it
		marked, _ = protocol.SetMeta([]byte("{}"), protocol.MetaRelatedTask, protocol.RelatedTask(ev.Task))
	}
	return Message{ID: ev.Ask, Method: ev.Method, Params: marked}
}

func (from *Requestor) listener() engine.Listener {
	return engine.Listener{
		Principal: from.Principal, Session: from.Session, Identified: from.Identified, Connection: from.Connection, Initialize: from.Initialize,
	}
}

// Waiting is a tasks/result call that waits for its task's end.
type Waiting struct {
	*operation
	ref        task.Ref
	span       trace.Span         // nil for none
	attendance *engine.Attendance // set once something is to be sent beside the answer
}

// Next returns what is to be sent next on a stream that can carry more than the answer: a
// message, or at last the answer, when last is true. Calling it says that the message it
// returned before was sent. The error is ctx's; Next may be called again after it.
func (w *Waiting) Next(ctx context.Context) (m Message, a Answer, last bool, err error) {
	if w.attendance == nil {
		w.attendance = w.engine.Attend(w.ref.ID, w.from.listener())
	}
	ev, t, err := w.attendance.Next(ctx)
	switch {
	case err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return Message{}, Answer{}, false, err
	case err != nil || t != nil:
		return Message{}, w.answer(ctx, t, err), true, nil
	}
	return message(ev), Answer{}, false, nil
}

// Outcome returns the answer alone. The error is ctx's.
func (w *Waiting) Outcome(ctx context.Context) (Answer, error) {
	t, err := w.engine.Await(ctx, w.ref)
	if ctx.Err() != nil {
		return Answer{}, ctx.Err()
	}
	return w.answer(ctx, t, err), nil
}

func (w *Waiting) answer(ctx context.Context, t *task.Task, err error) Answer {
	if w.span != nil {
		ctx = trace.ContextWithSpan(ctx, w.span)
	}
	a := w.result(ctx, t, err)
	traced(w.span, a)
	return a
}

// Close ends the waiting; the task goes on (GET-5).
func (w *Waiting) Close() {
	if w.attendance != nil {
		w.attendance.Close()
	}
	w.rates.waits.leave(w.who)
	endSpan(w.span)
}

// Outlet is a stream that belongs to a session, not to a call.
type Outlet struct{ outlet *engine.Outlet }

// Outlet opens the stream of a requestor's session. Close must be called.
func (r *Receiver) Outlet(from *Requestor) *Outlet {
	return &Outlet{r.engine.Outlet(from.listener())}
}

// Next returns what is to be sent next, as Waiting.Next does.
func (o *Outlet) Next(ctx context.Context) (Message, error) {
	ev, err := o.outlet.Next(ctx)
	if err != nil {
		return Message{}, err
	}
	return message(ev), nil
}

// Close ends the stream.
func (o *Outlet) Close() { o.outlet.Close() }

// IsAnswer reports whether the id of a response is that of a question of ours.
func IsAnswer(id json.RawMessage) bool {
	s, ok := protocol.Unquote(id)
	return ok && engine.IsAsk(s)
}

// Complaint is the log message that says why an answer was refused, where that cannot be said
// in reply to it.
func Complaint(id string, refused json.RawMessage) Message {
	params := protocol.Marshal(struct {
		Level  string          `json:"level"`
		Logger string          `json:"logger"`
		Data   json.RawMessage `json:"data"`
	}{"error", "coatcheck", protocol.Get(refused, "message")})
	if about := engine.AskedBy(id); about != "" {
		params, _ = protocol.SetMeta(params, protocol.MetaRelatedTask, protocol.RelatedTask(about))
	}
	return Message{Method: protocol.MethodLogMessage, Params: params}
}

// Accept takes the response to a question of ours. What is refused (ok is false) is not an
// answer, or comes too late; an answer that comes twice is fine, and changes nothing.
func (r *Receiver) Accept(ctx context.Context, from *Requestor, id string, answer task.Outcome) (refused Answer, ok bool) {
	o := r.begin(from, answering)
	o.task = engine.AskedBy(id)
	if a, ok := o.admit(ctx); !ok {
		return a, false
	}
	t, err := r.engine.Answer(engine.By(ctx, &from.Caller), from.Principal, id, answer)
	switch {
	case err == nil:
		return Answer{}, true
	case errors.Is(err, engine.ErrOver):
		r.engine.Disown(from.listener(), answer)
		return Answer{}, true
	case errors.Is(err, task.ErrTerminal):
		r.engine.Disown(from.listener(), answer)
		return o.invalid(ctx, protocol.CodeInvalidParams, "The answer comes too late: the task is in terminal status '%s': %s", t.Status, t.StatusMessage), false
	}
	return o.failed(ctx, "answer", err), false
}
