package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// scripted is a server that answers what its script says, and counts what it is asked.
type scripted struct {
	t    *testing.T
	conn mcp.Connection
	// answers by method; nil is no answer at all
	answer map[string]func(n int, params json.RawMessage) (result string, err error)

	mu    sync.Mutex
	asked map[string]int
	last  map[string]string // the id of the last request, by method
}

const capabilities = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"tasks":{"cancel":{},"list":{},"requests":{"tools":{"call":{}}}}},"serverInfo":{"name":"s","version":"1"}}`

func (s *scripted) count(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[method]
}

func (s *scripted) lastID(method string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[method]
}

func (s *scripted) say(format string, args ...any) {
	msg, err := jsonrpc.DecodeMessage(fmt.Appendf(nil, format, args...))
	if err != nil {
		s.t.Error(err)
		return
	}
	_ = s.conn.Write(context.Background(), msg) // the client may have gone
}

func (s *scripted) serve() {
	for {
		msg, err := s.conn.Read(context.Background())
		if err != nil {
			return
		}
		req, ok := msg.(*jsonrpc.Request)
		if !ok || !req.IsCall() {
			continue
		}
		s.mu.Lock()
		s.asked[req.Method]++
		n := s.asked[req.Method]
		s.mu.Unlock()
		id, _ := json.Marshal(req.ID.Raw())
		s.mu.Lock()
		s.last[req.Method] = string(id)
		s.mu.Unlock()
		answer := s.answer[req.Method]
		switch {
		case req.Method == "initialize":
			s.say(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, capabilities)
		case req.Method == "tools/list" && answer == nil:
			s.say(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"x","inputSchema":{"type":"object"},"execution":{"taskSupport":"optional"}}]}}`, id)
		case answer != nil:
			result, err := answer(n, req.Params)
			if err != nil {
				code := int64(protocol.CodeInvalidParams)
				if wire, ok := errors.AsType[*jsonrpc.Error](err); ok {
					code = wire.Code
				}
				s.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`, id, code, err.Error())
			} else if result != "" {
				s.say(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
			}
		}
	}
}

func taskJSON(id, status string, more ...string) string {
	return fmt.Sprintf(`{"taskId":%q,"status":%q,"createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z","ttl":null%s}`, id, status, strings.Join(more, ""))
}

func always(result string) func(int, json.RawMessage) (string, error) {
	return func(int, json.RawMessage) (string, error) { return result, nil }
}

func refuse(why string) func(int, json.RawMessage) (string, error) {
	return func(int, json.RawMessage) (string, error) { return "", errors.New(why) }
}

func create(id string) func(int, json.RawMessage) (string, error) {
	return always(`{"task":` + taskJSON(id, "working") + `}`)
}

// with runs a test, in a bubble with its own clock, with a session at a scripted server.
func with(t *testing.T, answers map[string]func(int, json.RawMessage) (string, error), test func(t *testing.T, s *client.Session, server *scripted)) {
	t.Helper()
	withOptions(t, nil, answers, test)
}

func withOptions(t *testing.T, opts *client.Options, answers map[string]func(int, json.RawMessage) (string, error), test func(t *testing.T, s *client.Session, server *scripted)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		near, far := mcp.NewInMemoryTransports()
		conn, err := far.Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		server := &scripted{t: t, conn: conn, answer: answers, asked: map[string]int{}, last: map[string]string{}}
		served := make(chan struct{})
		go func() {
			defer close(served)
			server.serve()
		}()
		s, err := client.Connect(t.Context(), newClient(), near, opts)
		if err != nil {
			t.Fatal(err)
		}
		test(t, s, server)
		_ = s.Close()
		_ = conn.Close()
		<-served
	})
}

var errExpired = errors.New("Failed to retrieve task: Task has expired") //nolint:staticcheck // a server's words

// What a server does wrong ends a call with the error that says so, and never in a busy loop.
func TestMisbehavingServers(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers answers
		want    error
		created bool // the create is answered as it should be
	}{
		{"no task in task", answers{"tools/call": always(`{"task":7}`)}, client.ErrProtocol, false},
		{"a task without id", answers{"tools/call": always(`{"task":{"status":"working"}}`)}, client.ErrProtocol, false},
		{"an empty id", answers{"tools/call": create("")}, client.ErrProtocol, false},
		{"an unknown status", answers{"tools/call": always(`{"task":` + taskJSON("a", "sleeping") + `}`)}, client.ErrProtocol, false},
		{"an id that is a number", answers{"tools/call": always(`{"task":{"taskId":7,"status":"working"}}`)}, client.ErrProtocol, false},
		{"a status that is a number", answers{"tools/call": always(`{"task":{"taskId":"a","status":7}}`)}, client.ErrProtocol, false},
		{"an interval in words", answers{"tools/call": always(`{"task":` + taskJSON("a", "working", `,"pollInterval":"soon"`) + `}`)}, client.ErrProtocol, false},
		{"a time that is none", answers{"tools/call": always(`{"task":{"taskId":"a","status":"working","createdAt":"now"}}`)}, client.ErrProtocol, false},
		{"created cancelled", answers{"tools/call": always(`{"task":` + taskJSON("a", "cancelled") + `}`), "tasks/result": none, "tasks/get": always(taskJSON("a", "cancelled"))}, client.ErrCancelled, true},
		{"the tools are no list", answers{"tools/list": always(`{"tools":{}}`)}, client.ErrProtocol, false},
		{"the tools have no end", answers{"tools/list": always(`{"tools":[],"nextCursor":"again"}`)}, client.ErrProtocol, false},
		{"get is no task", answers{"tools/call": create("a"), "tasks/get": always(`[]`)}, client.ErrProtocol, true},
		{"get is of another task", answers{"tools/call": create("a"), "tasks/get": always(taskJSON("b", "completed"))}, client.ErrProtocol, true},
		{"the task goes back", answers{"tools/call": create("a"), "tasks/get": func(n int, _ json.RawMessage) (string, error) {
			return taskJSON("a", map[bool]string{true: "failed", false: "working"}[n == 1]), nil
		}}, client.ErrProtocol, true},
		{"completed becomes failed", answers{"tools/call": create("a"), "tasks/get": func(n int, _ json.RawMessage) (string, error) {
			return taskJSON("a", map[bool]string{true: "completed", false: "failed"}[n == 1]), nil
		}}, client.ErrProtocol, true},
		{"completed becomes cancelled", answers{"tools/call": create("a"), "tasks/result": none, "tasks/get": func(n int, _ json.RawMessage) (string, error) {
			return taskJSON("a", map[bool]string{true: "completed", false: "cancelled"}[n == 1]), nil
		}}, client.ErrProtocol, true},
		{"failed waits for input", answers{"tools/call": create("a"), "tasks/result": none, "tasks/get": func(n int, _ json.RawMessage) (string, error) {
			return taskJSON("a", map[bool]string{true: "failed", false: "input_required"}[n == 1]), nil
		}}, client.ErrProtocol, true},
		{"the result never comes", answers{"tools/call": create("a"), "tasks/get": always(taskJSON("a", "completed")), "tasks/result": none}, client.ErrProtocol, true},
		{"the result comes before the end", answers{"tools/call": create("a"), "tasks/get": always(taskJSON("a", "working")), "tasks/result": always(`{}`)}, client.ErrProtocol, true},
		{"the result is no object", answers{"tools/call": create("a"), "tasks/get": always(taskJSON("a", "completed")), "tasks/result": always(`[1]`)}, client.ErrProtocol, true},
		{"a result of another shape", answers{"tools/call": create("a"), "tasks/get": always(taskJSON("a", "completed")), "tasks/result": always(`{"content":"x"}`)}, client.ErrProtocol, true},
		{"input is asked for and refused", answers{"tools/call": create("a"), "tasks/get": always(taskJSON("a", "input_required")), "tasks/result": refuse("no")}, client.ErrProtocol, true},
		{"it expires before it is collected", answers{"tools/call": create("a"), "tasks/result": func(n int, _ json.RawMessage) (string, error) {
			return "", map[bool]error{true: errExpired}[n > 1]
		}, "tasks/get": func(n int, _ json.RawMessage) (string, error) {
			if n > 3 {
				return "", errExpired
			}
			return taskJSON("a", map[bool]string{true: "working", false: "completed"}[n < 3]), nil
		}}, client.ErrExpired, true},
		{"it expires in the middle", answers{"tools/call": create("a"), "tasks/result": none, "tasks/get": func(n int, _ json.RawMessage) (string, error) {
			if n > 3 {
				return "", errExpired
			}
			return taskJSON("a", "working"), nil
		}}, client.ErrExpired, true},
		{"it is forgotten", answers{"tools/call": create("a"), "tasks/result": none, "tasks/get": func(int, json.RawMessage) (string, error) {
			return "", errors.New("no such task")
		}}, client.ErrNotFound, true},
		{"it is cancelled elsewhere", answers{"tools/call": create("a"), "tasks/result": none, "tasks/get": always(taskJSON("a", "cancelled"))}, client.ErrCancelled, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			with(t, c.answers, func(t *testing.T, s *client.Session, server *scripted) {
				task, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "x"}, nil)
				if c.created != (err == nil) {
					t.Fatal("create:", err)
				}
				if err == nil {
					_, err = task.Wait(t.Context())
				}
				if !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
				if n := server.count("tasks/get") + server.count("tasks/result"); n > 250 {
					t.Errorf("%d requests", n)
				}
			})
		})
	}
}

// GET-2: whatever interval a server suggests, it is asked neither all the time nor never.
func TestPollIntervals(t *testing.T) {
	for interval, within := range map[string][2]int{ // polls in a minute
		``:                              {50, 70},
		`,"pollInterval":2000`:          {25, 35},
		`,"pollInterval":0`:             {50, 70},
		`,"pollInterval":-1`:            {50, 70},
		`,"pollInterval":1`:             {500, 700},
		`,"pollInterval":1e12`:          {1, 4},
		`,"pollInterval":1000000000000`: {1, 4},
		`,"pollInterval":0.001`:         {50, 70},
	} {
		t.Run(interval, func(t *testing.T) {
			with(t, map[string]func(int, json.RawMessage) (string, error){
				"tools/call":   create("a"),
				"tasks/get":    always(taskJSON("a", "working", interval)),
				"tasks/result": func(int, json.RawMessage) (string, error) { return "", nil },
			}, func(t *testing.T, s *client.Session, server *scripted) {
				task, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "x"}, nil)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if _, err := task.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				if n := server.count("tasks/get"); n < within[0] || n > within[1] {
					t.Errorf("%d polls in a minute", n)
				}
				if n := server.count("tasks/result"); n != 1 {
					t.Errorf("tasks/result was called %d times", n)
				}
				task.Detach()
				if _, err := task.Wait(t.Context()); !errors.Is(err, client.ErrDetached) {
					t.Error(err)
				}
			})
		})
	}
}

// NOT-2: pushes are hints. A storm of them does not make a storm of polls; one for a task that
// is not known yet, and answers to nothing, are no harm.
func TestPushes(t *testing.T) {
	var server *scripted
	var done atomic.Bool
	with(t, map[string]func(int, json.RawMessage) (string, error){
		"tools/call": func(int, json.RawMessage) (string, error) {
			server.say(`{"jsonrpc":"2.0","method":"notifications/tasks/status","params":%s}`, taskJSON("a", "completed")) // too early, and wrong
			server.say(`{"jsonrpc":"2.0","id":"coatcheck-77","result":{}}`)
			server.say(`{"jsonrpc":"2.0","id":12345,"result":{}}`)
			return `{"task":` + taskJSON("a", "working", `,"pollInterval":20000`) + `}`, nil
		},
		"tasks/get": func(int, json.RawMessage) (string, error) {
			return taskJSON("a", map[bool]string{false: "working", true: "completed"}[done.Load()], `,"pollInterval":20000`), nil
		},
		"tasks/result": func(n int, _ json.RawMessage) (string, error) {
			if !done.Load() {
				return "", nil
			}
			return `{"content":[]}`, nil
		},
	}, func(t *testing.T, s *client.Session, at *scripted) {
		server = at
		task, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "x"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			server.say(`{"jsonrpc":"2.0","method":"notifications/tasks/status","params":%s}`, taskJSON("a", "working"))
		}
		synctest.Wait()
		if n := server.count("tasks/get"); n > 1 {
			t.Errorf("%d polls", n)
		}
		begin := time.Now()
		time.Sleep(10 * time.Second) //nolint:forbidigo // the bubble has its own clock
		done.Store(true)
		server.say(`{"jsonrpc":"2.0","method":"notifications/tasks/status","params":%s}`, taskJSON("a", "completed"))
		server.say(`{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}`, server.lastID("tasks/result"))
		server.say(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"again"}]}}`, server.lastID("tasks/result"))
		result, err := task.Wait(t.Context())
		if err != nil || len(result.Content) != 0 {
			t.Errorf("got %+v, %v", result, err)
		}
		if took := time.Since(begin); took > 11*time.Second {
			t.Errorf("the push was not taken as a hint: %v", took)
		}
	})
}

// A session that ends takes its waiters with it, not its tasks.
func TestServerGoes(t *testing.T) {
	with(t, map[string]func(int, json.RawMessage) (string, error){
		"tools/call": create("a"), "tasks/get": always(taskJSON("a", "working")),
		"tasks/result": func(int, json.RawMessage) (string, error) { return "", nil },
	}, func(t *testing.T, s *client.Session, server *scripted) {
		task, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "x"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = server.conn.Close()
		if _, err := task.Wait(t.Context()); !errors.Is(err, client.ErrClosed) {
			t.Error(err)
		}
	})
}
