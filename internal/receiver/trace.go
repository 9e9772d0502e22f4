package receiver

import (
	"context"
	"encoding/json"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/coatcheck/coatcheck/internal/telemetry"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

func newTracer(provider trace.TracerProvider) trace.Tracer {
	if provider == nil {
		return nil
	}
	return provider.Tracer(telemetry.Scope)
}

// trace begins the span of a request, in the trace that it names. One about a task links to
// the span of the task's work, which is likely to be of another trace. Without a tracer the
// span is nil.
func (r *Receiver) trace(ctx context.Context, from *Requestor, method string, id, params json.RawMessage) (context.Context, trace.Span) {
	if r.tracer == nil {
		return ctx, nil
	}
	ctx, beside := telemetry.Extract(ctx, params, from.Header)
	attributes := []attribute.KeyValue{telemetry.AttrMethod.String(method)}
	var tool string
	var links []trace.Link
	if beside.IsValid() {
		links = append(links, trace.Link{SpanContext: beside})
	}
	if method == protocol.MethodToolsCall {
		tool, _ = protocol.Unquote(protocol.Get(params, "name"))
		attributes = append(attributes, telemetry.AttrOperation.String("execute_tool"))
	} else if about, _ := protocol.Unquote(protocol.Get(params, "taskId")); about != "" {
		origin := r.engine.Origin(task.Ref{Principal: from.Principal, ID: about})
		tool = origin.Tool
		attributes = append(attributes, telemetry.AttrTask.String(telemetry.Bounded(about)))
		if origin.Span.IsValid() {
			links = append(links, trace.Link{SpanContext: origin.Span})
		}
	}
	name := method
	if tool != "" {
		tool = telemetry.Bounded(tool)
		name += " " + tool
		attributes = append(attributes, telemetry.AttrTool.String(tool))
	}
	if from.Session != "" {
		attributes = append(attributes, telemetry.AttrSession.String(from.Session))
	}
	if id != nil {
		attributes = append(attributes, telemetry.AttrRequestID.String(telemetry.Bounded(requestID(id))))
	}
	return r.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attributes...), trace.WithLinks(links...))
}

// requestID is a request's id as an attribute has it: a string without its quotes.
func requestID(id json.RawMessage) string {
	if text, ok := protocol.Unquote(id); ok {
		return text
	}
	return string(id)
}

// traced notes on a request's span what it was answered with: never what an error says, which
// may be a tool's.
func traced(span trace.Span, a Answer) {
	if span == nil || a.Error == nil {
		return
	}
	code := string(protocol.Get(a.Error, "code"))
	span.SetAttributes(telemetry.AttrErrorType.String(code), telemetry.AttrResponseCode.String(code))
	span.SetStatus(codes.Error, "")
}

func endSpan(span trace.Span) {
	if span != nil {
		span.End()
	}
}

// about notes on the span of ctx which task the request is about, and what became of it.
func (o *operation) about(ctx context.Context, t *task.Task) {
	if o.tracer != nil {
		trace.SpanFromContext(ctx).SetAttributes(telemetry.AttrTask.String(t.ID), telemetry.AttrStatus.String(string(t.Status)))
	}
}
