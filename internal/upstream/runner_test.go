//go:build unix

package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// runners are the ways to run a request on newServer.
var runners = []struct {
	name  string
	local bool // the server is in this process
	start func(t *testing.T, events chan<- string) engine.Runner
}{
	{"in process", true, func(t *testing.T, events chan<- string) engine.Runner {
		_, log := newLogs()
		return InProcess(newServer(events), log, Never)
	}},
	{"process", false, func(t *testing.T, _ chan<- string) engine.Runner { return newProcesses(t, 1) }},
	{"url sse", true, func(t *testing.T, events chan<- string) engine.Runner {
		return newURL(t, newServer(events), nil)
	}},
	{"url json", true, func(t *testing.T, events chan<- string) engine.Runner {
		return newURL(t, newServer(events), &mcp.StreamableHTTPOptions{JSONResponse: true})
	}},
}

func newProcesses(t *testing.T, n int) *Processes {
	t.Helper()
	p, err := Process([]string{os.Args[0]}, &ProcessOptions{Processes: n})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func newURL(t *testing.T, server *mcp.Server, opts *mcp.StreamableHTTPOptions) *Remote {
	t.Helper()
	ts := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, opts))
	u := URL(ts.URL, &URLOptions{Client: ts.Client()})
	t.Cleanup(func() {
		u.Close()
		ts.Close()
		for s := range server.Sessions() {
			t.Error("a session was not ended")
			s.Close()
		}
	})
	return u
}

// RES-1: results and errors as the server made them. EXE-2: isError is seen.
func TestOutcomes(t *testing.T) {
	for _, way := range runners {
		t.Run(way.name, func(t *testing.T) {
			r := way.start(t, nil)
			echo := mustRun(t, r, "echo")
			if want := `{"_meta":{"kept":true},"content":[],"structuredContent":` + fidelity + `}`; string(echo.Result) != want {
				t.Errorf("got  %s\nwant %s", echo.Result, want)
			}
			if failed := mustRun(t, r, "isError"); !failed.IsError || echo.IsError {
				t.Errorf("isError %v, %v", failed.IsError, echo.IsError)
			}
			for tool, want := range map[string]string{
				"error":       `{"code":-32050,"message":"kaputt ü","data":{"retry":1.50,"a":[]}}`,
				"plain error": `{"code":0,"message":"just so"}`,
			} {
				if got := mustRun(t, r, tool); string(got.Error) != want {
					t.Errorf("%s: got %s, want %s", tool, got.Error, want)
				}
			}
			// A client without the capability, and ping.
			job, _ := newJob("elicit")
			job.Caller = &engine.Caller{Identified: true, Initialize: json.RawMessage(`{"capabilities":{}}`)}
			if got, err := r.Run(t.Context(), job); err != nil || !strings.Contains(string(got.Error), "elicitation") {
				t.Errorf("elicit: %s %v", got.Error, err)
			}
			if got := mustRun(t, r, "ping"); got.Error != nil {
				t.Errorf("ping: %s", got.Error)
			}
		})
	}
}

func TestProgress(t *testing.T) {
	for _, way := range runners {
		if way.name == "url json" {
			continue // progress comes on the GET stream there, and may come after the answer
		}
		t.Run(way.name, func(t *testing.T) {
			r := way.start(t, nil)
			job, progress := newJob("progress")
			if _, err := r.Run(t.Context(), job); err != nil {
				t.Fatal(err)
			}
			if got := <-progress; got != "computing" {
				t.Error(got)
			}
			if len(progress) != 0 {
				t.Error(<-progress)
			}
		})
	}
}

// CAN-2: the work is stopped, and what follows is not disturbed.
func TestCancelStopsTheWork(t *testing.T) {
	for _, way := range runners {
		t.Run(way.name, func(t *testing.T) {
			events := make(chan string, 2)
			r := way.start(t, events)
			job, progress := newJob("wait")
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				if way.local {
					<-events
				} else {
					<-progress
				}
				cancel()
			}()
			if _, err := r.Run(ctx, job); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if way.local {
				if got := <-events; got != "cancelled" {
					t.Error(got)
				}
			}
			mustRun(t, r, "echo")
		})
	}
}

// ERR-2: nothing of a panic is told, and all of it is logged.
func TestPanic(t *testing.T) {
	logged, log := newLogs()
	r := InProcess(newServer(nil), log, Never)
	if got := mustRun(t, r, "panic"); string(got.Error) != `{"code":-32603,"message":"Internal error"}` {
		t.Errorf("got %s", got.Error)
	}
	if all := logged.all(); !strings.Contains(all, "secret") || !strings.Contains(all, "main_test.go") {
		t.Errorf("logged %s", all)
	}
	mustRun(t, r, "echo")
}

func TestCallerReachesTheHandler(t *testing.T) {
	_, log := newLogs()
	r := InProcess(newServer(nil), log, Never)
	job, _ := newJob("who")
	job.Caller = &engine.Caller{
		TokenInfo:  &auth.TokenInfo{UserID: "ada"},
		Header:     http.Header{"X-Key": {"k"}},
		Initialize: []byte(`{"protocolVersion":"2025-06-18","capabilities":{"elicitation":{}},"clientInfo":{"name":"host","version":"1"}}`),
	}
	outcome, err := r.Run(context.WithValue(t.Context(), valueKey{}, "value"), job)
	if err != nil {
		t.Fatal(err)
	}
	if got := textOf(outcome.Result); got != "ada k value host" {
		t.Error(got)
	}
}

// What a tool asks its client goes to the task's requestor, and the answer comes back as it
// is: a result, a refusal, an error.
func TestQuestions(t *testing.T) {
	answers := map[string]task.Outcome{
		protocol.MethodElicit:        {Result: json.RawMessage(`{"action":"decline"}`)},
		protocol.MethodCreateMessage: {Result: json.RawMessage(`{"role":"assistant","content":{"type":"text","text":"ü"},"model":"m"}`)},
		protocol.MethodListRoots:     {Error: json.RawMessage(`{"code":-32099,"message":"no roots here","data":{"a":1}}`)},
	}
	for _, way := range runners {
		t.Run(way.name, func(t *testing.T) {
			r := way.start(t, nil)
			for tool, want := range map[string]string{"elicit": "decline", "sample": "ü by m", "roots": "no roots here"} {
				job, _ := newJob(tool)
				job.Caller = &engine.Caller{Identified: true, Initialize: []byte(`{"capabilities":{"elicitation":{},"sampling":{},"roots":{}}}`)}
				job.Line.(*line).answer = func(method string, params json.RawMessage) (task.Outcome, error) {
					if tool != "roots" && protocol.Get(protocol.Get(params, "_meta"), "kept") == nil {
						t.Errorf("%s came with %s", method, params)
					}
					return answers[method], nil
				}
				outcome, err := r.Run(t.Context(), job)
				if got := textOf(outcome.Result) + string(outcome.Error); err != nil || !strings.Contains(got, want) {
					t.Errorf("%s: %s, %v", tool, got, err)
				}
			}
		})
	}
}

// A tool that gives up withdraws its question.
func TestWithdrawnQuestion(t *testing.T) {
	for _, way := range runners {
		t.Run(way.name, func(t *testing.T) {
			r := way.start(t, nil)
			job, _ := newJob("impatient")
			job.Line.(*line).withdrawn = make(chan struct{})
			outcome, err := r.Run(t.Context(), job)
			if got := textOf(outcome.Result); err != nil || got != "gave up" {
				t.Errorf("%s %s, %v", got, outcome.Error, err)
			}
		})
	}
}

// A process is told of its client's capabilities, which its tools may depend on: one of
// another client is not used.
func TestProcessKnowsItsClient(t *testing.T) {
	p := newProcesses(t, 2)
	pid := func(initialize string) string {
		job, _ := newJob("pid")
		job.Caller = &engine.Caller{Identified: true, Initialize: []byte(initialize)}
		outcome, err := p.Run(t.Context(), job)
		if err != nil {
			t.Fatal(err)
		}
		return textOf(outcome.Result)
	}
	plain, asking := pid(`{"capabilities":{}}`), pid(`{"capabilities":{"elicitation":{}}}`)
	if plain == asking || pid(`{"capabilities":{"tasks":{}}}`) != plain || pid(`{"capabilities":{"elicitation":{}}}`) != asking {
		t.Errorf("processes %s and %s", plain, asking)
	}
	for i := range 5 { // each makes room for the next
		pid(fmt.Sprintf(`{"capabilities":{"elicitation":{"n":%d}}}`, i))
	}
	eventually(t, "no more than two processes", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.all) <= 2
	})
}

// SEC-1: what a call leaves behind in a process is heard by nobody else, as the process is not
// used for anybody else: by principal, or by session where that does not tell requestors apart.
// One that serves a stranger is not used again.
func TestProcessKnowsWhoseItIs(t *testing.T) {
	p := newProcesses(t, 10)
	pid := func(principal task.Principal, session string) string {
		job, _ := newJob("pid")
		job.Ref.Principal = principal
		job.Caller = &engine.Caller{Principal: principal, Identified: principal == "alice" || principal == "bob", Session: session}
		outcome, err := p.Run(t.Context(), job)
		if err != nil {
			t.Fatal(err)
		}
		return textOf(outcome.Result)
	}
	whose := map[string]string{}
	for who, got := range map[string]string{"alice": pid("alice", "1"), "bob": pid("bob", "1"), "session 1": pid("", "1"), "session 2": pid("", "2"), "shared name 1": pid("all", "1"), "shared name 2": pid("all", "2"), "stranger": pid("", ""), "another stranger": pid("", "")} {
		if other := whose[got]; other != "" {
			t.Errorf("%s and %s have one process", who, other)
		}
		whose[got] = who
	}
	if whose[pid("alice", "2")] != "alice" || whose[pid("", "2")] != "session 2" {
		t.Error("a process is not used again")
	}
}

func TestMalformedParams(t *testing.T) {
	for _, way := range runners {
		t.Run(way.name, func(t *testing.T) {
			r := way.start(t, nil)
			for _, params := range []string{`{"name":7}`, `{"name":"no such tool"}`, `{}`} {
				job, _ := newJob("")
				job.Request.Params = []byte(params)
				outcome, err := r.Run(t.Context(), job)
				if err != nil || outcome.Error == nil {
					t.Errorf("%s: %+v, %v", params, outcome, err)
				}
			}
			if _, ok := r.(interface{ Close() error }); ok {
				mustRun(t, r, "echo")
			}
		})
	}
}

func BenchmarkInProcess(b *testing.B) {
	_, log := newLogs()
	r := InProcess(newServer(nil), log, Never)
	job, _ := newJob("echo")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Run(b.Context(), job); err != nil {
			b.Fatal(err)
		}
	}
}

func TestURLPassesHeadersOn(t *testing.T) {
	server := newServer(nil)
	r := newURL(t, server, nil)
	job, _ := newJob("who")
	job.Caller = &engine.Caller{Header: http.Header{
		"X-Key": {"k"}, "Authorization": {"Bearer x"}, "Mcp-Session-Id": {"another"}, "Content-Length": {"1"},
		"Connection": {"close, X-Hop"}, "X-Hop": {"h"}, "Accept": {"text/html"}, "Mcp-Protocol-Version": {"1999-01-01"},
	}}
	outcome, err := r.Run(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	if got := textOf(outcome.Result); got != "nobody k <nil> coatcheck" {
		t.Error(got)
	}
	got := passedOn(job.Caller.Header)
	if len(got) != 2 || got.Get("Authorization") != "Bearer x" {
		t.Errorf("passed on: %v", got)
	}
}

func TestURLThatIsNotThere(t *testing.T) {
	ts := httptest.NewServer(nil)
	ts.Close()
	job, _ := newJob("echo")
	_, err := URL(ts.URL, nil).Run(t.Context(), job)
	var wire *protocol.Error
	if !errors.As(err, &wire) || wire.Code != protocol.CodeInternalError || strings.Contains(wire.Message, ts.URL) {
		t.Errorf("error %v", err)
	}
}

// CAN-2: a task may be cancelled, or expire, before its work has begun.
func TestCancelledBeforeItBegins(t *testing.T) {
	runner := InProcess(newServer(nil), slog.New(slog.DiscardHandler), Never)
	for range 300 {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		job, _ := newJob("echo")
		if _, err := runner.Run(ctx, job); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}
