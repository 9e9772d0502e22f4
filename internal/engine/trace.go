package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/coatcheck/coatcheck/internal/telemetry"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// maxOrigins bounds how many tasks that are over can still be linked to.
const maxOrigins = 10_000

// Origin is what the spans about a task know of its work.
type Origin struct {
	Tool string            // that it calls, if it calls one
	Span trace.SpanContext // of its work; not valid if that is not known here
}

// tracing makes the spans of tasks. A nil *tracing makes none.
type tracing struct {
	tracer trace.Tracer

	mu    sync.Mutex
	over  map[task.Ref]Origin
	order []task.Ref // of over, the oldest first, from next on
	next  int
}

func newTracing(provider trace.TracerProvider) *tracing {
	if provider == nil {
		return nil
	}
	return &tracing{tracer: provider.Tracer(telemetry.Scope), over: map[task.Ref]Origin{}}
}

// Origin returns what is known of the work of a task that this process runs, or ran not long
// ago.
func (e *Engine) Origin(ref task.Ref) Origin {
	if e.tracing == nil {
		return Origin{}
	}
	if l := e.liveTask(ref); l != nil {
		return l.origin()
	}
	e.tracing.mu.Lock()
	defer e.tracing.mu.Unlock()
	return e.tracing.over[ref]
}

func (l *live) origin() Origin {
	o := Origin{Tool: l.tool}
	if span := l.span.Load(); span != nil {
		o.Span = (*span).SpanContext()
	}
	return o
}

// begin begins the span of a task's work, which lasts from here to the task's end. That of a
// task that is taken over is in the trace that its request names.
func (t *tracing) begin(l *live) {
	if t == nil {
		return
	}
	ctx := l.ctx
	if l.job.Caller == nil { // taken over
		ctx, _ = telemetry.Extract(context.Background(), l.job.Request.Params, nil)
	}
	tool := telemetry.Bounded(l.tool)
	name := cmp.Or(tool, l.job.Request.Method)
	_, span := t.tracer.Start(ctx, "run "+name, trace.WithAttributes(telemetry.AttrTask.String(l.ref.ID), telemetry.AttrMethod.String(l.job.Request.Method)))
	if tool != "" {
		span.SetAttributes(telemetry.AttrOperation.String("execute_tool"), telemetry.AttrTool.String(tool))
	}
	l.span.Store(&span)
}

// work returns the context of a task's work, in its span, and its request as it is to be run,
// which names that span.
func (l *live) work(request task.Request) (context.Context, task.Request) {
	span := l.span.Load()
	if span == nil {
		return l.ctx, request
	}
	(*span).AddEvent("started")
	ctx := trace.ContextWithSpan(l.ctx, *span)
	request.Params = telemetry.Inject(ctx, request.Params)
	return ctx, request
}

// end ends the span of a task that is over: ended, expired, or nil and no error if another
// process has it now.
func (t *tracing) end(l *live, final *task.Task, err error) {
	at := l.span.Load()
	if at == nil {
		return
	}
	span := *at
	switch {
	case final != nil:
		span.SetAttributes(telemetry.AttrStatus.String(string(final.Status)))
		if final.Status == task.Failed {
			fail(span, final.Outcome)
		}
	case errors.Is(err, store.ErrExpired):
		span.SetAttributes(telemetry.AttrErrorType.String("expired"))
		span.SetStatus(codes.Error, "")
	default:
		span.SetAttributes(telemetry.AttrErrorType.String("lost"))
	}
	span.End()
	t.remember(l.ref, l.origin())
}

// remember keeps what polls of a task that is over link to.
func (t *tracing) remember(ref task.Ref, o Origin) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.order) < maxOrigins {
		t.order = append(t.order, ref)
	} else {
		delete(t.over, t.order[t.next])
		t.order[t.next] = ref
		t.next = (t.next + 1) % maxOrigins
	}
	t.over[ref] = o
}

// fail marks a span as failed, without a word of what the outcome says.
func fail(span trace.Span, outcome *task.Outcome) {
	kind := "tool_error"
	if outcome != nil && outcome.Error != nil {
		kind = "_OTHER"
		var wire protocol.Error
		if json.Unmarshal(outcome.Error, &wire) == nil {
			kind = telemetry.Code(wire.Code)
			span.SetAttributes(telemetry.AttrResponseCode.String(kind))
		}
	}
	span.SetAttributes(telemetry.AttrErrorType.String(kind))
	span.SetStatus(codes.Error, "")
}

// ask begins the span of a question, which lasts until it is closed.
func (t *tracing) ask(l *live, q *openQuestion) {
	at := l.span.Load()
	if at == nil {
		return
	}
	_, q.span = t.tracer.Start(trace.ContextWithSpan(l.ctx, *at), q.input.Method, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(telemetry.AttrMethod.String(q.input.Method), telemetry.AttrTask.String(l.ref.ID)))
	if l.tool != "" {
		q.span.SetAttributes(telemetry.AttrTool.String(telemetry.Bounded(l.tool)))
	}
}

// answered ends the span of a question.
func (q *openQuestion) answered(answer task.Outcome) {
	if q.span == nil {
		return
	}
	if answer.Error != nil {
		fail(q.span, &answer)
	}
	q.span.End()
}

// dropped ends the span of a question that nobody waits for the answer to any more.
func (q *openQuestion) dropped() {
	if q.span != nil {
		q.span.SetAttributes(telemetry.AttrErrorType.String("unanswered"))
		q.span.End()
	}
}
