//go:build unix

package session_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/coatcheck/coatcheck/internal/session"
	"github.com/coatcheck/coatcheck/protocol"
)

// asServer makes the test binary an MCP server on stdio.
const asServer = "SESSION_TEST_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" {
		if err := newServer(nil).Run(context.Background(), &mcp.StdioTransport{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		os.Exit(code)
	}))
}

const fidelity = `{"z":1.0,"a":1e2,"ü":"Grüße \u00e9 世界","n":[12345678901234567890,-0.10],"o":{}}`

// newServer returns a server whose tools answer, fail, wait until they are cancelled (events,
// if not nil, hears "started" and "cancelled"), ask the client, and tell it something.
func newServer(events chan<- string) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "t", Version: "1"}, nil)
	add := func(name string, h func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error)) {
		server.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, h)
	}
	add("echo", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{}, StructuredContent: json.RawMessage(fidelity)}, nil
	})
	add("error", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: -32050, Message: "kaputt", Data: json.RawMessage(`{"retry":1.50}`)}
	})
	add("wait", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if events != nil {
			events <- "started"
		}
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "p", Progress: 1})
		<-ctx.Done()
		if events != nil {
			events <- "cancelled"
		}
		return nil, ctx.Err()
	})
	add("ask", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		_, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "?"})
		if err != nil {
			return nil, err
		}
		return nil, req.Session.Ping(ctx, nil)
	})
	add("tell", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		// A context that is not the request's, so it goes to the GET stream over HTTP.
		return &mcp.CallToolResult{Content: []mcp.Content{}}, req.Session.NotifyProgress(context.Background(),
			&mcp.ProgressNotificationParams{ProgressToken: "told", Progress: 2})
	})
	return server
}

// peers are the ways to reach newServer.
var peers = []struct {
	name  string
	start func(t *testing.T, events chan<- string) mcp.Transport
}{
	{"stdio", func(t *testing.T, _ chan<- string) mcp.Transport { return session.CommandTransport(serverCommand()) }},
	{"http sse", func(t *testing.T, c chan<- string) mcp.Transport { return serve(t, newServer(c), nil) }},
	{"http json", func(t *testing.T, c chan<- string) mcp.Transport {
		return serve(t, newServer(c), &mcp.StreamableHTTPOptions{JSONResponse: true})
	}},
}

// A server that also prints what is no message is understood all the same.
func TestStrayOutput(t *testing.T) {
	cmd := serverCommand()
	cmd.Args = []string{"sh", "-c", `echo "Welcome to the server!"; exec "$0"`, cmd.Path}
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Path = sh
	var stderr strings.Builder
	cmd.Stderr = &stderr
	s := connect(t, session.CommandTransport(cmd), nil)
	if _, err := s.Call(t.Context(), "tools/call", call("echo")); err != nil {
		t.Error(err)
	}
	s.Close()
	if got := stderr.String(); got != "Welcome to the server!\n" {
		t.Errorf("stderr %q", got)
	}
}

func serverCommand() *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asServer+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

func serve(t *testing.T, server *mcp.Server, opts *mcp.StreamableHTTPOptions) mcp.Transport {
	t.Helper()
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, opts)
	ts := httptest.NewServer(h)
	t.Cleanup(func() {
		ts.Close()
		endSessions(server)
	})
	return session.HTTPTransport(ts.URL, ts.Client())
}

// endSessions ends what a client left: the SDK's handler keeps sessions until they are deleted.
func endSessions(server *mcp.Server) {
	for s := range server.Sessions() {
		s.Close()
	}
}

func connect(t *testing.T, transport mcp.Transport, opts *session.Options) *session.Session {
	t.Helper()
	s, err := session.Connect(t.Context(), transport, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func call(tool string) json.RawMessage {
	return json.RawMessage(`{"name":"` + tool + `","arguments":{},"_meta":{"progressToken":"p"}}`)
}

func TestCall(t *testing.T) {
	for _, peer := range peers {
		t.Run(peer.name, func(t *testing.T) {
			s := connect(t, peer.start(t, nil), nil)
			if v := protocol.Get(s.Server(), "protocolVersion"); string(v) != `"2025-11-25"` {
				t.Errorf("protocolVersion %s", v)
			}
			result, err := s.Call(t.Context(), "tools/call", call("echo"))
			if err != nil {
				t.Fatal(err)
			}
			if got := string(protocol.Get(result, "structuredContent")); got != fidelity {
				t.Errorf("got  %s\nwant %s", got, fidelity)
			}
			_, err = s.Call(t.Context(), "tools/call", call("error"))
			var wire *protocol.Error
			if !errors.As(err, &wire) || wire.Code != -32050 || wire.Message != "kaputt" || string(wire.Data) != `{"retry":1.50}` {
				t.Errorf("error %#v", err)
			}
		})
	}
}

// The default answers of a client that has no capabilities.
func TestRefusesRequests(t *testing.T) {
	for _, peer := range peers {
		t.Run(peer.name, func(t *testing.T) {
			var asked atomic.Int32
			s := connect(t, peer.start(t, nil), &session.Options{
				Capabilities: json.RawMessage(`{"elicitation":{}}`),
				OnRequest: func(ctx context.Context, method string, params json.RawMessage) session.Answer {
					asked.Add(1)
					return session.Refuse(ctx, method, params)
				},
			})
			for asked.Load() == 0 { // until the GET stream is there, where the SDK's JSON mode asks
				if _, err := s.Call(t.Context(), "tools/call", call("ask")); err == nil {
					t.Error("no error")
				}
			}
		})
	}
}

func TestNotifications(t *testing.T) {
	for _, peer := range peers {
		t.Run(peer.name, func(t *testing.T) {
			told := make(chan string, 100)
			s := connect(t, peer.start(t, nil), &session.Options{OnNotification: func(method string, params json.RawMessage) {
				told <- method + string(protocol.Get(params, "progressToken"))
			}})
			for { // until the GET stream is there
				if _, err := s.Call(t.Context(), "tools/call", call("tell")); err != nil {
					t.Logf("not yet: %v", err)
				}
				select {
				case got := <-told:
					if got != `notifications/progress"told"` {
						t.Error(got)
					}
					return
				case <-time.After(10 * time.Millisecond):
				case <-t.Context().Done():
				}
			}
		})
	}
}

func TestCancel(t *testing.T) {
	for _, peer := range peers {
		t.Run(peer.name, func(t *testing.T) {
			events := make(chan string, 2)
			s := connect(t, peer.start(t, events), &session.Options{OnNotification: func(string, json.RawMessage) {
				if peer.name == "stdio" { // where the server's events are not ours
					events <- "started"
				}
			}})
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-events
				cancel()
			}()
			if _, err := s.Call(ctx, "tools/call", call("wait")); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if peer.name != "stdio" {
				if got := <-events; got != "cancelled" {
					t.Error(got)
				}
			}
			if _, err := s.Call(t.Context(), "tools/call", call("echo")); err != nil {
				t.Errorf("the session does not go on: %v", err)
			}
		})
	}
}

func TestCloseEndsCalls(t *testing.T) {
	for _, peer := range peers {
		t.Run(peer.name, func(t *testing.T) {
			events := make(chan string, 2)
			s := connect(t, peer.start(t, events), &session.Options{OnNotification: func(string, json.RawMessage) {
				if peer.name == "stdio" {
					events <- "started"
				}
			}})
			failed := make(chan error)
			go func() {
				_, err := s.Call(t.Context(), "tools/call", call("wait"))
				failed <- err
			}()
			<-events
			s.Close()
			if err := <-failed; err == nil {
				t.Error("no error")
			}
			<-s.Done()
			if !errors.Is(s.Err(), session.ErrClosed) {
				t.Error(s.Err())
			}
		})
	}
}

// A call that takes its time holds up neither others nor its own cancelling, and a method that
// the server refuses does not end the connection.
func TestSlowAndRefusedCalls(t *testing.T) {
	for _, peer := range peers {
		t.Run(peer.name, func(t *testing.T) {
			events := make(chan string, 2)
			conn, err := peer.start(t, events).Connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			write := func(message string) {
				t.Helper()
				msg, err := jsonrpc.DecodeMessage([]byte(message))
				if err != nil {
					t.Fatal(err)
				}
				if err := conn.Write(t.Context(), msg); err != nil {
					t.Fatalf("%s: %v", message, err)
				}
			}
			answers := map[string]bool{}
			read := func(want string) {
				t.Helper()
				for !answers[want] {
					msg, err := conn.Read(t.Context())
					if err != nil {
						t.Fatalf("waiting for %s: %v", want, err)
					}
					if resp, ok := msg.(*jsonrpc.Response); ok {
						data, _ := jsonrpc.EncodeMessage(resp)
						kind := "result"
						if resp.Error != nil {
							kind = "error"
						}
						answers[fmt.Sprint(resp.ID.Raw(), " ", kind)] = true
						t.Logf("%s", data)
					}
				}
			}
			write(`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
			read("i result")
			write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			write(`{"jsonrpc":"2.0","id":"slow","method":"tools/call","params":{"name":"wait"}}`)
			if peer.name != "stdio" {
				<-events
			}
			write(`{"jsonrpc":"2.0","id":"quick","method":"tools/call","params":{"name":"echo"}}`)
			read("quick result")
			write(`{"jsonrpc":"2.0","id":"odd","method":"vendor/unknown","params":{}}`)
			read("odd error")
			write(`{"jsonrpc":"2.0","method":"notifications/unknown"}`)
			write(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"slow"}}`)
			read("slow error")
		})
	}
}

func TestProcessDies(t *testing.T) {
	cmd := serverCommand()
	started := make(chan struct{}, 1)
	s := connect(t, session.CommandTransport(cmd), &session.Options{OnNotification: func(string, json.RawMessage) {
		started <- struct{}{}
	}})
	go func() {
		<-started
		_ = cmd.Process.Signal(syscall.SIGKILL)
	}()
	_, err := s.Call(t.Context(), "tools/call", call("wait"))
	var ended *session.ProcessError
	if !errors.As(err, &ended) || ended.Status != "signal: killed" {
		t.Errorf("error %v", err)
	}
}

// A process that holds on to stdin, stdout and stderr after its parent was ended, and one
// that does not end by itself.
func TestProcessGroupIsEnded(t *testing.T) {
	cmd := exec.Command("sh", "-c", `trap '' TERM; sleep 1000 & echo $! >&2; wait`)
	stderr := &strings.Builder{}
	cmd.Stderr = stderr
	conn, err := session.CommandTransport(cmd).Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	var pid int
	if _, err := fmt.Sscan(stderr.String(), &pid); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(10 * time.Second)
	for syscall.Kill(pid, 0) == nil && !isZombie(pid) {
		select {
		case <-deadline:
			t.Fatalf("process %d is still there", pid)
		case <-time.After(time.Millisecond):
		}
	}
}

// isZombie reports a process that has ended but whose new parent has not yet taken note.
func isZombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func TestLostSession(t *testing.T) {
	var lost atomic.Bool
	var deletes atomic.Int32
	server := newServer(nil)
	defer endSessions(server)
	inner := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if lost.Load() {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"jsonrpc":"2.0","id":2,"error":{"code":-32001,"message":"Session not found"}}`)
			return
		}
		if req.Method == http.MethodDelete {
			deletes.Add(1)
		}
		if v := req.Header.Get("Mcp-Protocol-Version"); req.Header.Get("Mcp-Session-Id") != "" && v != "2025-11-25" {
			t.Errorf("%s without the protocol version: %q", req.Method, v)
		}
		inner.ServeHTTP(w, req)
	}))
	defer ts.Close()
	s := connect(t, session.HTTPTransport(ts.URL, ts.Client()), nil)
	s.Close()
	if deletes.Load() != 1 {
		t.Errorf("%d DELETE requests", deletes.Load())
	}
	s = connect(t, session.HTTPTransport(ts.URL, ts.Client()), nil)
	lost.Store(true)
	if _, err := s.Call(t.Context(), "tools/call", call("echo")); !errors.Is(err, session.ErrLost) {
		t.Errorf("error %v", err)
	}
	ts.CloseClientConnections()
}

// The GET stream is opened again where it was dropped, with the last id.
func TestListenResumes(t *testing.T) {
	server := newServer(nil)
	defer endSessions(server)
	inner := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	gets := make(chan string, 10)
	release := make(chan struct{})
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet {
			inner.ServeHTTP(w, req)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		last := req.Header.Get("Last-Event-ID")
		gets <- last
		if last == "" {
			fmt.Fprint(w, ": hello\r\nid: 7\r\nretry: 1\r\ndata: {\"jsonrpc\":\"2.0\",\r\ndata: \"method\":\"notifications/x\"}\r\n\r\nid: 8\ndata: {\"jso")
			return
		}
		w.(http.Flusher).Flush()
		select {
		case <-release:
		case <-req.Context().Done():
		}
	}))
	defer ts.Close()
	defer close(release)
	told := make(chan string, 10)
	s := connect(t, session.HTTPTransport(ts.URL, ts.Client()), &session.Options{OnNotification: func(method string, _ json.RawMessage) {
		told <- method
	}})
	if got := <-told; got != "notifications/x" {
		t.Error(got)
	}
	if first, second := <-gets, <-gets; first != "" || second != "7" {
		t.Errorf("Last-Event-ID %q, then %q", first, second)
	}
	s.Close()
}

func TestConnectFails(t *testing.T) {
	ts := httptest.NewServer(http.NotFoundHandler())
	defer ts.Close()
	for name, transport := range map[string]mcp.Transport{
		"no MCP server":   session.HTTPTransport(ts.URL, ts.Client()),
		"no such command": session.CommandTransport(exec.Command("/no/such/command")),
		"ends at once":    session.CommandTransport(exec.Command("false")),
	} {
		if s, err := session.Connect(t.Context(), transport, nil); err == nil {
			s.Close()
			t.Errorf("%s: no error", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}
