package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// limiting is a server over HTTP that refuses for a limit, with status 429, before it answers.
type limiting struct {
	t       *testing.T
	waitMs  int
	failing string // the outcome of the task, if it is an error

	mu     sync.Mutex
	refuse map[string]int // how often, by method
	asked  map[string][]time.Time
}

func (l *limiting) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	m, err := protocol.ParseMessage(body)
	if err != nil {
		l.t.Errorf("%v: %s", err, body)
		return
	}
	if !m.IsCall() {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	l.mu.Lock()
	l.asked[m.Method] = append(l.asked[m.Method], time.Now())
	refuse := l.refuse[m.Method] > 0
	if refuse {
		l.refuse[m.Method]--
	}
	l.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if refuse {
		limit := "gets"
		if m.Method == "tools/call" {
			limit = "creates"
		}
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32029,"message":"too much","data":{"limit":%q,"retryAfterMs":%d}}}`, m.ID, limit, l.waitMs)
		return
	}
	status := "completed"
	if l.failing != "" {
		status = "failed"
	}
	result := ""
	switch m.Method {
	case "initialize":
		w.Header().Set("Mcp-Session-Id", "1")
		result = capabilities
	case "tools/list":
		result = `{"tools":[{"name":"x","inputSchema":{"type":"object"},"execution":{"taskSupport":"optional"}}]}`
	case "tools/call":
		result = `{"task":` + taskJSON("a", "working") + `}`
	case "tasks/get":
		result = taskJSON("a", status)
	case "tasks/list":
		result = `{"tasks":[` + taskJSON("a", status) + `]}`
	case "tasks/result":
		if l.failing != "" {
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":%s}`, m.ID, l.failing)
			return
		}
		result = `{"content":[{"type":"text","text":"done"}]}`
	}
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

func (l *limiting) connect() *client.Session {
	l.t.Helper()
	l.asked = map[string][]time.Time{}
	web := httptest.NewServer(l)
	l.t.Cleanup(web.Close)
	s, err := client.Connect(l.t.Context(), newClient(), &mcp.StreamableClientTransport{Endpoint: web.URL}, &client.Options{
		MinPoll: time.Millisecond, Poll: time.Millisecond, MaxPoll: 10 * time.Millisecond,
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = s.Close() })
	return s
}

// waited checks that each refusal was waited out before the method was tried again.
func (l *limiting) waited(method string, refusals int) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.asked[method]
	if l.refuse[method] > 0 || len(at) <= refusals {
		l.t.Errorf("%s was asked %d times, %d refusals are left", method, len(at), l.refuse[method])
		return
	}
	for i := range refusals {
		if gap := at[i+1].Sub(at[i]); gap < time.Duration(l.waitMs)*time.Millisecond {
			l.t.Errorf("%s was tried again after %v", method, gap)
		}
	}
}

// SEC-5, RSC-1: what is asked about a task and refused for a limit is waited out, more often
// than an error would be believed, and is never taken for the end of the task.
func TestLimitsAreWaitedOut(t *testing.T) {
	l := &limiting{t: t, waitMs: 30, refuse: map[string]int{"tasks/get": 7, "tasks/result": 7, "tasks/list": 2}}
	s := l.connect()
	result, err := callX(t, s).Wait(t.Context())
	if err != nil || !strings.Contains(result.Content[0].(*mcp.TextContent).Text, "done") {
		t.Fatalf("got %+v, %v", result, err)
	}
	l.waited("tasks/get", 7)
	l.waited("tasks/result", 7)
	n := 0
	for state, err := range s.List(t.Context()) {
		if n++; err != nil || state.ID != "a" {
			t.Errorf("listed %+v, %v", state, err)
		}
	}
	if n != 1 {
		t.Errorf("%d tasks are listed", n)
	}
	l.waited("tasks/list", 2)
	l.mu.Lock()
	l.refuse["tasks/result"], l.asked["tasks/result"] = 2, nil
	l.mu.Unlock()
	if raw, err := s.Result(t.Context(), "a"); err != nil || !strings.Contains(string(raw), "done") {
		t.Errorf("got %s, %v", raw, err)
	}
	l.waited("tasks/result", 2)
}

// Waiting ends with ctx, and with the session.
func TestLimitsAreWaitedOutInTime(t *testing.T) {
	l := &limiting{t: t, waitMs: 3_600_000, refuse: map[string]int{"tasks/get": 2}}
	s := l.connect()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.Get(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a deadline: %v", err)
	}
	task := callX(t, s)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := task.Wait(t.Context()); !errors.Is(err, client.ErrClosed) {
		t.Errorf("of a closed session: %v", err)
	}
}

// A create that is refused is the caller's to try again.
func TestRefusedCreate(t *testing.T) {
	l := &limiting{t: t, waitMs: 1500, refuse: map[string]int{"tools/call": 1}}
	s := l.connect()
	_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "x"}, nil)
	if wait, ok := client.RetryAfter(err); !ok || wait != 1500*time.Millisecond {
		t.Fatalf("%v, %v: %v", wait, ok, err)
	}
	if result, err := callX(t, s).Wait(t.Context()); err != nil || result == nil {
		t.Errorf("the session goes on: %+v, %v", result, err)
	}
	if n := len(l.asked["tools/call"]); n != 2 {
		t.Errorf("asked %d times", n)
	}
}

// A task may fail with such an error itself, where what it ran was refused behind the server.
func TestRefusalAsOutcome(t *testing.T) {
	for name, failing := range map[string]string{
		"a create":     `{"code":-32029,"message":"no","data":{"limit":"creates","retryAfterMs":5}}`,
		"a session":    `{"code":-32029,"message":"no","data":{"limit":"sessions","retryAfterMs":5}}`,
		"no limit":     `{"code":-32029,"message":"no","data":{"retryAfterMs":5}}`,
		"without time": `{"code":-32029,"message":"no","data":{"limit":"request"}}`,
		"without data": `{"code":-32029,"message":"no"}`,
	} {
		l := &limiting{t: t, failing: failing}
		_, err := callX(t, l.connect()).Wait(t.Context())
		if wire, ok := errors.AsType[*jsonrpc.Error](err); !ok || wire.Code != protocol.CodeLimitExceeded {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for data, want := range map[string]time.Duration{
		`{"retryAfterMs":1500}`: 1500 * time.Millisecond, `{"retryAfterMs":0.5}`: 500 * time.Microsecond, `{"retryAfterMs":1e300}`: 365 * 24 * time.Hour,
		`{"retryAfterMs":0}`: 0, `{"retryAfterMs":-1}`: 0, `{"retryAfterMs":"1"}`: 0, `{}`: 0, `7`: 0, ``: 0,
	} {
		err := fmt.Errorf("wrapped: %w", &jsonrpc.Error{Code: protocol.CodeLimitExceeded, Data: []byte(data)})
		if got, ok := client.RetryAfter(err); got != want || ok != (want > 0) {
			t.Errorf("%s: %v, %v", data, got, ok)
		}
	}
	for _, err := range []error{nil, io.EOF, &jsonrpc.Error{Code: -32603, Data: []byte(`{"retryAfterMs":5}`)}} {
		if got, ok := client.RetryAfter(err); ok {
			t.Errorf("%v: %v", err, got)
		}
	}
}
