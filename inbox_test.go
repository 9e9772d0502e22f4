package coatcheck_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck/protocol"
)

// inbox is what a client was sent that answers none of its calls, in order.
type inbox struct {
	mu      sync.Mutex
	arrived chan struct{} // closed and made anew with each message
	all     []heard
}

// heard is a request or notification of the server.
type heard struct {
	stream string // the method of the call on whose stream it came, "GET" or "connection"
	raw    []byte
	*protocol.Message
}

func newInbox() *inbox { return &inbox{arrived: make(chan struct{})} }

func (in *inbox) add(stream string, raw []byte) {
	raw = bytes.Clone(bytes.TrimSpace(raw))
	m, err := protocol.ParseMessage(raw)
	if err != nil {
		m = &protocol.Message{Method: "malformed: " + string(raw)}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.all = append(in.all, heard{stream, raw, m})
	close(in.arrived)
	in.arrived = make(chan struct{})
}

// read reads an event stream until it has a response, and keeps the rest.
func (in *inbox) read(body io.Reader, stream string) (response []byte, err error) {
	lines := bufio.NewReader(body)
	for {
		line, err := lines.ReadString('\n')
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			m, parseErr := protocol.ParseMessage([]byte(strings.TrimSpace(data)))
			if parseErr == nil && m.Method == "" {
				return []byte(strings.TrimSpace(data)), nil
			}
			in.add(stream, []byte(data))
		}
		if err != nil {
			return nil, fmt.Errorf("the stream ended without a response: %w", err)
		}
	}
}

// seen returns what matches, of all that has arrived.
func (in *inbox) seen(match func(heard) bool) []heard {
	in.mu.Lock()
	defer in.mu.Unlock()
	var found []heard
	for _, m := range in.all {
		if match(m) {
			found = append(found, m)
		}
	}
	return found
}

// await returns the first n messages that match, once they are there.
func (in *inbox) await(t *testing.T, n int, match func(heard) bool) []heard {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		in.mu.Lock()
		arrived := in.arrived
		in.mu.Unlock()
		if found := in.seen(match); len(found) >= n {
			return found[:n]
		}
		select {
		case <-arrived:
		case <-timeout:
			t.Fatalf("%d messages wanted; got %s", n, in.dump())
		}
	}
}

func (in *inbox) dump() string {
	var all []string
	for _, m := range in.seen(func(heard) bool { return true }) {
		all = append(all, m.stream+": "+string(m.raw))
	}
	return strings.Join(all, "\n")
}

func method(name string) func(heard) bool { return func(m heard) bool { return m.Method == name } }

// related returns the id of the task that a message is marked with.
func related(params json.RawMessage) string {
	id, _ := protocol.Unquote(protocol.Get(protocol.Get(protocol.Get(params, "_meta"), protocol.MetaRelatedTask), "taskId"))
	return id
}

// streamOf names the stream of a call.
func streamOf(message []byte) string {
	m, err := protocol.ParseMessage(message)
	if err != nil {
		return "?"
	}
	return m.Method
}

// waiting is a call in the background, as of tasks/result.
type waiting struct {
	id    int // of the call
	cut   context.CancelFunc
	ended chan struct{}
	reply reply
	err   error
}

// wait calls tasks/result in the background.
func (p *peer) wait(id string) *waiting { return p.begin("tasks/result", idParams(id)) }

// begin makes a call in the background.
func (p *peer) begin(method, params string) *waiting {
	ctx, cut := context.WithCancel(context.Background())
	w := &waiting{id: p.nextID(), cut: cut, ended: make(chan struct{})}
	p.t.Cleanup(func() {
		cut()
		<-w.ended
	})
	go func() {
		defer close(w.ended)
		w.reply, w.err = p.callContext(ctx, w.id, method, params)
	}()
	return w
}

// result returns the answer, once it is there.
func (w *waiting) result(t *testing.T) reply {
	t.Helper()
	select {
	case <-w.ended:
	case <-time.After(30 * time.Second):
		t.Fatal("no answer")
	}
	if w.err != nil {
		t.Fatal(w.err)
	}
	return w.reply
}

// answer answers a question of the server; the error is what the server says against it, where
// it can (over HTTP).
func (p *peer) answer(question heard, result string) error {
	p.t.Helper()
	_, err := p.round(context.Background(), fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, question.ID, result))
	return err
}

// refuse answers a question of the server with an error.
func (p *peer) refuse(question heard, object string) error {
	p.t.Helper()
	_, err := p.round(context.Background(), fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":%s}`, question.ID, object))
	return err
}

// status polls until a task has the status wanted.
func (p *peer) status(id, want string) protocol.Task {
	p.t.Helper()
	return p.until(id, func(t protocol.Task) bool { return t.Status == want })
}

// until polls until a task is as wanted.
func (p *peer) until(id string, ok func(protocol.Task) bool) protocol.Task {
	p.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		got := p.get(id)
		if ok(got) {
			return got
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("the task stays %s: %s", got.Status, got.StatusMessage)
		}
	}
}
