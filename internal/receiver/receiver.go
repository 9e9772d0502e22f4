// Package receiver is the receiver's half of the protocol: it turns task messages of
// revision 2025-11-25 into calls of the engine, and what comes back into answers.
package receiver

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// Options configures a Receiver. Engine is required.
type Options struct {
	Engine *engine.Engine
	Tools  Tools
	// Requests says which requests beside tools/call run as tasks, by method. Required
	// refuses a plain one (CAP-6).
	Requests map[string]protocol.TaskSupport
	// Immediate is how long the answer to a create may wait, by tool, for what the tool has
	// to say to the model for now (CRE-4).
	Immediate map[string]time.Duration
	Asks      bool // the handlers of plain calls are in this process, and take them with engine.TakePlain
	// Scopes says which scopes, separated by spaces, a token must have for an operation.
	Scopes   map[Operation]string
	Limits   *limit.Policy // of requestors; default those of package limit
	Audit    audit.Sink    // takes what is refused; default none
	Tickets  Tickets       // default none
	PageSize int           // tasks in a page of tasks/list; default 50
	Logger   *slog.Logger  // default: discards

	TracerProvider trace.TracerProvider // of the spans of requests; default none
}

// Receiver answers task messages. Its methods may be called concurrently.
type Receiver struct {
	engine   *engine.Engine
	tools    Tools
	requests map[string]protocol.TaskSupport
	waits    map[string]time.Duration // for the immediate response, by tool
	asks     bool
	scopes   map[Operation]string
	pageSize int
	limits   *limit.Policy
	rates    *rates
	tickets  Tickets
	kept     *keptWork
	prefixes atomic.Int32 // of the ticket tools: the server has tools with their names
	audit    audit.Sink
	tracer   trace.Tracer // nil for none
	log      *slog.Logger
}

// New returns a Receiver.
func New(opts Options) *Receiver {
	r := &Receiver{engine: opts.Engine, tools: opts.Tools, requests: opts.Requests, waits: opts.Immediate, asks: opts.Asks, scopes: opts.Scopes, pageSize: opts.PageSize, limits: opts.Limits, rates: newRates(), tickets: opts.Tickets.withDefaults(), kept: newKeptWork(), audit: opts.Audit, tracer: newTracer(opts.TracerProvider), log: opts.Logger}
	if r.pageSize <= 0 {
		r.pageSize = 50
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	return r
}

// Requestor is who sent a message. One that is not Identified has no tasks/list (SEC-4).
type Requestor struct {
	engine.Caller
	// Connection says that all streams of the session are one connection, as over stdio.
	Connection bool
}

// Answer is the result or the error object of a response; one of them is set.
type Answer struct {
	Result, Error json.RawMessage
	// Over HTTP a refusal says more: RetryAfter, if it is not 0, is when to try again (429;
	// negative: nobody knows when), and Scope the scopes that the token lacks (403).
	RetryAfter time.Duration
	Scope      string
}

// Append appends the answer as a response to the request with the given id.
func (a Answer) Append(dst []byte, id json.RawMessage) []byte {
	if a.Error != nil {
		return protocol.AppendError(dst, id, a.Error)
	}
	return protocol.AppendResult(dst, id, a.Result)
}

func refuse(code int64, format string, args ...any) Answer {
	return Answer{Error: protocol.Errorf(code, format, args...).JSON()}
}

// Takes reports whether a call is for the receiver. Any other goes to the server as it is.
func (r *Receiver) Takes(m *protocol.Message) bool {
	if !r.declares() {
		return false // nothing declared: params.task is ignored (CAP-5)
	}
	switch m.Method {
	case protocol.MethodTasksGet, protocol.MethodTasksResult, protocol.MethodTasksCancel, protocol.MethodTasksList:
		return true
	case protocol.MethodToolsCall:
		members, _ := protocol.Members(m.Params)
		augmented, required := false, false
		for _, p := range members {
			switch p.Key {
			case "task":
				augmented = true
			case "name":
				name, _ := protocol.Unquote(p.Value)
				required = r.tools.ByName[name] == protocol.Required
			}
		}
		return augmented || required
	}
	switch r.requests[m.Method] {
	case protocol.Required:
		return true
	case protocol.Optional:
		return protocol.Get(m.Params, "task") != nil
	}
	return false
}

// declares reports whether anything may run as a task.
func (r *Receiver) declares() bool { return r.tools.Any() || len(r.requests) > 0 }

// Handle answers a call that Takes reported. It blocks only for tasks/result, until the
// task is terminal or ctx is done; then the Answer is empty and err is ctx's. Result tells more.
func (r *Receiver) Handle(ctx context.Context, from *Requestor, m *protocol.Message) (Answer, error) {
	if m.Method == protocol.MethodTasksResult {
		waiting, a := r.Result(ctx, from, m)
		if waiting == nil {
			return a, nil
		}
		defer waiting.Close()
		return waiting.Outcome(ctx)
	}
	ctx, span := r.trace(ctx, from, m.Method, m.ID, m.Params)
	defer endSpan(span)
	a, err := r.handle(ctx, from, m)
	traced(span, a)
	return a, err
}

func (r *Receiver) handle(ctx context.Context, from *Requestor, m *protocol.Message) (Answer, error) {
	o := r.begin(from, m.Method)
	switch m.Method {
	case protocol.MethodToolsCall:
		o.tool, _ = protocol.Unquote(protocol.Get(m.Params, "name"))
	case protocol.MethodTasksGet, protocol.MethodTasksCancel, protocol.MethodTasksList:
	default:
		if _, ours := r.requests[m.Method]; !ours {
			return refuse(protocol.CodeMethodNotFound, "Method not found: %s", m.Method), nil
		}
	}
	if a, ok := o.admit(ctx); !ok {
		return a, nil
	}
	switch m.Method {
	case protocol.MethodTasksGet:
		return o.get(ctx, m.Params)
	case protocol.MethodTasksCancel:
		return o.cancel(ctx, m.Params), nil
	case protocol.MethodTasksList:
		return o.list(ctx, m.Params), nil
	case protocol.MethodToolsCall:
		return o.callTool(ctx, m), nil
	}
	return o.request(ctx, m), nil
}

// Result begins to answer tasks/result. If that needs no waiting it returns the answer, and
// nil; else Close must be called.
func (r *Receiver) Result(ctx context.Context, from *Requestor, m *protocol.Message) (*Waiting, Answer) {
	ctx, span := r.trace(ctx, from, m.Method, m.ID, m.Params)
	waiting, a := r.outcome(ctx, from, m.Params)
	if waiting != nil {
		waiting.span = span
		return waiting, a
	}
	traced(span, a)
	endSpan(span)
	return nil, a
}

func (r *Receiver) outcome(ctx context.Context, from *Requestor, params json.RawMessage) (*Waiting, Answer) {
	o := r.begin(from, protocol.MethodTasksResult)
	if a, ok := o.admit(ctx); !ok {
		return nil, a
	}
	ref, bad := o.refOf(ctx, params)
	if bad != nil {
		return nil, *bad
	}
	t, err := r.engine.Result(ctx, ref)
	if err != nil || t.Status.Terminal() {
		return nil, o.result(ctx, t, err)
	}
	if !r.rates.waits.enter(o.who, o.limits.Waits) {
		return nil, o.exceeded(ctx, &engine.LimitError{Limit: "waits", RetryAfter: max(time.Second, t.PollInterval), Message: tooOften["waits"]})
	}
	return &Waiting{operation: o, ref: ref}, Answer{}
}

func (o *operation) get(ctx context.Context, params json.RawMessage) (Answer, error) {
	ref, bad := o.refOf(ctx, params)
	if bad != nil {
		return *bad, nil
	}
	t, slowed, err := o.engine.Poll(ctx, ref)
	if slowed {
		o.record(ctx, audit.Event{Kind: audit.Refused, Reason: audit.OverLimit, Limit: "polls"})
	}
	if err != nil && ctx.Err() != nil {
		return Answer{}, ctx.Err()
	}
	if err != nil {
		return o.failed(ctx, "retrieve task", err), nil
	}
	o.about(ctx, t)
	wire := wireTask(t)
	return Answer{Result: wire.AppendJSON(make([]byte, 0, 320))}, nil
}

func (o *operation) cancel(ctx context.Context, params json.RawMessage) Answer {
	ref, bad := o.refOf(ctx, params)
	if bad != nil {
		return *bad
	}
	t, err := o.engine.Cancel(engine.By(ctx, &o.from.Caller), ref)
	switch {
	case err == nil:
		o.about(ctx, t)
		wire := wireTask(t)
		return Answer{Result: wire.AppendJSON(nil)}
	case errors.Is(err, task.ErrTerminal):
		return o.invalid(ctx, protocol.CodeInvalidParams, "Cannot cancel task: already in terminal status '%s'", t.Status) // CAN-1
	}
	return o.failed(ctx, "cancel task", err)
}

// result answers tasks/result with what the task's request was answered with (RES-1), and
// the related-task metadata added (RES-3).
func (o *operation) result(ctx context.Context, t *task.Task, err error) Answer {
	if err != nil {
		return o.failed(ctx, "retrieve task", err)
	}
	if t.Status != task.Cancelled && t.Outcome == nil {
		return o.failed(ctx, "retrieve task", errNoOutcome)
	}
	o.about(ctx, t)
	o.record(ctx, audit.Event{Kind: audit.Retrieved, Status: t.Status, Tool: toolOf(t)})
	switch {
	case t.Status == task.Cancelled: // requirements C.2
		return refuse(protocol.CodeRequestCancelled, "Request cancelled: %s", t.StatusMessage)
	case t.Outcome.Error != nil:
		return Answer{Error: t.Outcome.Error}
	}
	marked, err := protocol.SetMeta(t.Outcome.Result, protocol.MetaRelatedTask, protocol.RelatedTask(t.ID))
	if err != nil {
		marked = t.Outcome.Result // no object: nowhere to put the metadata
	}
	return Answer{Result: marked}
}

func toolOf(t *task.Task) string {
	if t.Request.Method != protocol.MethodToolsCall {
		return ""
	}
	name, _ := protocol.Unquote(protocol.Get(t.Request.Params, "name"))
	return name
}

// refOf reads params.taskId, which alone names the task (REL-2).
func (o *operation) refOf(ctx context.Context, params json.RawMessage) (task.Ref, *Answer) {
	id, ok := protocol.Unquote(protocol.Get(params, "taskId"))
	if !ok || id == "" {
		a := o.invalid(ctx, protocol.CodeInvalidParams, "Invalid params: taskId must be a non-empty string")
		return task.Ref{}, &a
	}
	o.task = id
	return task.Ref{Principal: o.from.Principal, ID: id}, nil
}

// wireTask is the task as its requestor sees it.
func wireTask(t *task.Task) protocol.Task {
	wire := protocol.Task{
		TaskID:        t.ID,
		Status:        string(t.Status),
		StatusMessage: t.StatusMessage,
		CreatedAt:     t.CreatedAt,
		LastUpdatedAt: t.UpdatedAt,
	}
	if t.TTL != 0 {
		ms := t.TTL.Milliseconds()
		wire.TTL = &ms
	}
	if t.PollInterval > 0 {
		ms := t.PollInterval.Milliseconds()
		wire.PollInterval = &ms
	}
	return wire
}
