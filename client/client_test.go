package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/internal/exampleserver"
)

func TestMain(m *testing.M) {
	if database := os.Getenv(serverRole); database != "" && len(os.Args) == 1 {
		if err := serveStdio(database); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if database := os.Getenv(approverRole); database != "" && len(os.Args) == 1 {
		if err := approverProcess(database); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if config := os.Getenv(gatewayRole); config != "" && len(os.Args) == 1 {
		os.Unsetenv(gatewayRole) // for its child
		if err := gatewayOnStdio(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(requestorRole) != "" && len(os.Args) == 1 {
		requestor()
		return
	}
	if os.Getenv(hostRole) != "" && len(os.Args) == 4 {
		if err := hostProcess(os.Args[1], os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func accept(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"confirm": true, "name": "Zoë", "colour": "red"}}, nil
}

func newClient() *mcp.Client {
	return mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ClientOptions{ElicitationHandler: accept})
}

// support is what the server under test says of its tools.
var support = map[string]coatcheck.Tool{
	"slow_compute":       {Support: coatcheck.Optional},
	"confirm_delete":     {Support: coatcheck.Optional},
	"ask_model":          {Support: coatcheck.Optional},
	"failing_job":        {Support: coatcheck.Optional},
	"protocol_error_job": {Support: coatcheck.Optional},
	"multi_input":        {Support: coatcheck.Required},
	"ask":                {Support: coatcheck.Optional},
}

func newServer() *mcp.Server {
	server := exampleserver.New()
	addAsk(server)
	return server
}

func openRuntime(server *mcp.Server, database string) (*coatcheck.Runtime, error) {
	return coatcheck.Open(context.Background(), server, &coatcheck.Options{
		Database: database, Tools: support, PollInterval: 200 * time.Millisecond, Grace: -1, LocalPrincipal: "p",
	})
}

// onEachTransport runs a test with a server over HTTP, stdio and in-memory.
func onEachTransport(t *testing.T, test func(t *testing.T, connect func(opts *client.Options) *client.Session)) {
	for name, open := range map[string]func(*testing.T, string) func() mcp.Transport{"http": overHTTP, "stdio": overStdio, "in-memory": inMemory} {
		t.Run(name, func(t *testing.T) {
			transport := open(t, "sqlite:"+filepath.Join(t.TempDir(), "tasks.db"))
			test(t, func(opts *client.Options) *client.Session {
				t.Helper()
				s, err := client.Connect(t.Context(), newClient(), transport(), opts)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Close() })
				return s
			})
		})
	}
}

func overHTTP(t *testing.T, database string) func() mcp.Transport {
	server := newServer()
	rt, err := openRuntime(server, database)
	if err != nil {
		t.Fatal(err)
	}
	handler := rt.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	web := httptest.NewServer(auth.RequireBearerToken(func(context.Context, string, *http.Request) (*auth.TokenInfo, error) {
		return &auth.TokenInfo{UserID: "p", Expiration: time.Now().Add(time.Hour)}, nil
	}, nil)(handler))
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
		if err := rt.Close(context.Background()); err != nil {
			t.Error(err)
		}
		for session := range server.Sessions() {
			_ = session.Close()
		}
	})
	return func() mcp.Transport {
		return &mcp.StreamableClientTransport{Endpoint: web.URL, HTTPClient: &http.Client{Transport: bearer{}}}
	}
}

type bearer struct{}

func (bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer t")
	return http.DefaultTransport.RoundTrip(req)
}

// serverRole, in the environment, makes this test binary a server on stdio with the database
// it names.
const serverRole = "COATCHECK_TEST_SERVER"

func serveStdio(database string) error {
	server := newServer()
	rt, err := openRuntime(server, database)
	if err != nil {
		return err
	}
	err = server.Run(context.Background(), rt.Transport(&mcp.StdioTransport{}))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, rt.Close(context.Background()))
}

func overStdio(_ *testing.T, database string) func() mcp.Transport {
	return func() mcp.Transport {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), serverRole+"="+database)
		cmd.Stderr = os.Stderr
		return &mcp.CommandTransport{Command: cmd}
	}
}

func inMemory(t *testing.T, database string) func() mcp.Transport {
	server := newServer()
	rt, err := openRuntime(server, database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return func() mcp.Transport {
		near, far := mcp.NewInMemoryTransports()
		session, err := server.Connect(context.Background(), rt.Transport(far), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = session.Wait() })
		return near
	}
}

func call(t *testing.T, s *client.Session, name, arguments string, opts *client.CallOptions) *client.Task {
	t.Helper()
	task, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: json.RawMessage(arguments)}, opts)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return task
}

func wantText(t *testing.T, task *client.Task, want string) {
	t.Helper()
	result, err := task.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := result.Content[0].(*mcp.TextContent).Text; !strings.Contains(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A call is augmented where the server declared it and the tool allows it, and is a handle
// either way (CAP-4, TOOL-1..4).
func TestCallTool(t *testing.T) {
	onEachTransport(t, func(t *testing.T, connect func(*client.Options) *client.Session) {
		s := connect(nil)
		for _, c := range []struct {
			tool, arguments, want string
			mode                  client.Mode
			asTask                bool
		}{
			{"greet", `{"name":"x"}`, "Hello, x!", client.Auto, false},
			{"slow_compute", `{"seconds":0.1}`, "done after", client.Auto, true},
			{"slow_compute", `{"seconds":0.1}`, "done after", client.Never, false},
			{"confirm_delete", `{"filename":"x"}`, "Deleted x.", client.Always, true}, // INP-3
			{"confirm_delete", `{"filename":"x"}`, "Deleted x.", client.Never, false},
			{"multi_input", `{}`, "Zoë likes red.", client.Never, true}, // TOOL-4
			{"failing_job", `{}`, "no paper", client.Auto, true},        // isError, as the plain call has it
		} {
			task := call(t, s, c.tool, c.arguments, &client.CallOptions{Mode: c.mode})
			if asTask := task.ID() != ""; asTask != c.asTask {
				t.Errorf("%s, mode %d: as a task %t", c.tool, c.mode, asTask)
			}
			wantText(t, task, c.want)
			if status := task.Status().Status; !status.Terminal() {
				t.Errorf("%s: %s", c.tool, status)
			}
		}
		if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "greet"}, &client.CallOptions{Mode: client.Always}); !errors.Is(err, client.ErrUnsupported) {
			t.Errorf("greet as a task: %v", err)
		}
		for _, mode := range []client.Mode{client.Auto, client.Never} { // RES-1
			_, err := call(t, s, "protocol_error_job", `{}`, &client.CallOptions{Mode: mode}).Wait(t.Context())
			wire, ok := errors.AsType[*jsonrpc.Error](err)
			if !ok || wire.Code != exampleserver.ProtocolErrorCode || string(wire.Data) != `{"limit":10,"used":10,"unit":"jobs per hour"}` {
				t.Errorf("mode %d: %v", mode, err)
			}
		}
		// The SDK's session is there for everything else.
		if _, err := s.SDK().ListTools(t.Context(), nil); err != nil {
			t.Error(err)
		}
	})
}

// Updates tells of status and progress, and ends when the call does.
func TestUpdates(t *testing.T) {
	onEachTransport(t, func(t *testing.T, connect func(*client.Options) *client.Session) {
		task := call(t, connect(nil), "slow_compute", `{"seconds":0.8,"label":"l"}`, nil)
		var last client.Update
		seen := 0
		for last = range task.Updates(t.Context()) {
			seen++
		}
		if last.Status != client.Completed || last.Progress == nil || last.Progress.Progress != 4 || last.Progress.Total != 4 || seen < 3 {
			t.Errorf("%d updates, the last is %+v %+v", seen, last, last.Progress)
		}
		wantText(t, task, "l: done")
		for range task.Updates(t.Context()) { // again, with what is known
			seen = 0
		}
		if seen != 0 {
			t.Error("no update of an ended call")
		}
	})
}

func TestCancel(t *testing.T) {
	onEachTransport(t, func(t *testing.T, connect func(*client.Options) *client.Session) {
		s := connect(nil)
		for _, mode := range []client.Mode{client.Auto, client.Never} {
			task := call(t, s, "slow_compute", `{"seconds":600}`, &client.CallOptions{Mode: mode})
			if err := task.Cancel(t.Context()); err != nil { // CAN-2
				t.Fatal(err)
			}
			if _, err := task.Wait(t.Context()); !errors.Is(err, client.ErrCancelled) {
				t.Errorf("mode %d: %v", mode, err)
			}
			if status := task.Status().Status; status != client.Cancelled {
				t.Errorf("mode %d: %s", mode, status)
			}
			if err := task.Cancel(t.Context()); !errors.Is(err, client.ErrTerminal) { // CAN-1
				t.Errorf("mode %d: again: %v", mode, err)
			}
		}
		task := call(t, s, "slow_compute", `{"seconds":0}`, nil)
		wantText(t, task, "done")
		if _, err := s.Cancel(t.Context(), task.ID()); !errors.Is(err, client.ErrTerminal) {
			t.Errorf("cancel of a completed one: %v", err)
		}
	})
}

// A call that takes longer than its host can wait is let go of and come back to, also from
// another session.
func TestWaitOrDetach(t *testing.T) {
	onEachTransport(t, func(t *testing.T, connect func(*client.Options) *client.Session) {
		s := connect(nil)
		quick := call(t, s, "slow_compute", `{"seconds":0}`, nil)
		if result, ended, err := quick.WaitOrDetach(t.Context(), time.Minute); err != nil || !ended || result == nil {
			t.Errorf("got %v, %t, %v", result, ended, err)
		}
		slow := call(t, s, "slow_compute", `{"seconds":1.5,"label":"slow"}`, nil)
		if result, ended, err := slow.WaitOrDetach(t.Context(), 50*time.Millisecond); err != nil || ended {
			t.Errorf("got %v, %t, %v", result, ended, err)
		}
		if _, err := slow.Wait(t.Context()); !errors.Is(err, client.ErrDetached) {
			t.Error(err)
		}
		again, err := connect(nil).Attach(t.Context(), slow.ID())
		if err != nil {
			t.Fatal(err)
		}
		wantText(t, again, "slow: done")
		if _, err := s.Attach(t.Context(), "nothing"); !errors.Is(err, client.ErrNotFound) {
			t.Error(err)
		}
	})
}

// The bare operations.
func TestBareOperations(t *testing.T) {
	onEachTransport(t, func(t *testing.T, connect func(*client.Options) *client.Session) {
		s := connect(nil)
		ids := map[string]bool{}
		for range 3 {
			task := call(t, s, "slow_compute", `{"seconds":0}`, &client.CallOptions{TTL: 90 * time.Second})
			wantText(t, task, "done")
			ids[task.ID()] = true
			state, err := s.Get(t.Context(), task.ID())
			if err != nil || state.Status != client.Completed || state.TTL < 90*time.Second || state.CreatedAt.IsZero() { // CRE-2
				t.Errorf("%+v, %v", state, err)
			}
			raw, err := s.Result(t.Context(), task.ID())
			if err != nil || !strings.Contains(string(raw), "done after") {
				t.Errorf("%s, %v", raw, err)
			}
		}
		for state, err := range s.List(t.Context()) { // LST-1, LST-4
			if err != nil {
				t.Fatal(err)
			}
			delete(ids, state.ID)
		}
		if len(ids) != 0 {
			t.Errorf("not listed: %v", ids)
		}
		for _, err := range s.List(t.Context()) { // it may be left early
			if err != nil {
				t.Fatal(err)
			}
			break
		}
	})
}

// Create again with the key is the same task, where the server knows keys (C.8).
func TestKey(t *testing.T) {
	onEachTransport(t, func(t *testing.T, connect func(*client.Options) *client.Session) {
		s := connect(nil)
		a := call(t, s, "slow_compute", `{"seconds":0}`, &client.CallOptions{Key: "k"})
		b := call(t, s, "slow_compute", `{"seconds":0}`, &client.CallOptions{Key: "k"})
		if a.ID() != b.ID() {
			t.Errorf("%s and %s", a.ID(), b.ID())
		}
		wantText(t, a, "done")
		wantText(t, b, "done")
	})
}
