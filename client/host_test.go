package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// requesting is a server that asks a client, at the level of raw messages.
type requesting struct {
	t           *testing.T
	conn        mcp.Connection
	initialized json.RawMessage // params of the client's initialize request

	mu      sync.Mutex
	lastID  int
	waiting map[string]chan *jsonrpc.Response
	told    chan *jsonrpc.Request // notifications
}

func (r *requesting) serve() {
	for {
		msg, err := r.conn.Read(context.Background())
		if err != nil {
			return
		}
		switch msg := msg.(type) {
		case *jsonrpc.Request:
			switch {
			case msg.Method == "initialize":
				r.initialized = msg.Params
				_ = r.conn.Write(context.Background(), &jsonrpc.Response{ID: msg.ID, Result: json.RawMessage(capabilities)})
			case msg.IsCall():
				_ = r.conn.Write(context.Background(), &jsonrpc.Response{ID: msg.ID, Result: json.RawMessage(`{}`)})
			default:
				select {
				case r.told <- msg:
				default:
				}
			}
		case *jsonrpc.Response:
			r.mu.Lock()
			answer := r.waiting[fmt.Sprint(msg.ID.Raw())]
			r.mu.Unlock()
			if answer != nil {
				answer <- msg
			}
		}
	}
}

// call asks the client; the error is a *jsonrpc.Error.
func (r *requesting) call(method, params string) (json.RawMessage, error) {
	r.t.Helper()
	r.mu.Lock()
	r.lastID++
	id, _ := jsonrpc.MakeID(float64(r.lastID))
	answer := make(chan *jsonrpc.Response, 1)
	r.waiting[fmt.Sprint(id.Raw())] = answer
	r.mu.Unlock()
	if err := r.conn.Write(context.Background(), &jsonrpc.Request{ID: id, Method: method, Params: json.RawMessage(params)}); err != nil {
		r.t.Fatal(err)
	}
	select {
	case resp := <-answer:
		return resp.Result, resp.Error
	case <-time.After(30 * time.Second):
		r.t.Fatalf("%s %s: no answer", method, params)
		return nil, nil
	}
}

func (r *requesting) wantError(code int64, text, method, params string) {
	r.t.Helper()
	result, err := r.call(method, params)
	wire, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok || wire.Code != code || !strings.Contains(wire.Message, text) {
		r.t.Errorf("%s %s: %s, %v; want %d %s", method, params, result, err, code, text)
	}
}

// create asks for a sample as a task and returns the task's id.
func (r *requesting) create(text, more string) string {
	r.t.Helper()
	result, err := r.call("sampling/createMessage", sampling(text, `,"task":{}`+more))
	if err != nil {
		r.t.Fatal(err)
	}
	id, _ := protocol.Unquote(protocol.Get(protocol.Get(result, "task"), "taskId"))
	if protocol.Get(result, "content") != nil || id == "" { // CRE-1
		r.t.Fatalf("created %s", result)
	}
	return id
}

func (r *requesting) until(id, status string) json.RawMessage {
	r.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		got, err := r.call("tasks/get", ref(id))
		if err != nil {
			r.t.Fatal(err)
		}
		if string(protocol.Get(got, "status")) == `"`+status+`"` {
			return got
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("the task stays %s", got)
		}
	}
}

func ref(id string) string { return string(protocol.Marshal(map[string]string{"taskId": id})) }

func sampling(text, more string) string {
	return `{"maxTokens":5,"messages":[{"role":"user","content":{"type":"text","text":"` + text + `"}}]` + more + `}`
}

// model answers a sampling request as its text says.
type model struct {
	release chan struct{} // for "wait"
	stopped chan struct{} // closed when a "wait" was cancelled
}

func (m *model) sample(ctx context.Context, req *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
	said := req.Params.Messages[0].Content.(*mcp.TextContent).Text
	switch said {
	case "error":
		return nil, &jsonrpc.Error{Code: -32050, Message: "no model", Data: json.RawMessage(`{"n":1.50}`)}
	case "wait":
		if err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: 1, Total: 2}); err != nil {
			return nil, err
		}
		select {
		case <-m.release:
		case <-ctx.Done():
			close(m.stopped)
			return nil, ctx.Err()
		}
	}
	return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: said + "!"}}, nil
}

// hosting connects a client that hosts tasks to a server that asks for them.
func hosting(t *testing.T, opts *client.HostOptions, test func(t *testing.T, r *requesting, m *model)) {
	t.Helper()
	m := &model{make(chan struct{}), make(chan struct{})}
	opts.Database = "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")
	opts.Grace = -1
	host, err := client.OpenHost(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	near, far := mcp.NewInMemoryTransports()
	conn, err := far.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := &requesting{t: t, conn: conn, waiting: map[string]chan *jsonrpc.Response{}, told: make(chan *jsonrpc.Request, 100)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		r.serve()
	}()
	c := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ClientOptions{CreateMessageHandler: m.sample, ElicitationHandler: accept})
	s, err := client.Connect(t.Context(), c, near, &client.Options{Host: host, Server: "s"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Close(context.Background()); err != nil {
			t.Error(err)
		}
		_ = s.Close()
		_ = conn.Close()
		<-served
	})
	test(t, r, m)
}

// Part A with the roles exchanged: the server is the requestor, the client the receiver.
func TestHosting(t *testing.T) {
	both := &client.HostOptions{Sampling: client.Optional, Elicitation: client.Optional}
	hosting(t, both, func(t *testing.T, r *requesting, m *model) {
		tasks := protocol.Get(protocol.Get(r.initialized, "capabilities"), "tasks")
		if want := `{"list":{},"cancel":{},"requests":{"sampling":{"createMessage":{}},"elicitation":{"create":{}}}}`; string(tasks) != want { // CAP-1, CAP-2
			t.Errorf("declared %s", tasks)
		}
		// TOOL-3: both ways work.
		if result, err := r.call("sampling/createMessage", sampling("plain", "")); err != nil || !strings.Contains(string(result), "plain!") {
			t.Errorf("plain: %s, %v", result, err)
		}
		id := r.create("hello", "")
		result, err := r.call("tasks/result", ref(id))
		if err != nil || !strings.Contains(string(result), `"text":"hello!"`) || !strings.Contains(string(result), `"model":"m"`) { // RES-1
			t.Errorf("result %s, %v", result, err)
		}
		if related := protocol.Get(protocol.Get(result, "_meta"), protocol.MetaRelatedTask); string(related) != ref(id) { // RES-3
			t.Errorf("result %s", result)
		}
		got := r.until(id, "completed")        // GET-1
		if protocol.Get(got, "_meta") != nil { // REL-3
			t.Errorf("got %s", got)
		}

		// EXE-1, RES-1: an error comes back as it was.
		failed := r.create("error", "")
		_, err = r.call("tasks/result", ref(failed))
		if wire, ok := errors.AsType[*jsonrpc.Error](err); !ok || wire.Code != -32050 || wire.Message != "no model" || string(wire.Data) != `{"n":1.50}` {
			t.Errorf("error %v", err)
		}
		if got := r.until(failed, "failed"); string(protocol.Get(got, "statusMessage")) != `"no model"` { // EXE-3
			t.Errorf("got %s", got)
		}

		// CAN-1, ERR-1, ERR-3, C.3
		r.wantError(-32602, "already in terminal status 'completed'", "tasks/cancel", ref(id))
		r.wantError(-32602, "Task not found", "tasks/get", ref("nothing"))
		r.wantError(-32602, "ttl", "sampling/createMessage", sampling("x", `,"task":{"ttl":-1}`))
		r.wantError(-32602, "cursor", "tasks/list", `{"cursor":"x"}`) // LST-3
		list, err := r.call("tasks/list", `{}`)                       // LST-2
		if err != nil || !strings.Contains(string(list), id) || !strings.Contains(string(list), failed) {
			t.Errorf("list %s, %v", list, err)
		}

		// PROG-1, REL-1, RES-2, INP: it blocks, and reports, until it is there.
		waits := r.create("wait", `,"_meta":{"progressToken":"p"}`)
		w := make(chan string, 1)
		go func() {
			result, err := r.call("tasks/result", ref(waits))
			w <- fmt.Sprint(string(result), err)
		}()
		for {
			told := <-r.told
			if told.Method != protocol.MethodProgress {
				continue
			}
			if string(protocol.Get(told.Params, "progressToken")) != `"p"` || !strings.Contains(string(told.Params), waits) {
				t.Errorf("told %s", told.Params)
			}
			break
		}
		close(m.release)
		if got := <-w; !strings.Contains(got, "wait!") {
			t.Error(got)
		}

		// An elicitation is one, too.
		answer, err := r.call("elicitation/create", `{"message":"?","requestedSchema":{"type":"object","properties":{"confirm":{"type":"boolean"}}},"task":{"ttl":60000}}`)
		if err != nil {
			t.Fatal(err)
		}
		asked, _ := protocol.Unquote(protocol.Get(protocol.Get(answer, "task"), "taskId"))
		if ttl := protocol.Get(protocol.Get(answer, "task"), "ttl"); string(ttl) != "60000" { // CRE-2, TTL-2
			t.Errorf("ttl %s", ttl)
		}
		if result, err := r.call("tasks/result", ref(asked)); err != nil || !strings.Contains(string(result), `"action":"accept"`) {
			t.Errorf("result %s, %v", result, err)
		}
	})
}

// CAN-2, CAN-3: a cancel stops the handler, and the task is cancelled before the answer.
func TestHostedCancel(t *testing.T) {
	hosting(t, &client.HostOptions{Sampling: client.Optional}, func(t *testing.T, r *requesting, m *model) {
		id := r.create("wait", "")
		r.until(id, "working")
		got, err := r.call("tasks/cancel", ref(id))
		if err != nil || string(protocol.Get(got, "status")) != `"cancelled"` {
			t.Errorf("got %s, %v", got, err)
		}
		<-m.stopped
		r.wantError(-32800, "cancelled", "tasks/result", ref(id)) // C.2
		// CAP-2, CAP-5: elicitation is not declared, so it runs plainly.
		result, err := r.call("elicitation/create", `{"message":"?","requestedSchema":{"type":"object","properties":{}},"task":{}}`)
		if err != nil || protocol.Get(result, "action") == nil {
			t.Errorf("got %s, %v", result, err)
		}
	})
}

// CAP-6: a client that insists on tasks refuses a plain request.
func TestHostInsists(t *testing.T) {
	hosting(t, &client.HostOptions{Sampling: client.Required, MaxTTL: time.Hour}, func(t *testing.T, r *requesting, _ *model) {
		r.wantError(-32600, "as a task", "sampling/createMessage", sampling("x", ""))
		r.create("x", "")
	})
}
