package client_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// patience bounds what a test waits for. It is generous because a slow machine is no failure.
const patience = 60 * time.Second

// requesting is a requestor at the level of raw messages: a server that asks its client, or a
// client that calls a server.
type requesting struct {
	t *testing.T
	// method and params make a request for the model, with more members of the params.
	method string
	params func(text, more string) string
	// say sends a request to the receiver, or a notification if id is "".
	say func(id, method string, params json.RawMessage) error
	// reply, if set, sends the answer to a question of the receiver's.
	reply func(message string) error
	// transport is the client's, of a server.
	transport mcp.Transport
	// connected, if set, is called once the client is, and returns what is to be called before
	// it leaves.
	connected func(s *client.Session) (leave func())

	mu        sync.Mutex
	lastID    int
	waiting   map[string]chan *protocol.Message
	declared  json.RawMessage        // what the receiver declares of tasks
	told      chan *protocol.Message // the receiver's notifications
	questions chan *protocol.Message // the receiver's, of tasks
}

func newRequesting(t *testing.T) *requesting {
	return &requesting{
		t: t, waiting: map[string]chan *protocol.Message{},
		told: make(chan *protocol.Message, 1000), questions: make(chan *protocol.Message, 1000),
	}
}

// heard takes a message of the receiver's. It returns the id, if that was the answer to a
// request of ours.
func (r *requesting) heard(m *protocol.Message) (id string, answer bool) {
	switch {
	case m.IsResponse():
		r.mu.Lock()
		defer r.mu.Unlock()
		id, _ := protocol.Unquote(m.ID)
		waiting := r.waiting[id]
		delete(r.waiting, id)
		if waiting != nil {
			waiting <- m
		}
		return id, waiting != nil
	case m.Method == "initialize":
		r.mu.Lock()
		defer r.mu.Unlock()
		r.declared = bytes.Clone(protocol.Get(protocol.Get(m.Params, "capabilities"), "tasks"))
	case m.Method == protocol.MethodElicit:
		r.questions <- m
	case !m.IsCall():
		select {
		case r.told <- m:
		default:
			r.t.Errorf("too many notifications: %s %s", m.Method, m.Params)
		}
	}
	return "", false
}

// begin asks the receiver and returns the request's id and where its answer will come.
func (r *requesting) begin(method, params string) (id string, answer <-chan *protocol.Message) {
	r.t.Helper()
	answers := make(chan *protocol.Message, 1)
	r.mu.Lock()
	r.lastID++
	id = fmt.Sprint("q", r.lastID)
	r.waiting[id] = answers
	r.mu.Unlock()
	if err := r.say(id, method, json.RawMessage(params)); err != nil {
		r.t.Fatal(err)
	}
	return id, answers
}

// call asks the receiver; the error is a *jsonrpc.Error.
func (r *requesting) call(method, params string) (json.RawMessage, error) {
	r.t.Helper()
	_, answer := r.begin(method, params)
	return r.answered(answer)
}

func (r *requesting) answered(answer <-chan *protocol.Message) (json.RawMessage, error) {
	r.t.Helper()
	select {
	case m := <-answer:
		if m.Error == nil {
			return m.Result, nil
		}
		wire := &jsonrpc.Error{}
		if err := json.Unmarshal(m.Error, wire); err != nil {
			r.t.Fatal(err)
		}
		return nil, wire
	case <-time.After(patience):
		r.t.Fatal("no answer")
		return nil, nil
	}
}

// must is call for what is not refused.
func (r *requesting) must(method, params string) json.RawMessage {
	r.t.Helper()
	result, err := r.call(method, params)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, params, err)
	}
	return result
}

func (r *requesting) wantError(code int64, text, method, params string) {
	r.t.Helper()
	result, err := r.call(method, params)
	r.checkError(code, text, method+" "+params, result, err)
}

func (r *requesting) checkError(code int64, text, what string, result json.RawMessage, err error) {
	r.t.Helper()
	wire, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok || wire.Code != code || !strings.Contains(wire.Message, text) {
		r.t.Errorf("%s: %s, %v; want %d %s", what, result, err, code, text)
	}
}

// create asks for a sample as a task and returns the task.
func (r *requesting) create(text, more string) protocol.Task {
	r.t.Helper()
	if !strings.Contains(more, `"task"`) {
		more += `,"task":{}`
	}
	return r.created(r.must(r.method, r.params(text, more)))
}

// created checks a CreateTaskResult and returns its task.
func (r *requesting) created(result json.RawMessage) protocol.Task {
	r.t.Helper()
	raw := protocol.Get(result, "task")
	if raw == nil || protocol.Get(result, "content") != nil || protocol.Get(result, "action") != nil { // CRE-1
		r.t.Fatalf("created %s", result)
	}
	task := r.task(raw)
	if task.Status != "working" || related(result) != task.TaskID { // CRE-3, REL-1
		r.t.Errorf("created %s", result)
	}
	return task
}

// task reads a task and checks what each must have.
func (r *requesting) task(raw json.RawMessage) protocol.Task {
	r.t.Helper()
	var task protocol.Task
	if err := json.Unmarshal(raw, &task); err != nil {
		r.t.Fatalf("%s: %v", raw, err)
	}
	if task.TaskID == "" || task.CreatedAt.IsZero() || task.LastUpdatedAt.Before(task.CreatedAt) || protocol.Get(raw, "ttl") == nil { // TTL-1, TTL-2
		r.t.Errorf("not a whole task: %s", raw)
	}
	return task
}

// until polls a task until it has the status.
func (r *requesting) until(id, status string) json.RawMessage {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		got := r.must("tasks/get", ref(id))
		if string(protocol.Get(got, "status")) == `"`+status+`"` {
			return got
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("the task stays %s", got)
		}
	}
}

// hear returns the client's next notification of a method.
func (r *requesting) hear(method string) *protocol.Message {
	r.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case m := <-r.told:
			if m.Method == method {
				return m
			}
		case <-timeout:
			r.t.Fatalf("no %s", method)
		}
	}
}

// question returns the receiver's next question.
func (r *requesting) question() *protocol.Message {
	r.t.Helper()
	select {
	case m := <-r.questions:
		return m
	case <-time.After(patience):
		r.t.Fatal("no question")
		return nil
	}
}

// related returns the id in a message's related-task metadata, or "".
func related(params json.RawMessage) string {
	meta := protocol.Get(protocol.Get(params, "_meta"), protocol.MetaRelatedTask)
	id, _ := protocol.Unquote(protocol.Get(meta, "taskId"))
	return id
}

func ref(id string) string { return string(protocol.Marshal(map[string]string{"taskId": id})) }

func sampling(text, more string) string {
	return `{"maxTokens":5,"messages":[{"role":"user","content":{"type":"text","text":"` + text + `"}}]` + more + `}`
}

const asking = `"message":"?","requestedSchema":{"type":"object","properties":{"confirm":{"type":"boolean"}}}`

// line is a message as the server writes it.
func line(id, method string, params json.RawMessage) string {
	if id == "" {
		return fmt.Sprintf("{\"jsonrpc\":\"2.0\",\"method\":%q,\"params\":%s}\n", method, params)
	}
	return fmt.Sprintf("{\"jsonrpc\":\"2.0\",\"id\":%q,\"method\":%q,\"params\":%s}\n", id, method, params)
}

// serveLines is the server of a client at the other end of two pipes, as over stdio. It ends
// with from.
func serveLines(t *testing.T, from io.Reader, to io.Writer) *requesting {
	r := newRequesting(t)
	var mu sync.Mutex
	write := func(s string) error {
		mu.Lock()
		defer mu.Unlock()
		_, err := io.WriteString(to, s)
		return err
	}
	r.say = func(id, method string, params json.RawMessage) error { return write(line(id, method, params)) }
	served := make(chan struct{})
	go func() {
		defer close(served)
		lines := bufio.NewReader(from)
		for {
			text, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			m, err := protocol.ParseMessage(text)
			if err != nil {
				t.Errorf("not a message: %s", text)
				continue
			}
			r.heard(m)
			if m.IsCall() {
				result := json.RawMessage(`{}`)
				if m.Method == "initialize" {
					result = json.RawMessage(capabilities)
				}
				_ = write(string(protocol.AppendResult(nil, m.ID, result)) + "\n") // fails when the client is gone
			}
		}
	}()
	t.Cleanup(func() { <-served })
	return r
}

// overPipes is a requesting server as over stdio.
func overPipes(t *testing.T) *requesting {
	t.Helper()
	fromClient, clientOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	clientIn, toClient, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r := serveLines(t, fromClient, toClient)
	r.transport = &mcp.IOTransport{Reader: clientIn, Writer: clientOut}
	t.Cleanup(func() {
		_, _ = clientOut.Close(), toClient.Close() // one is closed by the client
	})
	return r
}
