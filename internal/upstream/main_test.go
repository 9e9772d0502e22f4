//go:build unix

package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// asServer makes the test binary an MCP server on stdio.
const asServer = "UPSTREAM_TEST_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" && len(os.Args) == 1 { // a fuzz worker has arguments
		if err := newServer(nil).Run(context.Background(), &mcp.StdioTransport{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return
	}
	os.Setenv(asServer, "1") // for the children
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		os.Exit(code)
	}))
}

type valueKey struct{}

// fidelity is what must survive: key order, number formatting, non-ASCII, unknown members.
const fidelity = `{"z":1.0,"a":1e2,"ü":"Grüße \u00e9 世界","n":[12345678901234567890,-0.10],"o":{}}`

// newServer returns a server that knows nothing of tasks. events, if not nil, hears of what
// the tool wait sees: "started", "cancelled".
func newServer(events chan<- string) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "t", Version: "1"}, nil)
	hear := func(event string) {
		if events != nil {
			events <- event
		}
	}
	add := func(name string, h func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error)) {
		server.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, h)
	}
	add("echo", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{}, StructuredContent: json.RawMessage(fidelity), Meta: mcp.Meta{"kept": true}}, nil
	})
	add("isError", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{}, IsError: true}, nil
	})
	add("error", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: -32050, Message: "kaputt ü", Data: json.RawMessage(`{"retry":1.50,"a":[]}`)}
	})
	add("plain error", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return nil, errors.New("just so")
	})
	add("panic", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { panic("secret") })
	add("progress", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		for _, p := range []*mcp.ProgressNotificationParams{
			{ProgressToken: "other", Progress: 1, Total: 1, Message: "not this one"},
			{ProgressToken: req.Params.GetProgressToken(), Progress: 3, Total: 8, Message: "computing"},
		} {
			if err := req.Session.NotifyProgress(ctx, p); err != nil {
				return nil, err
			}
		}
		return &mcp.CallToolResult{Content: []mcp.Content{}}, nil
	})
	say := func(text string) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil
	}
	question := &mcp.ElicitParams{Meta: mcp.Meta{"kept": true}, Message: "?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{}}`)}
	add("elicit", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		answer, err := req.Session.Elicit(ctx, question)
		if err != nil {
			return nil, err
		}
		return say(answer.Action)
	})
	add("sample", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		answer, err := req.Session.CreateMessage(ctx, &mcp.CreateMessageParams{Meta: mcp.Meta{"kept": true}, MaxTokens: 1})
		if err != nil {
			return nil, err
		}
		return say(answer.Content.(*mcp.TextContent).Text + " by " + answer.Model)
	})
	add("roots", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		_, err := req.Session.ListRoots(ctx, nil)
		return nil, err
	})
	add("impatient", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		if _, err := req.Session.Elicit(soon, question); !errors.Is(err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("not given up: %w", err)
		}
		if _, err := req.Session.ListRoots(ctx, nil); err != nil {
			return nil, err
		}
		return say("gave up")
	})
	add("forget", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		go func() { _, _ = req.Session.ListRoots(context.WithoutCancel(ctx), nil) }()
		if _, err := req.Session.Elicit(ctx, question); err != nil {
			return nil, err
		}
		return say(fmt.Sprint(os.Getpid()))
	})
	add("ping", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{}}, req.Session.Ping(ctx, nil)
	})
	add("who", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		user := "nobody"
		if info := req.Extra.TokenInfo; info != nil {
			user = info.UserID
		}
		text := fmt.Sprint(user, " ", req.Extra.Header.Get("X-Key"), " ", ctx.Value(valueKey{}), " ", req.Session.InitializeParams().ClientInfo.Name)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil
	})
	add("wait", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		hear("started")
		if token := req.Params.GetProgressToken(); token != nil {
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Message: fmt.Sprint("pid ", os.Getpid())})
		}
		<-ctx.Done()
		hear("cancelled")
		return nil, ctx.Err()
	})
	add("pid", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		fmt.Fprintln(os.Stderr, "hello from", os.Getpid())
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(os.Getpid())}}}, nil
	})
	add("exit", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		os.Exit(7)
		return nil, nil
	})
	return server
}

// newJob returns a job that calls a tool, and the texts of its progress.
func newJob(tool string) (*engine.Job, <-chan string) {
	progress := make(chan string, 100)
	return &engine.Job{
		Ref:    task.Ref{ID: "T"},
		Caller: &engine.Caller{Identified: true},
		Request: task.Request{
			Method: protocol.MethodToolsCall,
			Params: json.RawMessage(`{"name":"` + tool + `","arguments":{},"_meta":{"progressToken":"p"}}`),
		},
		Line: &line{said: progress},
	}, progress
}

// line is a requestor that listens, and answers nothing but what answer says.
type line struct {
	engine.Line
	said   chan string
	remote func(context.Context, string) error
	answer func(method string, params json.RawMessage) (task.Outcome, error)

	withdrawn chan struct{} // closed by the withdrawal of an elicitation, before which nothing is answered
}

func (l *line) SetRemote(ctx context.Context, id string) error {
	if l.remote == nil {
		return nil
	}
	return l.remote(ctx, id)
}

func (l *line) Say(message string) { l.said <- message }

func (l *line) Notify(method string, params json.RawMessage) {
	if method == protocol.MethodProgress && string(protocol.Get(params, "progressToken")) == `"p"` {
		message, _ := protocol.Unquote(protocol.Get(params, "message"))
		l.said <- message
	}
}

func (l *line) Ask(method string, params json.RawMessage, reply func(task.Outcome)) (func(), error) {
	if l.withdrawn != nil {
		if method == protocol.MethodElicit {
			return func() { close(l.withdrawn) }, nil
		}
		go func() {
			<-l.withdrawn
			reply(task.Outcome{Result: json.RawMessage(`{"roots":[]}`)})
		}()
		return func() {}, nil
	}
	if l.answer == nil {
		return nil, protocol.Errorf(protocol.CodeMethodNotFound, "Method not found: %s", method)
	}
	answer, err := l.answer(method, params)
	if err != nil {
		return nil, err
	}
	reply(answer)
	return func() {}, nil
}

func mustRun(t *testing.T, r engine.Runner, tool string) task.Outcome {
	t.Helper()
	job, _ := newJob(tool)
	outcome, err := r.Run(t.Context(), job)
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	return outcome
}

func textOf(result json.RawMessage) string {
	var r struct{ Content []struct{ Text string } }
	if json.Unmarshal(result, &r) != nil || len(r.Content) == 0 {
		return string(result)
	}
	return r.Content[0].Text
}

// logs is what was logged.
type logs struct {
	mu    sync.Mutex
	lines []string
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(p))
	return len(p), nil
}

func (l *logs) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprint(l.lines)
}

func newLogs() (*logs, *slog.Logger) {
	l := &logs{}
	return l, slog.New(slog.NewTextHandler(l, nil))
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("%s: not within 20 s", what)
		case <-time.After(time.Millisecond):
		}
	}
}
