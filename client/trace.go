package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/coatcheck/coatcheck/internal/telemetry"
	"github.com/coatcheck/coatcheck/protocol"
)

// tracerName is the scope of the spans.
const tracerName = "github.com/coatcheck/coatcheck/client"

// The attributes of OpenTelemetry's conventions for MCP, which are in development: its Go
// module had them in two versions only. For tasks they have no words yet.
const (
	attrMethod       = attribute.Key("mcp.method.name")
	attrVersion      = attribute.Key("mcp.protocol.version")
	attrOperation    = attribute.Key("gen_ai.operation.name")
	attrTool         = attribute.Key("gen_ai.tool.name")
	attrRequestID    = attribute.Key("jsonrpc.request.id")
	attrResponseCode = attribute.Key("rpc.response.status_code")
	attrErrorType    = attribute.Key("error.type")
	attrAddress      = attribute.Key("server.address")
	attrPort         = attribute.Key("server.port")

	attrTask   = attribute.Key("coatcheck.task.id")
	attrStatus = attribute.Key("coatcheck.task.status")
)

// tracing makes a session's spans.
type tracing struct {
	tracer trace.Tracer
	common []attribute.KeyValue // of each span
}

func newTracing(provider trace.TracerProvider, transport mcp.Transport, version string) tracing {
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	tr := tracing{tracer: provider.Tracer(tracerName), common: []attribute.KeyValue{attrVersion.String(version)}}
	if u, err := url.Parse(serverName(transport, nil)); err == nil && u.Hostname() != "" {
		tr.common = append(tr.common, attrAddress.String(u.Hostname()))
		if port, err := strconv.Atoi(u.Port()); err == nil {
			tr.common = append(tr.common, attrPort.Int(port))
		}
	}
	return tr
}

// origin is what the spans about a task know of the call that made it.
type origin struct {
	tool string
	span trace.SpanContext
}

// originOf reads the origin of a call from its params: those that a ledger kept, too.
func originOf(params json.RawMessage) origin {
	tool, _ := protocol.Unquote(protocol.Get(params, "name"))
	ctx := propagation.TraceContext{}.Extract(context.Background(), telemetry.Meta(params))
	return origin{tool, trace.SpanContextFromContext(ctx)}
}

// withTrace returns params with the trace context of ctx, if there is one. One that the
// caller has put there stays.
func withTrace(ctx context.Context, params json.RawMessage) json.RawMessage {
	if telemetry.Meta(params).Get("traceparent") != "" {
		return params
	}
	return telemetry.Inject(ctx, params)
}

// call sends a request, within a span of its own.
func (s *Session) call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	ctx, span := s.begin(ctx, method, params)
	result, err := s.conn.call(ctx, method, withTrace(ctx, params))
	span.end(result, err)
	return result, err
}

// span is that of one request.
type span struct {
	trace.Span
	method string
}

// begin begins the span of a request. One about a task that is followed here links to the
// call that made the task, which is likely to be of another trace.
func (s *Session) begin(ctx context.Context, method string, params json.RawMessage) (context.Context, *span) {
	attributes := append(slices.Clip(s.tracing.common), attrMethod.String(method))
	var of origin
	if method == protocol.MethodToolsCall {
		of.tool, _ = protocol.Unquote(protocol.Get(params, "name"))
		attributes = append(attributes, attrOperation.String("execute_tool"))
	} else if task, _ := protocol.Unquote(protocol.Get(params, "taskId")); task != "" {
		of = s.origin(task)
		attributes = append(attributes, attrTask.String(task))
	}
	name := method
	if of.tool != "" {
		name += " " + of.tool
		attributes = append(attributes, attrTool.String(of.tool))
	}
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...)}
	if of.span.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: of.span}))
	}
	ctx, started := s.tracing.tracer.Start(ctx, name, opts...)
	return ctx, &span{started, method}
}

// origin returns the origin of a task that is followed here.
func (s *Session) origin(id string) origin {
	for _, t := range s.following(id) {
		if t.origin.tool != "" {
			return t.origin
		}
	}
	return origin{}
}

// end ends the span with what the request was answered with.
func (s *span) end(result json.RawMessage, err error) {
	defer s.End()
	if !s.IsRecording() {
		return
	}
	task := result
	switch s.method {
	case protocol.MethodToolsCall:
		task = protocol.Get(result, "task")
		s.failedAsTool(result)
	case protocol.MethodTasksResult:
		task = nil
		s.failedAsTool(result)
	}
	if state, unreadable := readState(task); unreadable == nil {
		s.SetAttributes(attrTask.String(state.ID), attrStatus.String(string(state.Status)))
	}
	if err != nil {
		s.failed(err)
	}
}

func (s *span) failedAsTool(result json.RawMessage) {
	if string(protocol.Get(result, "isError")) == "true" {
		s.SetAttributes(attrErrorType.String("tool_error"))
		s.SetStatus(codes.Error, "")
	}
}

// failed marks the span as failed, unless it is the requestor who gave up.
func (s *span) failed(err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, ErrCancelled) || errors.Is(err, ErrDetached) {
		return
	}
	kind, message := "_OTHER", err.Error()
	if wire, ok := errors.AsType[*jsonrpc.Error](err); ok {
		kind, message = strconv.FormatInt(wire.Code, 10), wire.Message
		s.SetAttributes(attrResponseCode.String(kind))
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		kind = "timeout"
	case errors.Is(err, ErrProtocol):
		kind = "protocol"
	case errors.Is(err, ErrClosed):
		kind = "closed"
	}
	s.SetAttributes(attrErrorType.String(kind))
	s.SetStatus(codes.Error, message)
}

// untraced returns a context for what goes on in the background: it is no part of the trace
// that happened to begin it, and outlives it.
func untraced(ctx context.Context) context.Context {
	return trace.ContextWithSpanContext(context.WithoutCancel(ctx), trace.SpanContext{})
}
