package peers

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
)

// mcpGo is a session of mcp-go's client.
//
// Its client has typed calls for tasks/get, tasks/result, tasks/list and tasks/cancel, and
// they are used here. It cannot create a task: CallTool sends params.task but then insists on
// a "content" in the answer, which a CreateTaskResult has not. And its errors keep a
// JSON-RPC error's message but not its data. For these two its transport is used directly.
type mcpGo struct {
	*client.Client
}

func connectMCPGo(t *testing.T, server target, options ...client.ClientOption) mcpGo {
	t.Helper()
	var way transport.Interface = transport.NewStdio(server.Command, nil, server.Args...)
	if server.URL != "" {
		var err error
		if way, err = transport.NewStreamableHTTP(server.URL); err != nil {
			t.Fatal(err)
		}
	}
	c := client.NewClient(way, options...)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	// The context of Start is that of a command's whole life, and is done before Cleanup.
	if err := c.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	var request mcp.InitializeRequest
	// Left alone, this client prefers 2026-07-28, which has no tasks/result.
	request.Params.ProtocolVersion = mcp.LATEST_LEGACY_PROTOCOL_VERSION
	request.Params.ClientInfo = mcp.Implementation{Name: "coatcheck-peers", Version: "1.0.0"}
	if _, err := c.Initialize(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	return mcpGo{c}
}

// raw sends a request through the client's transport.
func (c mcpGo) raw(t *testing.T, method string, params any) (json.RawMessage, *mcp.JSONRPCErrorDetails) {
	t.Helper()
	response, err := c.GetTransport().SendRequest(t.Context(), transport.JSONRPCRequest{
		JSONRPC: mcp.JSONRPC_VERSION,
		ID:      mcp.NewRequestId(t.Name() + time.Now().String()),
		Method:  method,
		Params:  params,
	})
	if err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	return response.Result, response.Error
}

func callRequest(name string, args map[string]any) mcp.CallToolRequest {
	var request mcp.CallToolRequest
	request.Params.Name = name
	request.Params.Arguments = args
	return request
}

// create creates a task.
func (c mcpGo) create(t *testing.T, name string, args map[string]any) mcp.Task {
	t.Helper()
	params := callRequest(name, args).Params
	ttl := int64(hour)
	params.Task = &mcp.TaskParams{TTL: &ttl}
	text, rpcErr := c.raw(t, "tools/call", params)
	if rpcErr != nil {
		t.Fatalf("tools/call %s: %+v", name, rpcErr)
	}
	var created mcp.CreateTaskResult
	if err := json.Unmarshal(text, &created); err != nil {
		t.Fatal(err)
	}
	return created.Task
}

func (c mcpGo) get(id string) mcp.GetTaskRequest {
	return mcp.GetTaskRequest{Params: mcp.GetTaskParams{TaskId: id}}
}

func (c mcpGo) result(ctx context.Context, id string) (*mcp.TaskResultResult, error) {
	return c.TaskResult(ctx, mcp.TaskResultRequest{Params: mcp.TaskResultParams{TaskId: id}})
}

func (c mcpGo) cancel(ctx context.Context, id string) (*mcp.CancelTaskResult, error) {
	return c.CancelTask(ctx, mcp.CancelTaskRequest{Params: mcp.CancelTaskParams{TaskId: id}})
}

// TestMCPGo drives the gateway with mcp-go's client.
func TestMCPGo(t *testing.T) {
	t.Parallel()
	overEach(t, exampleServer, func(t *testing.T, server target) {
		c := connectMCPGo(t, server)
		if tasks := c.GetServerCapabilities().Tasks; tasks == nil || tasks.List == nil || tasks.Cancel == nil ||
			tasks.Requests == nil || tasks.Requests.Tools == nil || tasks.Requests.Tools.Call == nil {
			t.Errorf("capabilities.tasks: %s", encode(t, tasks)) // CAP-1
		}
		t.Run("life", func(t *testing.T) { mcpGoLife(t, c) })
		t.Run("error", func(t *testing.T) { mcpGoError(t, c) })
		t.Run("cancel", func(t *testing.T) { mcpGoCancel(t, c) })
		t.Run("unknown", func(t *testing.T) { mcpGoUnknown(t, c) })
		t.Run("list", func(t *testing.T) { mcpGoList(t, c) })
	})
}

// CRE-1, GET-1, RES-1, RES-2, RES-3, EXE-2
func mcpGoLife(t *testing.T, c mcpGo) {
	for name, status := range map[string]mcp.TaskStatus{
		"greet": mcp.TaskStatusCompleted, "big_result": mcp.TaskStatusCompleted, "failing_job": mcp.TaskStatusFailed,
	} {
		t.Run(name, func(t *testing.T) {
			plain, err := c.CallTool(t.Context(), callRequest(name, calls[name]))
			if err != nil {
				t.Fatal(err)
			}
			created := c.create(t, name, calls[name])
			var view taskView
			if err := json.Unmarshal([]byte(encode(t, created)), &view); err != nil {
				t.Fatal(err)
			}
			checkCreated(t, view)

			result, err := c.result(t.Context(), created.TaskId)
			if err != nil {
				t.Fatal(err)
			}
			last, err := c.WaitForTask(t.Context(), c.get(created.TaskId), time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if last.Status != status {
				t.Errorf("status %q, want %q", last.Status, status)
			}
			sameResult(t, "result", mcpGoOutcome(t, result), mcpGoOutcome(t, plain), created.TaskId)
		})
	}
}

// mcpGoOutcome is a typed result of mcp-go as an outcome.
func mcpGoOutcome(t *testing.T, result any) outcome {
	t.Helper()
	var out outcome
	if err := json.Unmarshal([]byte(encode(t, result)), &out.Value); err != nil {
		t.Fatal(err)
	}
	return out
}

// RES-1, EXE-1: code, message and data of an error.
func mcpGoError(t *testing.T, c mcpGo) {
	_, want := c.raw(t, "tools/call", callRequest("protocol_error_job", map[string]any{}).Params)
	if want == nil || want.Data == nil {
		t.Fatalf("the plain call's error: %+v", want)
	}
	created := c.create(t, "protocol_error_job", map[string]any{})
	last, err := c.WaitForTask(t.Context(), c.get(created.TaskId), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if last.Status != mcp.TaskStatusFailed || last.StatusMessage == "" {
		t.Errorf("status %q, message %q", last.Status, last.StatusMessage)
	}
	_, got := c.raw(t, "tasks/result", mcp.TaskResultParams{TaskId: created.TaskId})
	equal(t, "error", got, want)
}

// CAN-1, CAN-2, CAN-3, GET-3, C.2
func mcpGoCancel(t *testing.T, c mcpGo) {
	created := c.create(t, "slow_compute", map[string]any{"seconds": 600, "label": "never done"})
	waiting := make(chan error, 1)
	go func() {
		_, err := c.result(context.WithoutCancel(t.Context()), created.TaskId)
		waiting <- err
	}()
	cancelled, err := c.cancel(t.Context(), created.TaskId)
	if err != nil {
		t.Fatal(err)
	}
	if cancelled.Status != mcp.TaskStatusCancelled {
		t.Errorf("tasks/cancel: status %q", cancelled.Status)
	}
	select {
	case err := <-waiting:
		if !errors.Is(err, mcp.ErrRequestInterrupted) { // -32800
			t.Errorf("the open tasks/result: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the open tasks/result was not answered")
	}
	if _, err := c.cancel(t.Context(), created.TaskId); !errors.Is(err, mcp.ErrInvalidParams) || !strings.Contains(err.Error(), "cancelled") {
		t.Errorf("cancel again: %v", err)
	}
	last, err := c.GetTask(t.Context(), c.get(created.TaskId))
	if err != nil || last.Status != mcp.TaskStatusCancelled {
		t.Errorf("tasks/get: %+v, %v", last, err)
	}
}

// ERR-1
func mcpGoUnknown(t *testing.T, c mcpGo) {
	const id = "no-such-task"
	_, getErr := c.GetTask(t.Context(), c.get(id))
	_, resultErr := c.result(t.Context(), id)
	_, cancelErr := c.cancel(t.Context(), id)
	for method, err := range map[string]error{"get": getErr, "result": resultErr, "cancel": cancelErr} {
		if !errors.Is(err, mcp.ErrInvalidParams) {
			t.Errorf("tasks/%s: %v", method, err)
		}
	}
}

// LST-1, LST-2: more tasks than a page holds, each listed once.
func mcpGoList(t *testing.T, c mcpGo) {
	created := map[string]bool{}
	for range 120 {
		created[c.create(t, "greet", calls["greet"]).TaskId] = true
	}
	all, err := c.ListTasks(t.Context(), mcp.ListTasksRequest{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, task := range all.Tasks {
		if seen[task.TaskId] {
			t.Errorf("task %s is listed twice", task.TaskId)
		}
		seen[task.TaskId] = true
		delete(created, task.TaskId)
	}
	if len(created) > 0 {
		t.Errorf("%d tasks are not listed", len(created))
	}
}
