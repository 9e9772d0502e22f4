package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// recording returns a provider and what it has recorded.
func recording() (*sdktrace.TracerProvider, *tracetest.SpanRecorder) {
	recorder := tracetest.NewSpanRecorder()
	return sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)), recorder
}

func named(recorder *tracetest.SpanRecorder, name string) []sdktrace.ReadOnlySpan {
	var all []sdktrace.ReadOnlySpan
	for _, span := range recorder.Ended() {
		if span.Name() == name {
			all = append(all, span)
		}
	}
	return all
}

// only returns the one span of that name, and fails the test if there is another number.
func only(t *testing.T, recorder *tracetest.SpanRecorder, name string) sdktrace.ReadOnlySpan {
	t.Helper()
	all := named(recorder, name)
	if len(all) != 1 {
		t.Fatalf("%d spans are named %s", len(all), name)
	}
	return all[0]
}

func attributeOf(span sdktrace.ReadOnlySpan, key string) string {
	for _, kv := range span.Attributes() {
		if kv.Key == attribute.Key(key) {
			return kv.Value.String()
		}
	}
	return ""
}

func wantAttributes(t *testing.T, span sdktrace.ReadOnlySpan, want map[string]string) {
	t.Helper()
	for key, value := range want {
		if got := attributeOf(span, key); got != value {
			t.Errorf("%s: %s is %q, want %q", span.Name(), key, got, value)
		}
	}
}

func wantLink(t *testing.T, span sdktrace.ReadOnlySpan, to trace.SpanContext) {
	t.Helper()
	links := span.Links()
	if len(links) != 1 || links[0].SpanContext.TraceID() != to.TraceID() || links[0].SpanContext.SpanID() != to.SpanID() {
		t.Errorf("%s links to %v, want %v", span.Name(), links, to)
	}
}

// AUD-3: the call of a task has a span in the caller's trace. What is asked about the task
// later, in the background, has spans of its own that link to it.
func TestSpans(t *testing.T) {
	onEachTransport(t, func(t *testing.T, connect func(*client.Options) *client.Session) {
		provider, recorder := recording()
		s := connect(&client.Options{TracerProvider: provider})
		ctx, app := provider.Tracer("app").Start(t.Context(), "app")
		in := func(span sdktrace.ReadOnlySpan) bool { return span.Parent().SpanID() == app.SpanContext().SpanID() }

		slow, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "slow_compute", Arguments: map[string]any{"seconds": 0.5}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		wantText(t, slow, "done")
		create := only(t, recorder, "tools/call slow_compute")
		if create.SpanKind() != trace.SpanKindClient || !in(create) || len(create.Links()) != 0 || create.Status().Code != codes.Unset {
			t.Errorf("the call: %+v", create)
		}
		wantAttributes(t, create, map[string]string{
			"mcp.method.name": "tools/call", "mcp.protocol.version": "2025-11-25", "gen_ai.operation.name": "execute_tool",
			"gen_ai.tool.name": "slow_compute", "coatcheck.task.id": slow.ID(), "coatcheck.task.status": "working", "error.type": "",
		})
		if id := attributeOf(create, "jsonrpc.request.id"); !strings.HasPrefix(id, "coatcheck-") {
			t.Errorf("request id %q", id)
		}
		polls := named(recorder, "tasks/get slow_compute")
		statuses := map[string]bool{}
		for _, poll := range append(polls, only(t, recorder, "tasks/result slow_compute")) {
			wantLink(t, poll, create.SpanContext())
			if poll.Parent().IsValid() || poll.SpanContext().TraceID() == create.SpanContext().TraceID() {
				t.Errorf("%s is in the caller's trace, or another's", poll.Name())
			}
			wantAttributes(t, poll, map[string]string{"coatcheck.task.id": slow.ID(), "gen_ai.tool.name": "slow_compute", "gen_ai.operation.name": ""})
			statuses[attributeOf(poll, "coatcheck.task.status")] = true
		}
		if !statuses["completed"] {
			t.Errorf("the polls were told %v", statuses)
		}

		// What the caller asks is in its trace, and links too.
		cancelled, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "slow_compute", Arguments: map[string]any{"seconds": 600}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := cancelled.Cancel(ctx); err != nil {
			t.Fatal(err)
		}
		cancel := only(t, recorder, "tasks/cancel slow_compute")
		wantLink(t, cancel, named(recorder, "tools/call slow_compute")[1].SpanContext())
		if !in(cancel) {
			t.Error("the cancel is not in the caller's trace")
		}
		wantAttributes(t, cancel, map[string]string{"coatcheck.task.status": "cancelled"})

		// A plain call has one span, as long as it runs.
		plain, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "greet", Arguments: map[string]any{"name": "x"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		wantText(t, plain, "Hello")
		if greet := only(t, recorder, "tools/call greet"); !in(greet) {
			t.Error("the plain call is not in the caller's trace")
		}
		for _, mode := range []client.Mode{client.Auto, client.Never} {
			wantText(t, call(t, s, "failing_job", `{}`, &client.CallOptions{Mode: mode}), "no paper")
			if _, err := call(t, s, "protocol_error_job", `{}`, &client.CallOptions{Mode: mode}).Wait(t.Context()); err == nil {
				t.Error("no error")
			}
			failed := []string{"tasks/result failing_job", "tasks/result protocol_error_job"}
			if mode == client.Never {
				failed = []string{"tools/call failing_job", "tools/call protocol_error_job"}
			}
			for i, want := range []map[string]string{
				{"error.type": "tool_error", "rpc.response.status_code": ""},
				{"error.type": "-32050", "rpc.response.status_code": "-32050"},
			} {
				spans := named(recorder, failed[i])
				span := spans[len(spans)-1]
				wantAttributes(t, span, want)
				if span.Status().Code != codes.Error {
					t.Errorf("%s: status %v", span.Name(), span.Status())
				}
			}
		}
	})
}

// The span of a call is known from the ledger, too.
func TestSpansAfterResume(t *testing.T) {
	transport := overHTTP(t, "sqlite:"+filepath.Join(t.TempDir(), "tasks.db"))
	ledger, err := client.OpenLedger(filepath.Join(t.TempDir(), "ledger"))
	if err != nil {
		t.Fatal(err)
	}
	defer ledger.Close()
	connect := func() (*client.Session, *tracetest.SpanRecorder) {
		provider, recorder := recording()
		s, err := client.Connect(t.Context(), newClient(), transport(), &client.Options{TracerProvider: provider, Ledger: ledger})
		if err != nil {
			t.Fatal(err)
		}
		return s, recorder
	}
	s, before := connect()
	task := call(t, s, "slow_compute", `{"seconds":1}`, nil)
	_ = s.Close()
	if _, err := task.Wait(t.Context()); !errors.Is(err, client.ErrClosed) {
		t.Fatal(err)
	}
	created := only(t, before, "tools/call slow_compute").SpanContext()

	s, after := connect()
	defer s.Close()
	tasks, err := s.Resume(t.Context())
	if err != nil || len(tasks) != 1 {
		t.Fatalf("%d tasks, %v", len(tasks), err)
	}
	wantText(t, tasks[0], "done")
	for _, name := range []string{"tasks/get slow_compute", "tasks/result slow_compute"} {
		all := named(after, name)
		if len(all) == 0 {
			t.Errorf("no span is named %s", name)
		}
		for _, span := range all {
			wantLink(t, span, created)
		}
	}
}

// The trace context goes to the server with each request, and on to the tool. Without a span
// nothing is added, and what the caller has put there stays.
func TestTraceContext(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "x"}, func(_ context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		parent, _ := req.Params.Meta["traceparent"].(string)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "parent " + parent}}}, nil, nil
	})
	rt, err := coatcheck.Open(t.Context(), server, &coatcheck.Options{
		Database: "memory:", Tools: map[string]coatcheck.Tool{"x": {Support: coatcheck.Optional}}, Grace: -1, LocalPrincipal: "p",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rt.Close(context.Background()) })
	provider, recorder := recording()
	for _, c := range []struct {
		name     string
		provider trace.TracerProvider
		meta     mcp.Meta
		want     func() string
	}{
		{"ours", provider, nil, func() string {
			created := named(recorder, "tools/call x")[0].SpanContext()
			return "00-" + created.TraceID().String() + "-" + created.SpanID().String() + "-01"
		}},
		{"the caller's", provider, mcp.Meta{"traceparent": "mine"}, func() string { return "mine" }},
		{"none", nil, nil, func() string { return "" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, far := mcp.NewInMemoryTransports()
			served, err := server.Connect(context.Background(), rt.Transport(far), nil)
			if err != nil {
				t.Fatal(err)
			}
			s, err := client.Connect(t.Context(), newClient(), near, &client.Options{TracerProvider: c.provider})
			if err != nil {
				t.Fatal(err)
			}
			for _, mode := range []client.Mode{client.Always, client.Never} {
				task, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "x", Meta: c.meta}, &client.CallOptions{Mode: mode})
				if err != nil {
					t.Fatal(err)
				}
				result, err := task.Wait(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				got := strings.TrimPrefix(result.Content[0].(*mcp.TextContent).Text, "parent ")
				if mode == client.Never && c.name == "ours" {
					if got == "" || got == c.want() {
						t.Errorf("another call has parent %q", got)
					}
				} else if got != c.want() {
					t.Errorf("parent %q, want %q", got, c.want())
				}
			}
			_ = s.Close()
			_ = served.Wait()
		})
	}
}

// What is asked about a task has a trace context of its own; a protocol error fails a span.
func TestTraceContextOfPolls(t *testing.T) {
	provider, recorder := recording()
	var mu sync.Mutex
	sent := map[string]string{}
	seen := func(method string, answer string) func(int, json.RawMessage) (string, error) {
		return func(_ int, params json.RawMessage) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			sent[method], _ = protocol.Unquote(protocol.Get(protocol.Get(params, "_meta"), "traceparent"))
			return answer, nil
		}
	}
	withOptions(t, &client.Options{TracerProvider: provider}, map[string]func(int, json.RawMessage) (string, error){
		"tools/call":   seen("tools/call", `{"task":`+taskJSON("a", "working")+`}`),
		"tasks/get":    seen("tasks/get", taskJSON("a", "completed")),
		"tasks/result": seen("tasks/result", ""),
	}, func(t *testing.T, s *client.Session, _ *scripted) {
		task, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "x"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err := task.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	})
	for _, method := range []string{"tools/call", "tasks/get", "tasks/result"} {
		if !slices.ContainsFunc(named(recorder, method+" x"), func(span sdktrace.ReadOnlySpan) bool {
			return strings.Contains(sent[method], span.SpanContext().SpanID().String())
		}) {
			t.Errorf("%s was sent with %q", method, sent[method])
		}
	}
	provider, recorder = recording()
	withOptions(t, &client.Options{TracerProvider: provider}, map[string]func(int, json.RawMessage) (string, error){
		"tools/call": always(`{"task":7}`),
	}, func(t *testing.T, s *client.Session, _ *scripted) {
		if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "x"}, nil); !errors.Is(err, client.ErrProtocol) {
			t.Error(err)
		}
	})
	wantAttributes(t, only(t, recorder, "tools/call x"), map[string]string{"error.type": "protocol"})
}

// AUD-3: the log has each task's life.
func TestLog(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	withOptions(t, &client.Options{Logger: logger, Server: "srv"}, map[string]func(int, json.RawMessage) (string, error){
		"tools/call": create("a"),
		"tasks/get": func(n int, _ json.RawMessage) (string, error) {
			return taskJSON("a", []string{"working", "working", "input_required", "completed"}[min(n, 3)]), nil
		},
		"tasks/result": func(n int, _ json.RawMessage) (string, error) {
			return map[bool]string{true: `{"content":[]}`}[n > 2], nil
		},
	}, func(t *testing.T, s *client.Session, server *scripted) {
		task, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "x"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		task.Detach()
		if _, err := task.Wait(t.Context()); !errors.Is(err, client.ErrDetached) {
			t.Error(err)
		}
		again, err := s.Attach(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		for u := range again.Updates(t.Context()) {
			if u.Status == client.Completed {
				server.say(`{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}`, server.lastID("tasks/result"))
			}
		}
		if _, err := again.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	})
	var got []string
	for line := range strings.Lines(log.String()) {
		var entry struct{ Level, Msg, Task, Status string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatal(err)
		}
		if entry.Task != "a" {
			t.Errorf("of no task: %s", line)
		}
		got = append(got, strings.TrimSpace(entry.Level+" "+entry.Msg+" "+entry.Status))
	}
	want := []string{
		"INFO task created", "INFO task is not followed any more working", "INFO task attached",
		"DEBUG task status input_required", "DEBUG task status completed", "INFO task ended completed",
	}
	if !slices.Equal(got, want) {
		t.Errorf("logged %q, want %q", got, want)
	}
}
