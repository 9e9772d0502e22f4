package telemetry

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/coatcheck/coatcheck/protocol"
)

// Attributes of spans: those of OpenTelemetry's conventions for MCP, and our own where they
// have no words.
const (
	AttrMethod       = keyMethod
	AttrTool         = keyTool
	AttrOperation    = attribute.Key("gen_ai.operation.name")
	AttrSession      = attribute.Key("mcp.session.id")
	AttrRequestID    = attribute.Key("jsonrpc.request.id")
	AttrResponseCode = attribute.Key("rpc.response.status_code")
	AttrErrorType    = keyError
	AttrTask         = attribute.Key("coatcheck.task.id")
	AttrStatus       = keyStatus
)

// Meta reads what carries trace contexts in MCP: the members traceparent and tracestate of
// params._meta (SEP-414). It is a request's params.
type Meta json.RawMessage

var _ propagation.TextMapCarrier = Meta{}

// Get implements propagation.TextMapCarrier.
func (m Meta) Get(key string) string {
	value, _ := protocol.Unquote(protocol.Get(protocol.Get(m, "_meta"), key))
	return value
}

// Set implements propagation.TextMapCarrier. It does nothing.
func (Meta) Set(string, string) {}

// Keys implements propagation.TextMapCarrier.
func (Meta) Keys() []string { return nil }

// Extract returns ctx in the trace that a request's params name, or else that of ctx itself, or
// else that which the headers of its HTTP request name. beside is that of ctx, if the params
// name another.
func Extract(ctx context.Context, params json.RawMessage, header http.Header) (_ context.Context, beside trace.SpanContext) {
	ambient := trace.SpanContextFromContext(ctx)
	from := propagation.TraceContext{}.Extract(context.Background(), Meta(params))
	if named := trace.SpanContextFromContext(from); named.IsValid() {
		return trace.ContextWithRemoteSpanContext(ctx, named), ambient
	}
	if !ambient.IsValid() && header != nil {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(header))
	}
	return ctx, trace.SpanContext{}
}

// Inject returns params that name the trace of ctx, and no other.
func Inject(ctx context.Context, params json.RawMessage) json.RawMessage {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	for _, key := range (propagation.TraceContext{}).Fields() {
		if value := carrier[key]; value != "" {
			marked, err := protocol.SetMeta(params, key, protocol.AppendString(nil, value))
			if err != nil {
				return params
			}
			params = marked
		}
	}
	return params
}

// Code is a JSON-RPC error code as an attribute's value.
func Code(code int64) string { return strconv.FormatInt(code, 10) }

// Bounded keeps what a client says, the name of a tool or an id, from filling the spans.
func Bounded(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), 256)], "")
}
