package coatcheck_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/client"
)

// traced is a runtime whose spans and events are recorded.
type traced struct {
	*testing.T
	spans *tracetest.SpanRecorder
	meter *sdkmetric.ManualReader
	began chan struct{} // receives when the tool wait works

	mu     sync.Mutex
	events []audit.Event
}

func (tr *traced) named(name string) []sdktrace.ReadOnlySpan {
	var all []sdktrace.ReadOnlySpan
	for _, span := range tr.spans.Ended() {
		if span.Name() == name {
			all = append(all, span)
		}
	}
	return all
}

// only returns the one span of that name, once it has ended.
func (tr *traced) only(name string) sdktrace.ReadOnlySpan {
	tr.Helper()
	for deadline := time.Now().Add(10 * time.Second); len(tr.named(name)) == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	all := tr.named(name)
	if len(all) != 1 {
		tr.Fatalf("%d spans are named %s, want 1", len(all), name)
	}
	return all[0]
}

func (tr *traced) child(span sdktrace.ReadOnlySpan, of trace.SpanContext) {
	tr.Helper()
	if span.Parent().SpanID() != of.SpanID() || span.SpanContext().TraceID() != of.TraceID() {
		tr.Errorf("%s is a child of %v, want %v", span.Name(), span.Parent(), of)
	}
}

func (tr *traced) has(span sdktrace.ReadOnlySpan, want map[attribute.Key]string) {
	tr.Helper()
	got := map[attribute.Key]string{}
	for _, kv := range span.Attributes() {
		got[kv.Key] = kv.Value.String()
	}
	for key, value := range want {
		if got[key] != value {
			tr.Errorf("%s: %s is %q, want %q", span.Name(), key, got[key], value)
		}
	}
}

// tracesOf returns the traces of a task's events of a kind.
func (tr *traced) tracesOf(kind audit.Kind, task string) []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	var all []string
	for _, ev := range tr.events {
		if ev.Kind == kind && ev.Task == task {
			all = append(all, ev.Trace)
		}
	}
	return all
}

// onEachTraced runs a test over HTTP and over a connection, with clients whose own spans have
// another provider.
func onEachTraced(t *testing.T, test func(tr *traced, connect func(trace.TracerProvider) *client.Session, url string)) {
	for _, name := range []string{"http", "connection"} {
		t.Run(name, func(t *testing.T) {
			tr := &traced{T: t, spans: tracetest.NewSpanRecorder(), meter: sdkmetric.NewManualReader(), began: make(chan struct{}, 1)}
			server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
			mcp.AddTool(server, &mcp.Tool{Name: "ask"}, func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
				_, own := trace.SpanFromContext(ctx).TracerProvider().Tracer("handler").Start(ctx, "own")
				defer own.End()
				_, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "?", RequestedSchema: map[string]any{"type": "object"}})
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "ok"}}}, nil, err
			})
			mcp.AddTool(server, &mcp.Tool{Name: "fail"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
				return nil, nil, errors.New("a secret reason")
			})
			mcp.AddTool(server, &mcp.Tool{Name: "error"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
				return nil, nil, &jsonrpc.Error{Code: -32050, Message: "a secret reason"}
			})
			mcp.AddTool(server, &mcp.Tool{Name: "wait"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
				tr.began <- struct{}{}
				<-ctx.Done()
				return nil, nil, ctx.Err()
			})
			tools := map[string]coatcheck.Tool{}
			for _, tool := range []string{"ask", "fail", "error", "wait"} {
				tools[tool] = coatcheck.Tool{Support: coatcheck.Optional}
			}
			rt, err := coatcheck.Open(t.Context(), server, &coatcheck.Options{
				Database: "memory:", Tools: tools, Grace: -1, PollInterval: 20 * time.Millisecond,
				TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(tr.spans)),
				MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(tr.meter)),
				Audit: audit.SinkFunc(func(_ context.Context, ev audit.Event) {
					tr.mu.Lock()
					defer tr.mu.Unlock()
					tr.events = append(tr.events, ev)
				}),
			})
			if err != nil {
				t.Fatal(err)
			}
			web := httptest.NewServer(rt.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)))
			t.Cleanup(func() {
				web.CloseClientConnections()
				web.Close()
				if err := rt.Close(context.Background()); err != nil {
					t.Error(err)
				}
				for s := range server.Sessions() {
					_ = s.Close()
				}
			})
			test(tr, func(provider trace.TracerProvider) *client.Session {
				var transport mcp.Transport = &mcp.StreamableClientTransport{Endpoint: web.URL}
				if name == "connection" {
					near, far := mcp.NewInMemoryTransports()
					transport = near
					if _, err := server.Connect(context.Background(), rt.Transport(far), nil); err != nil {
						t.Fatal(err)
					}
				}
				c := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, &mcp.ClientOptions{
					ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
						return &mcp.ElicitResult{Action: "accept"}, nil
					},
				})
				s, err := client.Connect(t.Context(), c, transport, &client.Options{TracerProvider: provider})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Close() })
				return s
			}, web.URL)
		})
	}
}

// A task's work is in the trace of the call that made it, what the handler does and asks is in
// its span, and every request about it links there (AUD-1).
func TestTaskSpans(t *testing.T) {
	onEachTraced(t, func(tr *traced, connect func(trace.TracerProvider) *client.Session, _ string) {
		theirs := tracetest.NewSpanRecorder()
		s := connect(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(theirs)))
		parent := func(name string, of trace.SpanContext) bool {
			for _, span := range theirs.Ended() {
				if span.Name() == name && span.SpanContext().SpanID() == of.SpanID() {
					return true
				}
			}
			return false
		}
		begin := func(tool string) *client.Task {
			task, err := s.CallTool(tr.Context(), &mcp.CallToolParams{Name: tool}, &client.CallOptions{Mode: client.Always})
			if err != nil {
				tr.Fatal(err)
			}
			return task
		}

		ask := begin("ask")
		if _, err := ask.Wait(tr.Context()); err != nil {
			tr.Fatal(err)
		}
		create, run := tr.only("tools/call ask"), tr.only("run ask")
		if !parent("tools/call ask", create.Parent()) || create.SpanKind() != trace.SpanKindServer {
			tr.Errorf("the create: %v, of %v", create.SpanKind(), create.Parent())
		}
		tr.has(create, map[attribute.Key]string{
			"mcp.method.name": "tools/call", "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "ask",
			"coatcheck.task.id": ask.ID(), "coatcheck.task.status": "working",
		})
		tr.child(run, create.SpanContext())
		tr.has(run, map[attribute.Key]string{"gen_ai.tool.name": "ask", "coatcheck.task.id": ask.ID(), "coatcheck.task.status": "completed"})
		tr.child(tr.only("own"), run.SpanContext())
		question := tr.only("elicitation/create")
		tr.child(question, run.SpanContext())
		if question.EndTime().After(run.EndTime()) || question.Status().Code != codes.Unset {
			tr.Errorf("the question ended %v after the work, %v", question.EndTime().Sub(run.EndTime()), question.Status())
		}
		for _, name := range []string{"tasks/get ask", "tasks/result ask"} {
			for deadline := time.Now().Add(10 * time.Second); len(tr.named(name)) == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			}
			polls := tr.named(name)
			if len(polls) == 0 {
				tr.Errorf("no span is named %s", name)
			}
			for _, poll := range polls {
				links := poll.Links()
				if len(links) != 1 || links[0].SpanContext.SpanID() != run.SpanContext().SpanID() || links[0].SpanContext.TraceID() != run.SpanContext().TraceID() {
					tr.Errorf("%s links to %v", name, links)
				}
				if !parent(name, poll.Parent()) || poll.SpanKind() != trace.SpanKindServer {
					tr.Errorf("%s: %v, of %v", name, poll.SpanKind(), poll.Parent())
				}
			}
		}
		of := run.SpanContext().TraceID().String()
		for _, kind := range []audit.Kind{audit.Created, audit.Started, audit.Asked, audit.Ended} {
			if got := tr.tracesOf(kind, ask.ID()); len(got) != 1 || got[0] != of {
				tr.Errorf("%s is of the traces %q, want %s", kind, got, of)
			}
		}
		if got := tr.tracesOf(audit.Retrieved, ask.ID()); len(got) == 0 || got[0] == "" || got[0] == of {
			tr.Errorf("retrieved in the traces %q", got)
		}

		for tool, kind := range map[string]string{"fail": "tool_error", "error": "-32050"} {
			_, _ = begin(tool).Wait(tr.Context())
			failed := tr.only("run " + tool)
			tr.has(failed, map[attribute.Key]string{"error.type": kind, "coatcheck.task.status": "failed"})
			if failed.Status().Code != codes.Error {
				tr.Errorf("%s: %v", tool, failed.Status())
			}
		}

		wait := begin("wait")
		<-tr.began
		if err := wait.Cancel(tr.Context()); err != nil {
			tr.Fatal(err)
		}
		cancelled := tr.only("run wait")
		tr.has(cancelled, map[attribute.Key]string{"coatcheck.task.status": "cancelled", "error.type": ""})
		cancel := tr.only("tasks/cancel wait")
		if links := cancel.Links(); len(links) != 1 || links[0].SpanContext.SpanID() != cancelled.SpanContext().SpanID() {
			tr.Errorf("the cancel links to %v", links)
		}
		tr.has(cancel, map[attribute.Key]string{"coatcheck.task.status": "cancelled"})

		for _, span := range tr.spans.Ended() {
			for _, kv := range span.Attributes() {
				if strings.Contains(kv.Value.String(), "secret") {
					tr.Errorf("%s says %s", span.Name(), kv.Value.String())
				}
			}
			if strings.Contains(span.Status().Description, "secret") {
				tr.Errorf("%s says %s", span.Name(), span.Status().Description)
			}
		}
		// The wait for the task that was cancelled ends when its client has gone.
		open := func() bool { return len(tr.spans.Started()) > len(tr.spans.Ended()) }
		for deadline := time.Now().Add(10 * time.Second); open() && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		}
		for _, span := range tr.spans.Started() {
			if span.EndTime().IsZero() {
				tr.Errorf("%s has not ended", span.Name())
			}
		}

		var measured metricdata.ResourceMetrics
		if err := tr.meter.Collect(tr.Context(), &measured); err != nil {
			tr.Fatal(err)
		}
		created := int64(0)
		for _, kind := range measured.ScopeMetrics[0].Metrics {
			if kind.Name == "coatcheck.task.created" {
				for _, p := range kind.Data.(metricdata.Sum[int64]).DataPoints {
					created += p.Value
				}
			}
		}
		if created != 4 {
			tr.Errorf("%d tasks are measured", created)
		}
	})
}

// Where the params name no trace that of the HTTP request counts. Another's task is linked to
// by nobody (SEC-1).
func TestTraceOfHeaders(t *testing.T) {
	onEachTraced(t, func(tr *traced, _ func(trace.TracerProvider) *client.Session, url string) {
		const header, meta = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-11111111111111111111111111111111-2222222222222222-01"
		post := func(method, params string) {
			req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(`{"jsonrpc":"2.0","id":"n1","method":"`+method+`","params":`+params+`}`))
			if err != nil {
				tr.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Accept", "application/json, text/event-stream")
			req.Header.Set("traceparent", header)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				tr.Fatal(err)
			}
			_ = resp.Body.Close()
		}
		post("tasks/get", `{"taskId":"nobodys"}`)
		get := tr.only("tasks/get")
		if len(get.Links()) != 0 || !strings.Contains(header, get.Parent().TraceID().String()+"-"+get.Parent().SpanID().String()) {
			tr.Errorf("of %v, links %v", get.Parent(), get.Links())
		}
		tr.has(get, map[attribute.Key]string{"error.type": "-32602", "jsonrpc.request.id": "n1"})
		post("tools/call", `{"name":"fail","task":{},"_meta":{"traceparent":"`+meta+`"}}`)
		create := tr.only("tools/call fail")
		if !strings.Contains(meta, create.Parent().TraceID().String()+"-"+create.Parent().SpanID().String()) {
			tr.Errorf("of %v", create.Parent())
		}
		tr.child(tr.only("run fail"), create.SpanContext())
		http.DefaultClient.CloseIdleConnections()
	})
}
