package exampleserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect returns a client's session with a new server.
func connect(t *testing.T, opts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	near, far := mcp.NewInMemoryTransports()
	server, err := New().Connect(t.Context(), far, nil)
	if err != nil {
		t.Fatal(err)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts).Connect(t.Context(), near,
		&mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"}) // later ones do not let a tool ask
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		session.Close()
		_ = server.Wait()
	})
	return session
}

func textOf(t *testing.T, r *mcp.CallToolResult) string {
	t.Helper()
	if len(r.Content) != 1 {
		t.Fatalf("%d content blocks, want 1", len(r.Content))
	}
	return r.Content[0].(*mcp.TextContent).Text
}

func TestSlowComputeReportsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var progress []float64
		session := connect(t, &mcp.ClientOptions{
			ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
				if req.Params.Total != 5 {
					t.Errorf("total %g, want 5", req.Params.Total)
				}
				progress = append(progress, req.Params.Progress)
			},
		})
		params := &mcp.CallToolParams{Name: "slow_compute", Arguments: map[string]any{"seconds": 1.2, "label": "x"}}
		params.SetProgressToken("token")
		start := time.Now()
		result, err := session.CallTool(t.Context(), params)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 1200*time.Millisecond {
			t.Errorf("took %v, want 1.2s", took)
		}
		synctest.Wait()
		if diff := cmp.Diff([]float64{1, 2, 3, 4, 5}, progress); diff != "" {
			t.Errorf("progress (-want +got):\n%s", diff)
		}
		if got, want := textOf(t, result), "x: done after 5 steps in 1.2 s"; got != want {
			t.Errorf("text %q, want %q", got, want)
		}
		want := map[string]any{"label": "x", "seconds": 1.2, "steps": 5.0}
		if diff := cmp.Diff(want, result.StructuredContent); diff != "" {
			t.Errorf("structured content (-want +got):\n%s", diff)
		}
	})
}

// CAN-2: the work stops when it is cancelled.
func TestSlowComputeStopsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		session := connect(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		_, err := session.CallTool(ctx, &mcp.CallToolParams{
			Name: "slow_compute", Arguments: map[string]any{"seconds": 3600},
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want deadline exceeded", err)
		}
		session.Close()
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("took %v, want 3s", took)
		}
	})
}

func TestTools(t *testing.T) {
	session := connect(t, nil)
	call := func(name string, args map[string]any) (*mcp.CallToolResult, error) {
		return session.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
	}
	for _, c := range []struct {
		tool    string
		args    map[string]any
		isError bool
		text    string
	}{
		{"greet", map[string]any{"name": "Zoë"}, false, "Hello, Zoë!"},
		{"slow_compute", map[string]any{"seconds": 0}, false, "slow_compute: done after 1 steps in 0 s"},
		{"slow_compute", map[string]any{"seconds": -1}, true, "seconds must be 0 to 604800, not -1"},
		{"failing_job", nil, true, "the job failed: no paper in tray 2"},
		{"big_result", map[string]any{"kilobytes": -1}, true, "kilobytes must be 0 to 65536, not -1"},
	} {
		result, err := call(c.tool, c.args)
		if err != nil {
			t.Errorf("%s %v: %v", c.tool, c.args, err)
			continue
		}
		if got := textOf(t, result); got != c.text || result.IsError != c.isError {
			t.Errorf("%s %v: %q, isError %t, want %q, %t", c.tool, c.args, got, result.IsError, c.text, c.isError)
		}
	}

	result, err := call("big_result", map[string]any{"kilobytes": 3})
	if err != nil {
		t.Fatal(err)
	}
	if got := len(textOf(t, result)); got != 3072 {
		t.Errorf("big_result of 3 KiB has %d bytes", got)
	}

	_, err = call("protocol_error_job", nil)
	var wire *jsonrpc.Error
	if !errors.As(err, &wire) {
		t.Fatalf("protocol_error_job: %v, want a JSON-RPC error", err)
	}
	want := &jsonrpc.Error{
		Code: ProtocolErrorCode, Message: "quota exceeded",
		Data: json.RawMessage(`{"limit":10,"used":10,"unit":"jobs per hour"}`),
	}
	if diff := cmp.Diff(want, wire); diff != "" {
		t.Errorf("protocol_error_job (-want +got):\n%s", diff)
	}
}

// The tools that ask their client do what it answers, and say so if it answers nothing.
func TestAskingTools(t *testing.T) {
	elicit := func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		switch req.Params.Message {
		case "Delete a.txt?":
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"confirm": true}}, nil
		case "What is your name?":
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Zoë"}}, nil
		case "Which colour do you like?":
			return &mcp.ElicitResult{Action: "cancel"}, nil
		}
		return &mcp.ElicitResult{Action: "decline"}, nil
	}
	sample := func(_ context.Context, req *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
		asked := req.Params.Messages[0].Content.(*mcp.TextContent).Text
		return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: asked + "!"}}, nil
	}
	able := connect(t, &mcp.ClientOptions{ElicitationHandler: elicit, CreateMessageHandler: sample})
	unable := connect(t, nil)
	for _, c := range []struct {
		session *mcp.ClientSession
		tool    string
		args    map[string]any
		isError bool
		text    string
	}{
		{able, "confirm_delete", map[string]any{"filename": "a.txt"}, false, "Deleted a.txt."},
		{able, "confirm_delete", map[string]any{"filename": "b.txt"}, false, "Kept b.txt."},
		{able, "multi_input", nil, true, "the colour was not given: cancel"},
		{able, "ask_model", map[string]any{"prompt": "hey"}, false, "hey!"},
		{unable, "confirm_delete", map[string]any{"filename": "a.txt"}, true, "client does not support elicitation"},
		{unable, "ask_model", map[string]any{"prompt": "hey"}, true, "asking the model"},
		{able, "chatty", map[string]any{"messages": -1}, true, "messages must be 0 to 100000, not -1"},
	} {
		result, err := c.session.CallTool(t.Context(), &mcp.CallToolParams{Name: c.tool, Arguments: c.args})
		if err != nil {
			t.Errorf("%s %v: %v", c.tool, c.args, err)
			continue
		}
		if got := textOf(t, result); !strings.Contains(got, c.text) || result.IsError != c.isError {
			t.Errorf("%s %v: %q, isError %t, want %q, %t", c.tool, c.args, got, result.IsError, c.text, c.isError)
		}
	}
}

func TestChatty(t *testing.T) {
	logged, reported := make(chan any, 10), make(chan float64, 10)
	session := connect(t, &mcp.ClientOptions{
		LoggingMessageHandler: func(_ context.Context, req *mcp.LoggingMessageRequest) { logged <- req.Params.Data },
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			reported <- req.Params.Progress
		},
	})
	if err := session.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "info"}); err != nil {
		t.Fatal(err)
	}
	params := &mcp.CallToolParams{Name: "chatty", Arguments: map[string]any{"messages": 3}}
	params.SetProgressToken("token")
	result, err := session.CallTool(t.Context(), params)
	if err != nil || textOf(t, result) != "Said 3 messages." {
		t.Fatal(result, err)
	}
	for i := 1; i <= 3; i++ {
		if got := <-reported; got != float64(i) {
			t.Errorf("progress %g, want %d", got, i)
		}
		if got, want := <-logged, fmt.Sprintf("message %d of 3", i); got != want {
			t.Errorf("logged %v, want %s", got, want)
		}
	}
}
