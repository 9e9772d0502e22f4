package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

type answers = map[string]func(int, json.RawMessage) (string, error)

func none(int, json.RawMessage) (string, error) { return "", nil }

func callX(t *testing.T, s *client.Session) *client.Task {
	t.Helper()
	task, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "x"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return task
}

// NOT-2: a server that does not answer polls is asked less and less, and not given up; one
// that answers them with errors of its own is, after some in a row.
func TestFailingPolls(t *testing.T) {
	with(t, answers{"tools/call": create("a"), "tasks/get": none, "tasks/result": none}, func(t *testing.T, s *client.Session, server *scripted) {
		task := callX(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := task.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if n := server.count("tasks/get"); n < 50 || n > 90 {
			t.Errorf("%d polls in an hour", n)
		}
	})
	broken := &jsonrpc.Error{Code: protocol.CodeInternalError, Message: "broken"}
	with(t, answers{"tools/call": create("a"), "tasks/result": none, "tasks/get": func(int, json.RawMessage) (string, error) {
		return "", broken
	}}, func(t *testing.T, s *client.Session, server *scripted) {
		_, err := callX(t, s).Wait(t.Context())
		if wire, ok := errors.AsType[*jsonrpc.Error](err); !ok || wire.Code != broken.Code {
			t.Errorf("got %v", err)
		}
		if n := server.count("tasks/get"); n != 5 {
			t.Errorf("%d polls", n)
		}
	})
	with(t, answers{"tools/call": create("a"), "tasks/result": none, "tasks/get": func(n int, _ json.RawMessage) (string, error) {
		if n%5 != 0 { // four in a row, again and again
			return "", broken
		}
		return taskJSON("a", map[bool]string{true: "working", false: "cancelled"}[n < 100]), nil
	}}, func(t *testing.T, s *client.Session, _ *scripted) {
		if _, err := callX(t, s).Wait(t.Context()); !errors.Is(err, client.ErrCancelled) {
			t.Errorf("got %v", err)
		}
	})
}

// CAN-2: only a task that is said to be cancelled was.
func TestMisbehavingCancel(t *testing.T) {
	for name, c := range map[string]struct {
		cancelled func(int, json.RawMessage) (string, error)
		want      error
	}{
		"no task":            {always(`[]`), client.ErrProtocol},
		"another task":       {always(taskJSON("b", "cancelled")), client.ErrProtocol},
		"still working":      {always(taskJSON("a", "working")), client.ErrProtocol},
		"no such task":       {refuse("no such task"), client.ErrNotFound},
		"expired":            {refuse("Task has expired"), client.ErrExpired},
		"never answered":     {none, context.DeadlineExceeded},
		"as it should be":    {always(taskJSON("a", "cancelled")), nil},
		"an error of itself": {func(int, json.RawMessage) (string, error) { return "", &jsonrpc.Error{Code: -32000} }, &jsonrpc.Error{Code: -32000}},
	} {
		t.Run(name, func(t *testing.T) {
			with(t, answers{
				"tools/call": create("a"), "tasks/get": always(taskJSON("a", "working")), "tasks/result": none, "tasks/cancel": c.cancelled,
			}, func(t *testing.T, s *client.Session, server *scripted) {
				task := callX(t, s)
				err := task.Cancel(t.Context())
				wire, isWire := errors.AsType[*jsonrpc.Error](c.want)
				if got, ok := errors.AsType[*jsonrpc.Error](err); isWire && (!ok || got.Code != wire.Code) || !isWire && !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
				if n := server.count("tasks/cancel"); n != 1 {
					t.Errorf("asked %d times", n)
				}
				ended := task.Status().Status == client.Cancelled
				if ended != (c.want == nil) {
					t.Errorf("the task is %s", task.Status().Status)
				}
			})
		})
	}
}

// Every answer comes twice, the second time another, after one to nothing at all: the first
// one counts.
func TestEverythingTwice(t *testing.T) {
	var server *scripted
	twice := func(method, result, other string) func(int, json.RawMessage) (string, error) {
		return func(int, json.RawMessage) (string, error) {
			server.say(`{"jsonrpc":"2.0","id":"coatcheck-999","result":%s}`, other)
			server.say(`{"jsonrpc":"2.0","id":%s,"result":%s}`, server.lastID(method), result)
			return other, nil
		}
	}
	with(t, answers{
		"tools/call":   twice("tools/call", `{"task":`+taskJSON("a", "working")+`}`, `{"task":`+taskJSON("b", "failed")+`}`),
		"tasks/get":    twice("tasks/get", taskJSON("a", "completed"), taskJSON("a", "working")),
		"tasks/result": twice("tasks/result", `{"content":[{"type":"text","text":"one"}]}`, `{"content":[{"type":"text","text":"two"}]}`),
	}, func(t *testing.T, s *client.Session, at *scripted) {
		server = at
		task := callX(t, s)
		result, err := task.Wait(t.Context())
		if err != nil || task.ID() != "a" || result.Content[0].(*mcp.TextContent).Text != "one" {
			t.Errorf("task %s: %+v, %v", task.ID(), result, err)
		}
		if n := server.count("tasks/get") + server.count("tasks/result"); n > 4 {
			t.Errorf("%d requests", n)
		}
	})
}

// NOT-2, PROG-1: what is pushed about other tasks, or makes no sense, changes nothing and asks
// for nothing.
func TestForeignPushes(t *testing.T) {
	with(t, answers{"tools/call": create("a"), "tasks/get": always(taskJSON("a", "working", `,"pollInterval":30000`)), "tasks/result": none},
		func(t *testing.T, s *client.Session, server *scripted) {
			task := callX(t, s)
			time.Sleep(time.Minute) //nolint:forbidigo // the bubble has its own clock
			synctest.Wait()
			before := server.count("tasks/get")
			for _, push := range []string{
				`"notifications/tasks/status","params":` + taskJSON("b", "completed"),
				`"notifications/tasks/status","params":[]`,
				`"notifications/tasks/status","params":{"taskId":7}`,
				`"notifications/tasks/status"`,
				`"notifications/progress","params":{"progressToken":"other","progress":1}`,
				`"notifications/progress","params":{"progressToken":7,"progress":"much"}`,
				`"notifications/progress","params":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"b"}},"progress":1}`,
			} {
				server.say(`{"jsonrpc":"2.0","method":%s}`, push)
			}
			time.Sleep(time.Second) //nolint:forbidigo // the bubble has its own clock
			synctest.Wait()
			if n := server.count("tasks/get") - before; n > 1 { // the next may be due
				t.Errorf("%d polls", n)
			}
			if u := task.Status(); u.Status != client.Working || u.Progress != nil {
				t.Errorf("the task is %+v", u)
			}
			task.Detach()
			_, _ = task.Wait(t.Context())
		})
}

// LST-4: lists of the wrong shape, and without end.
func TestMisbehavingLists(t *testing.T) {
	for name, list := range map[string]string{
		"no list": `{"tasks":7}`, "no tasks": `{"tasks":[7]}`, "an unknown status": `{"tasks":[` + taskJSON("a", "sleeping") + `]}`,
		"no end": `{"tasks":[],"nextCursor":"again"}`, "no object": `[]`,
	} {
		t.Run(name, func(t *testing.T) {
			with(t, answers{"tasks/list": always(list)}, func(t *testing.T, s *client.Session, server *scripted) {
				var last error
				for _, err := range s.List(t.Context()) {
					last = err
				}
				if !errors.Is(last, client.ErrProtocol) {
					t.Errorf("got %v", last)
				}
				if n := server.count("tasks/list"); n > 1000 {
					t.Errorf("%d requests", n)
				}
			})
		})
	}
}
