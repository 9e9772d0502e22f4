// Package receiver is the receiver's half of the protocol: it turns task messages of
// revision 2025-11-25 into calls of the engine, and what comes back into answers.
package receiver

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

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
	PageSize int           // tasks in a page of tasks/list; default 50
	Logger   *slog.Logger  // default: discards
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
	log      *slog.Logger
}

// New returns a Receiver.
func New(opts Options) *Receiver {
	r := &Receiver{engine: opts.Engine, tools: opts.Tools, requests: opts.Requests, waits: opts.Immediate, asks: opts.Asks, scopes: opts.Scopes, pageSize: opts.PageSize, log: opts.Logger}
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
// task is terminal or ctx is done; then the Answer is empty and err is ctx's. Wait tells more.
func (r *Receiver) Handle(ctx context.Context, from *Requestor, m *protocol.Message) (Answer, error) {
	if a, ok := r.allowed(from, m); !ok {
		return a, nil
	}
	switch m.Method {
	case protocol.MethodTasksGet:
		return r.get(ctx, from, m.Params), nil
	case protocol.MethodTasksCancel:
		return r.cancel(ctx, from, m.Params), nil
	case protocol.MethodTasksList:
		return r.list(ctx, from, m.Params), nil
	case protocol.MethodToolsCall:
		return r.callTool(ctx, from, m), nil
	case protocol.MethodTasksResult:
		if a, ready := r.Ready(ctx, from, m.Params); ready {
			return a, nil
		}
		ref, _ := refOf(from, m.Params)
		t, err := r.engine.Await(ctx, ref)
		if ctx.Err() != nil {
			return Answer{}, ctx.Err()
		}
		return r.result(t, err), nil
	}
	if _, ours := r.requests[m.Method]; ours {
		return r.request(ctx, from, m), nil
	}
	return refuse(protocol.CodeMethodNotFound, "Method not found: %s", m.Method), nil
}

// Ready answers tasks/result if that needs no waiting.
func (r *Receiver) Ready(ctx context.Context, from *Requestor, params json.RawMessage) (a Answer, ready bool) {
	if a, ok := r.allowed(from, &protocol.Message{Method: protocol.MethodTasksResult}); !ok {
		return a, true
	}
	ref, bad := refOf(from, params)
	if bad != nil {
		return Answer{Error: bad.JSON()}, true
	}
	t, err := r.engine.Result(ctx, ref)
	if err == nil && !t.Status.Terminal() {
		return Answer{}, false
	}
	return r.result(t, err), true
}

func (r *Receiver) get(ctx context.Context, from *Requestor, params json.RawMessage) Answer {
	ref, bad := refOf(from, params)
	if bad != nil {
		return Answer{Error: bad.JSON()}
	}
	t, err := r.engine.Get(ctx, ref)
	if err != nil {
		return r.failed("retrieve task", err)
	}
	wire := wireTask(t)
	return Answer{Result: wire.AppendJSON(make([]byte, 0, 320))}
}

func (r *Receiver) cancel(ctx context.Context, from *Requestor, params json.RawMessage) Answer {
	ref, bad := refOf(from, params)
	if bad != nil {
		return Answer{Error: bad.JSON()}
	}
	t, err := r.engine.Cancel(ctx, ref)
	switch {
	case err == nil:
		wire := wireTask(t)
		return Answer{Result: wire.AppendJSON(nil)}
	case errors.Is(err, task.ErrTerminal):
		return refuse(protocol.CodeInvalidParams, "Cannot cancel task: already in terminal status '%s'", t.Status) // CAN-1
	}
	return r.failed("cancel task", err)
}

// result answers tasks/result with what the task's request was answered with (RES-1), and
// the related-task metadata added (RES-3).
func (r *Receiver) result(t *task.Task, err error) Answer {
	if err != nil {
		return r.failed("retrieve task", err)
	}
	switch {
	case t.Status == task.Cancelled: // requirements C.2
		return refuse(protocol.CodeRequestCancelled, "Request cancelled: %s", t.StatusMessage)
	case t.Outcome == nil:
		return r.failed("retrieve task", errNoOutcome)
	case t.Outcome.Error != nil:
		return Answer{Error: t.Outcome.Error}
	}
	marked, err := protocol.SetMeta(t.Outcome.Result, protocol.MetaRelatedTask, protocol.RelatedTask(t.ID))
	if err != nil {
		marked = t.Outcome.Result // no object: nowhere to put the metadata
	}
	return Answer{Result: marked}
}

// refOf reads params.taskId, which alone names the task (REL-2).
func refOf(from *Requestor, params json.RawMessage) (task.Ref, *protocol.Error) {
	raw := protocol.Get(params, "taskId")
	id, ok := protocol.Unquote(raw)
	if !ok || id == "" {
		return task.Ref{}, protocol.Errorf(protocol.CodeInvalidParams, "Invalid params: taskId must be a non-empty string")
	}
	return task.Ref{Principal: from.Principal, ID: id}, nil
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
