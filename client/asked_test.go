package client_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// asking are the arguments of the tool ask.
type asking struct {
	What string `json:"what"` // sample, elicit; session: sample by the SDK's session
	Text string `json:"text"`
	Mode int    `json:"mode"`
}

// addAsk adds a tool that asks its client, and says what it was answered.
func addAsk(server *mcp.Server) {
	mcp.AddTool(server, &mcp.Tool{Name: "ask"}, func(ctx context.Context, req *mcp.CallToolRequest, in asking) (*mcp.CallToolResult, any, error) {
		said := func(format string, args ...any) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}, nil, nil
		}
		task := coatcheck.FromContext(ctx)
		task.Progress(1, 2, "asking")
		opts := &coatcheck.AskOptions{Mode: coatcheck.Mode(in.Mode)}
		switch in.What {
		case "elicit":
			answer, err := task.Elicit(ctx, &mcp.ElicitParams{Message: in.Text, RequestedSchema: map[string]any{
				"type": "object", "properties": map[string]any{"confirm": map[string]any{"type": "boolean"}},
			}}, opts)
			if err != nil {
				return said("failed: %v", explain(err))
			}
			return said("%s %v", answer.Action, answer.Content["confirm"])
		case "session":
			answer, err := req.Session.CreateMessage(ctx, &mcp.CreateMessageParams{
				MaxTokens: 5, Messages: []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: in.Text}}},
			})
			if err != nil {
				return said("failed: %v", explain(err))
			}
			return said("%s", answer.Content.(*mcp.TextContent).Text)
		}
		answer, err := task.Sample(ctx, &mcp.CreateMessageWithToolsParams{
			MaxTokens: 5, Messages: []*mcp.SamplingMessageV2{{Role: "user", Content: []mcp.Content{&mcp.TextContent{Text: in.Text}}}},
		}, opts)
		if err != nil {
			return said("failed: %v", explain(err))
		}
		return said("%s", answer.Content[0].(*mcp.TextContent).Text)
	})
}

// explain says all there is of a JSON-RPC error.
func explain(err error) string {
	if wire, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return fmt.Sprintf("%d %s %s", wire.Code, wire.Message, wire.Data)
	}
	return err.Error()
}

// slowModel says when it has been asked.
type slowModel struct {
	*model
	started chan struct{}
}

func (m *slowModel) sample(ctx context.Context, req *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
	m.started <- struct{}{}
	return m.model.sample(ctx, req)
}

// askedOn connects a client that hosts tasks to a server that asks, over each transport.
func askedOn(t *testing.T, opts client.HostOptions, test func(t *testing.T, s *client.Session, m *slowModel)) {
	t.Helper()
	for name, open := range map[string]func(*testing.T, string) func() mcp.Transport{"http": overHTTP, "stdio": overStdio, "in-memory": inMemory} {
		t.Run(name, func(t *testing.T) {
			transport := open(t, "sqlite:"+filepath.Join(t.TempDir(), "tasks.db"))
			s, m := connectHost(t, transport(), &opts)
			test(t, s, m)
		})
	}
}

// connectHost connects a client that hosts tasks; opts nil: one that does not.
func connectHost(t *testing.T, transport mcp.Transport, opts *client.HostOptions) (*client.Session, *slowModel) {
	t.Helper()
	m := &slowModel{&model{make(chan struct{}), make(chan struct{})}, make(chan struct{}, 100)}
	c := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ClientOptions{CreateMessageHandler: m.sample, ElicitationHandler: accept})
	var host *client.Host
	if opts != nil {
		opts := *opts
		opts.Database, opts.Grace = "sqlite:"+filepath.Join(t.TempDir(), "hosted.db"), -1
		var err error
		if host, err = client.OpenHost(t.Context(), &opts); err != nil {
			t.Fatal(err)
		}
	}
	s, err := client.Connect(t.Context(), c, transport, &client.Options{Host: host, Server: "s"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if host != nil {
			if err := host.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
		_ = s.Close()
	})
	return s, m
}

func ask(what, text string, mode coatcheck.Mode) string {
	return string(protocol.Marshal(asking{what, text, int(mode)}))
}

var bothModes = map[string]client.Mode{"as a task": client.Always, "plainly": client.Never}

// A handler's questions run as tasks of a client that runs such requests as tasks (CAP-2,
// CAP-4, FLOW-3), whether the handler itself runs as one or not.
func TestServerAsksAsTask(t *testing.T) {
	askedOn(t, client.HostOptions{Sampling: client.Optional, Elicitation: client.Optional}, func(t *testing.T, s *client.Session, _ *slowModel) {
		for name, mode := range bothModes {
			t.Run(name, func(t *testing.T) {
				for _, way := range []coatcheck.Mode{coatcheck.Auto, coatcheck.Never, coatcheck.Always} {
					wantText(t, call(t, s, "ask", ask("sample", "hello", way), &client.CallOptions{Mode: mode}), "hello!")
					wantText(t, call(t, s, "ask", ask("elicit", "Sure?", way), &client.CallOptions{Mode: mode}), "accept true")
				}
				wantText(t, call(t, s, "ask", ask("session", "hello", 0), &client.CallOptions{Mode: mode}), "hello!")
				// RES-1: an error comes back as the client's handler made it.
				wantText(t, call(t, s, "ask", ask("sample", "error", coatcheck.Always), &client.CallOptions{Mode: mode}), `failed: -32050 no model {"n":1.50}`)
			})
		}
	})
}

// CAP-6, TOOL-2: where the client insists on tasks, Never is refused; CAP-4: what it does not
// run as tasks is asked plainly, and fails with Always.
func TestServerAsksAsTheClientDeclares(t *testing.T) {
	askedOn(t, client.HostOptions{Sampling: client.Required}, func(t *testing.T, s *client.Session, _ *slowModel) {
		for name, mode := range bothModes {
			t.Run(name, func(t *testing.T) {
				for arguments, want := range map[string]string{
					ask("sample", "hello", coatcheck.Auto):   "hello!",
					ask("sample", "hello", coatcheck.Never):  "failed: -32600 ",
					ask("session", "hello", 0):               "failed: -32600 ",
					ask("elicit", "Sure?", coatcheck.Auto):   "accept true",
					ask("elicit", "Sure?", coatcheck.Always): "failed: " + coatcheck.ErrNotHosted.Error(),
				} {
					wantText(t, call(t, s, "ask", arguments, &client.CallOptions{Mode: mode}), want)
				}
			})
		}
	})
}

// CAN-2: the client's task is cancelled with the call that asked for it.
func TestAskedTaskEndsWithItsCall(t *testing.T) {
	for name, mode := range bothModes {
		t.Run(name, func(t *testing.T) {
			askedOn(t, client.HostOptions{Sampling: client.Optional}, func(t *testing.T, s *client.Session, m *slowModel) {
				task := call(t, s, "ask", ask("sample", "wait", coatcheck.Always), &client.CallOptions{Mode: mode})
				<-m.started
				if err := task.Cancel(t.Context()); err != nil {
					t.Fatal(err)
				}
				<-m.stopped
				if _, err := task.Wait(t.Context()); err == nil {
					t.Error("the cancelled call has a result")
				}
			})
		})
	}
}
