//go:build unix

package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store/memory"
	"github.com/coatcheck/coatcheck/task"
)

// taskServer is a server that runs all its tools only as tasks: newServer behind the tap.
type taskServer struct {
	url    string
	client *http.Client
	engine *engine.Engine
	down   atomic.Bool // answers 502
	gets   atomic.Int32
}

func newTaskServer(t *testing.T, events chan<- string) *taskServer {
	t.Helper()
	server := newServer(events)
	_, log := newLogs()
	kept := memory.New()
	e, err := engine.New(t.Context(), engine.Options{Store: kept, Runner: InProcess(server, log, Never), PollInterval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	rec := receiver.New(receiver.Options{Engine: e, Tools: receiver.Tools{Default: protocol.Required}})
	h := wire.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil), rec, nil)
	s := &taskServer{engine: e}
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if s.down.Load() {
			http.Error(w, "down", http.StatusBadGateway)
			return
		}
		if req.Method == http.MethodGet {
			s.gets.Add(1)
		}
		h.ServeHTTP(w, req)
	}))
	s.url, s.client = ts.URL, ts.Client()
	t.Cleanup(func() {
		ts.Close()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = e.Shutdown(ctx)
		kept.Close()
		for left := range server.Sessions() {
			left.Close()
		}
	})
	return s
}

func (s *taskServer) runner(t *testing.T) *Remote {
	u := URL(s.url, &URLOptions{Client: s.client})
	t.Cleanup(func() { u.Close() })
	return u
}

func (s *taskServer) status(t *testing.T, id string) task.Status {
	t.Helper()
	at, err := s.engine.Get(t.Context(), task.Ref{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	return at.Status
}

// remoteJob returns a job, and the ids that it was told to record.
func remoteJob(tool string) (*engine.Job, <-chan string) {
	job, _ := newJob(tool)
	ids := make(chan string, 10)
	job.Line.(*line).remote = func(_ context.Context, id string) error {
		ids <- id
		return nil
	}
	return job, ids
}

func TestTools(t *testing.T) {
	s := newTaskServer(t, nil)
	tools, err := s.runner(t).Tools(t.Context())
	if err != nil || tools["echo"] != protocol.Required {
		t.Errorf("%v, %v", tools, err)
	}
	tools, err = newProcesses(t, 1).Tools(t.Context())
	if err != nil || len(tools) != 0 { // it declares no tasks
		t.Errorf("%v, %v", tools, err)
	}
}

// TOOL-4: such a tool is called as a task there, and its outcome is ours (RES-1).
func TestRequiredToolIsCalledAsATask(t *testing.T) {
	s := newTaskServer(t, nil)
	u := s.runner(t)
	for _, tool := range []string{"echo", "isError", "error"} {
		job, ids := remoteJob(tool)
		outcome, err := u.Run(t.Context(), job)
		if err != nil {
			t.Fatal(err)
		}
		id := <-ids
		switch tool {
		case "echo":
			if got := string(protocol.Get(outcome.Result, "structuredContent")); got != fidelity {
				t.Errorf("got  %s\nwant %s", got, fidelity)
			}
			meta := string(protocol.Get(outcome.Result, "_meta"))
			if !strings.Contains(meta, `"kept":true`) || !strings.Contains(meta, id) { // nothing is stripped
				t.Errorf("_meta %s", meta)
			}
		case "isError":
			if !outcome.IsError {
				t.Error("not seen as an error")
			}
		case "error":
			if want := `{"code":-32050,"message":"kaputt ü","data":{"retry":1.50,"a":[]}}`; string(outcome.Error) != want {
				t.Errorf("got %s", outcome.Error)
			}
		}
	}
}

// A task that was adopted after a restart is followed, not called again; one that the server
// no longer has fails and says so.
func TestAdoptedTask(t *testing.T) {
	events := make(chan string, 10)
	s := newTaskServer(t, events)
	u := s.runner(t)
	job, ids := remoteJob("echo")
	if _, err := u.Run(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	job, again := remoteJob("wait") // it would wait for ever if it were called
	job.Remote = <-ids
	outcome, err := u.Run(t.Context(), job)
	if err != nil || string(protocol.Get(outcome.Result, "structuredContent")) != fidelity || len(again) != 0 {
		t.Errorf("%s, %v", outcome.Result, err)
	}
	job.Remote = "unknown"
	_, err = u.Run(t.Context(), job)
	var wireError *protocol.Error
	if !errors.As(err, &wireError) || !strings.Contains(wireError.Message, "no longer knows its task") {
		t.Errorf("error %v", err)
	}
	if len(events) != 0 {
		t.Error("the tool was called")
	}
}

// CAN-2: the server's task is cancelled too.
func TestCancelReachesTheServersTask(t *testing.T) {
	events := make(chan string, 2)
	s := newTaskServer(t, events)
	job, ids := remoteJob("wait")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-events
		cancel()
	}()
	if _, err := s.runner(t).Run(ctx, job); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if status := s.status(t, <-ids); status != task.Cancelled {
		t.Errorf("status %s", status)
	}
	if got := <-events; got != "cancelled" {
		t.Error(got)
	}
}

// When we shut down, the server's task goes on, and the next process finds it.
func TestShutdownLeavesTheServersTask(t *testing.T) {
	events := make(chan string, 2)
	s := newTaskServer(t, events)
	kept := memory.New()
	defer kept.Close()
	e, err := engine.New(t.Context(), engine.Options{Store: kept, Runner: s.runner(t)})
	if err != nil {
		t.Fatal(err)
	}
	job, _ := newJob("wait")
	ours, err := e.Create(t.Context(), engine.Creation{Caller: &engine.Caller{}, Request: job.Request})
	if err != nil {
		t.Fatal(err)
	}
	<-events
	var stored *task.Task
	eventually(t, "the id is stored", func() bool {
		stored, err = kept.Get(t.Context(), ours.Ref)
		return err == nil && stored.Remote != ""
	})
	now, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Shutdown(now); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if status := s.status(t, stored.Remote); status != task.Working {
		t.Errorf("status %s", status)
	}
	if after, err := kept.Get(t.Context(), ours.Ref); err != nil || after.Status != task.Working {
		t.Errorf("ours is %+v, %v", after, err)
	}
}

// A server that is away for a while is found again.
func TestPollingSurvivesALostConnection(t *testing.T) {
	events := make(chan string, 2)
	s := newTaskServer(t, events)
	job, ids := remoteJob("wait")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	logged, log := newLogs()
	u := URL(s.url, &URLOptions{Client: s.client, Logger: log})
	defer u.Close()
	go func() {
		outcome, err := u.Run(ctx, job)
		if err == nil {
			err = errors.New(string(outcome.Error) + string(outcome.Result))
		}
		ended <- err
	}()
	id := <-ids
	<-events
	s.down.Store(true)
	eventually(t, "the loss is seen", func() bool { return strings.Contains(logged.all(), "looked for again") })
	s.down.Store(false)
	if _, err := s.engine.Cancel(t.Context(), task.Ref{ID: id}); err != nil {
		t.Fatal(err)
	}
	var wireError *protocol.Error
	if err := <-ended; !errors.As(err, &wireError) || wireError.Code != protocol.CodeRequestCancelled {
		t.Errorf("ended with %v", err)
	}
}

// A task that was adopted after a restart has no authorization any more: it fails and says so.
func TestAdoptedTaskWithoutAuthorization(t *testing.T) {
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusUnauthorized)
	}))
	defer ts.Close()
	job, _ := newJob("echo")
	job.Remote = "T"
	_, err := URL(ts.URL, &URLOptions{Client: ts.Client()}).Run(t.Context(), job)
	var wireError *protocol.Error
	if !errors.As(err, &wireError) || !strings.Contains(wireError.Message, "authorization") {
		t.Errorf("error %v", err)
	}
}

func TestPollInterval(t *testing.T) {
	ms := func(n int64) *int64 { return &n }
	for _, tc := range []struct {
		asked *int64
		want  time.Duration
	}{
		{nil, time.Second}, {ms(0), 100 * time.Millisecond}, {ms(-5), 100 * time.Millisecond},
		{ms(2500), 2500 * time.Millisecond}, {ms(1 << 61), 30 * time.Second},
	} {
		if got := pollInterval(&protocol.Task{PollInterval: tc.asked}); got != tc.want {
			t.Errorf("%v, want %v", got, tc.want)
		}
	}
}

// newEverything returns a runner on server-everything from npm.
func newEverything(t *testing.T) *Processes {
	t.Helper()
	script := filepath.Join("..", "..", "peers", "node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js")
	if _, err := os.Stat(script); err != nil {
		t.Fatal("server-everything is not installed; run: make peers")
	}
	p, err := Process([]string{"node", script, "stdio"}, &ProcessOptions{Processes: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// TOOL-4 with a server that somebody else wrote.
func TestEverythingRequiredTool(t *testing.T) {
	p := newEverything(t)
	tools, err := p.Tools(t.Context())
	if err != nil || tools["simulate-research-query"] != protocol.Required {
		t.Fatalf("%v, %v", tools, err)
	}
	job, ids := remoteJob("simulate-research-query")
	told := make(chan string, 100)
	job.Line.(*line).said = told
	job.Request.Params = json.RawMessage(`{"name":"simulate-research-query","arguments":{"topic":"coats","ambiguous":false}}`)
	outcome, err := p.Run(t.Context(), job)
	if err != nil || !strings.Contains(textOf(outcome.Result), "coats") {
		t.Errorf("%s %s %v", outcome.Result, outcome.Error, err)
	}
	if len(ids) != 1 || len(told) == 0 {
		t.Errorf("%d ids, %d messages", len(ids), len(told))
	}
	job, _ = newJob("echo")
	job.Request.Params = json.RawMessage(`{"name":"echo","arguments":{"message":"ü"}}`)
	if outcome, err = p.Run(t.Context(), job); err != nil || textOf(outcome.Result) != "Echo: ü" {
		t.Errorf("%s %s %v", outcome.Result, outcome.Error, err)
	}
	// Its tasks die with it: the next process does not know them.
	job.Remote = <-ids
	p.idle[0].session.Close()
	if _, err = p.Run(t.Context(), job); err == nil || !strings.Contains(err.Error(), "no longer knows its task") {
		t.Errorf("error %v", err)
	}
}
