package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/internal/exampleserver"
	"github.com/coatcheck/coatcheck/internal/session"
	"github.com/coatcheck/coatcheck/protocol"
)

// A task of a raw process: whatever it answers comes back byte for byte (RES-1), with the
// related-task metadata added (RES-3).
func TestTaskOfACommand(t *testing.T) {
	c := newClient(t, serve(t, Config{Command: []string{"raw"}, SingleUser: true}))
	id := c.create(`{"name":"x","arguments":{"n":1.0,"ü":"\u00fc"},"odd":1e2,"task":{"ttl":60000}}`)
	result, fault := c.call("tasks/result", ref(id))
	want := `{"method":"tools/call","params":{"name":"x","arguments":{"n":1.0,"ü":"\u00fc"},"odd":1e2},"z":1.0,"a":1e2,"big":12345678901234567890,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"` + id + `"}}}`
	if string(result) != want {
		t.Errorf("got  %s %s\nwant %s", result, fault, want)
	}
	if list, fault := c.call("tasks/list", `{}`); !strings.Contains(string(list), id) {
		t.Errorf("list: %s %s", list, fault)
	}
}

// exampleURL serves the example server over HTTP.
func exampleURL(t *testing.T, opts *mcp.StreamableHTTPOptions) string {
	server := exampleserver.New()
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, opts))
	t.Cleanup(func() {
		web.CloseClientConnections()
		for s := range server.Sessions() {
			_ = s.Close()
		}
		web.Close()
	})
	return web.URL
}

// FLOW-1 and FLOW-4 at a URL that answers with streams, and at one that answers with JSON.
func TestTaskOfAURL(t *testing.T) {
	for name, opts := range map[string]*mcp.StreamableHTTPOptions{"stream": nil, "json": {JSONResponse: true}} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, serve(t, Config{URL: exampleURL(t, opts), SingleUser: true}))
			id := c.create(`{"name":"greet","arguments":{"name":"Ada"},"task":{}}`)
			if result, fault := c.call("tasks/result", ref(id)); !strings.Contains(string(result), "Ada") {
				t.Errorf("greet: %s %s", result, fault)
			}
			id = c.create(`{"name":"protocol_error_job","task":{}}`)
			plain := c.post(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"protocol_error_job"}}`)
			m, err := protocol.ParseMessage([]byte(plain.last()))
			if err != nil {
				t.Fatal(err, plain)
			}
			if _, fault := c.call("tasks/result", ref(id)); string(fault) != string(m.Error) || fault == nil { // RES-1
				t.Errorf("as a task %s, plainly %s", fault, m.Error)
			}
			id = c.create(`{"name":"slow_compute","arguments":{"seconds":600},"task":{}}`)
			if result, fault := c.call("tasks/cancel", ref(id)); string(protocol.Get(result, "status")) != `"cancelled"` { // CAN-2
				t.Errorf("cancel: %s %s", result, fault)
			}
			if _, fault := c.call("tasks/result", ref(id)); string(protocol.Get(fault, "code")) != "-32800" { // C.2
				t.Errorf("result: %s", fault)
			}
		})
	}
}

// Over stdio, in front of a process and of a URL.
func TestStdio(t *testing.T) {
	t.Setenv(role, "raw")
	for name, c := range map[string]Config{
		"command": {Command: []string{os.Args[0]}},
		"url":     {URL: exampleURL(t, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := mcp.NewInMemoryTransports()
			c.Stdio, c.Support = theirs, protocol.Optional
			c.Store = "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")
			ended := make(chan error, 1)
			go func() { ended <- Serve(context.Background(), c) }()
			s, err := session.Connect(t.Context(), ours, nil)
			if err != nil {
				t.Fatal(err)
			}
			declared := protocol.Get(protocol.Get(s.Server(), "capabilities"), "tasks")
			if string(protocol.Get(declared, "list")) != "{}" { // C.10
				t.Errorf("declared %s", declared)
			}
			created, err := s.Call(t.Context(), "tools/call", json.RawMessage(`{"name":"greet","arguments":{"name":"Ada"},"task":{}}`))
			if err != nil {
				t.Fatal(err)
			}
			id, _ := protocol.Unquote(protocol.Get(protocol.Get(created, "task"), "taskId"))
			result, err := s.Call(t.Context(), "tasks/result", json.RawMessage(ref(id)))
			if err != nil || !strings.Contains(string(result), "Ada") {
				t.Errorf("got %s, %v", result, err)
			}
			if plain, err := s.Call(t.Context(), "tools/call", json.RawMessage(`{"name":"greet","arguments":{"name":"Eve"}}`)); err != nil || !strings.Contains(string(plain), "Eve") {
				t.Errorf("plainly: %s, %v", plain, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// gatewayProcess is a gateway in a process of its own, to be killed.
func gatewayProcess() error {
	return Serve(context.Background(), Config{
		URL: os.Getenv("URL"), Store: os.Getenv("STORE"), Listen: "127.0.0.1:0", Support: protocol.Optional,
		Ready: func(address string) { fmt.Fprintln(os.Stdout, "http://"+address+"/mcp") },
	})
}

// A tool that the upstream marks as required is called there as a task. That task outlives
// the gateway: one is killed, the next goes on polling and the work ran once.
func TestRequiredTaskSurvivesKill(t *testing.T) {
	open := make(chan struct{})
	var runs atomic.Int32
	server := mcp.NewServer(&mcp.Implementation{Name: "upstream", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "must", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		runs.Add(1)
		select {
		case <-open:
			return nil, &jsonrpc.Error{Code: -32050, Message: "from the upstream's task", Data: json.RawMessage(`{"n":1.0}`)}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	rt, err := coatcheck.Open(t.Context(), server, &coatcheck.Options{
		Database: "memory:", PollInterval: 100 * time.Millisecond,
		Tools: map[string]coatcheck.Tool{"must": {Support: coatcheck.Required}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var polls atomic.Int32
	inner := rt.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		if strings.Contains(string(body), `"tasks/get"`) {
			polls.Add(1)
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		inner.ServeHTTP(w, req)
	}))
	t.Cleanup(func() {
		for s := range server.Sessions() {
			_ = s.Close()
		}
		web.CloseClientConnections()
		web.Close()
		if err := rt.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	store := "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")

	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), role+"=gateway", "URL="+web.URL, "STORE="+store)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(t, strings.TrimSpace(url))
	if _, fault := c.call("tools/call", `{"name":"must"}`); string(protocol.Get(fault, "code")) != "-32601" { // TOOL-4
		t.Errorf("a plain call: %s", fault)
	}
	id := c.create(`{"name":"must","task":{}}`)
	// The id of the upstream's task is stored before that is polled.
	eventually(t, "the upstream's task is polled", func() bool { return polls.Load() > 0 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()

	next := newClient(t, serve(t, Config{URL: web.URL, Store: store}))
	close(open)
	_, fault := next.call("tasks/result", ref(id)) // once the dead gateway's lease has run out
	if string(fault) != `{"code":-32050,"message":"from the upstream's task","data":{"n":1.0}}` {
		t.Errorf("got %s", fault)
	}
	if runs.Load() != 1 {
		t.Errorf("the work ran %d times", runs.Load())
	}
}
