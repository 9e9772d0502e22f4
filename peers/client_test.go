package peers

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
)

// answers are what our client's handlers were asked, and what they answer.
type answers struct {
	sampled, elicited atomic.Int32
	elicit            *mcp.ElicitResult
}

func (a *answers) sample(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
	a.sampled.Add(1)
	return &mcp.CreateMessageResult{Model: "none", Role: "assistant", Content: &mcp.TextContent{Text: "Because ü."}}, nil
}

func (a *answers) answer(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	a.elicited.Add(1)
	return a.elicit, nil
}

// connectOurs connects package client to a server, with a host that runs sampling and
// elicitation as tasks if wanted.
func connectOurs(t *testing.T, server target, a *answers, hosting bool) *client.Session {
	t.Helper()
	var way mcp.Transport = &mcp.StreamableClientTransport{Endpoint: server.URL}
	if server.URL == "" {
		cmd := exec.Command(server.Command, server.Args...)
		cmd.Env = append(os.Environ(), mcpGoRole+"=1") // means nothing to other programs
		cmd.Stderr = os.Stderr
		way = &mcp.CommandTransport{Command: cmd}
	}
	opts := &client.Options{Server: "peer"}
	if hosting {
		host, err := client.OpenHost(t.Context(), &client.HostOptions{
			Sampling: client.Optional, Elicitation: client.Optional,
			Database: "sqlite:" + filepath.Join(t.TempDir(), "tasks.db"), Grace: -1,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := host.Close(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		})
		opts.Host = host
	}
	c := mcp.NewClient(&mcp.Implementation{Name: "coatcheck-peers", Version: "1"}, &mcp.ClientOptions{
		CreateMessageHandler: a.sample, ElicitationHandler: a.answer})
	s, err := client.Connect(t.Context(), c, way, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func ourCall(t *testing.T, s *client.Session, name string, args map[string]any, mode client.Mode) *client.Task {
	t.Helper()
	task, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args}, &client.CallOptions{Mode: mode})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if mode == client.Always && task.ID() == "" { // CAP-4
		t.Errorf("%s: not a task", name)
	}
	return task
}

// ourText returns the text of a call's result.
func ourText(t *testing.T, task *client.Task) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	result, err := task.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, content := range result.Content {
		if text, ok := content.(*mcp.TextContent); ok {
			texts = append(texts, text.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// everythingWays are the ways to reach the reference server.
var everythingWays = map[string]func(*testing.T) target{
	"stdio": func(*testing.T) target { return everythingServer() },
	"http":  startEverything,
}

// FLOW-3: the reference server has our client sample and elicit as tasks, polls them and
// fetches the results.
func TestOurClientHosts(t *testing.T) {
	t.Parallel()
	for name, way := range everythingWays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &answers{elicit: &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Zoë", "favoriteColor": "Blue", "agreeToTerms": true}}}
			s := connectOurs(t, way(t), a, true)
			sampled := ourCall(t, s, "trigger-sampling-request-async", map[string]any{"prompt": "Why?"}, client.Never)
			elicited := ourCall(t, s, "trigger-elicitation-request-async", map[string]any{}, client.Never)
			for what, check := range map[string]struct {
				task *client.Task
				want []string
			}{
				"sampling":    {sampled, []string{"[COMPLETED] Async sampling completed!", "Task created: ", ": completed", "Because ü.", `"io.modelcontextprotocol/related-task"`}},
				"elicitation": {elicited, []string{"[COMPLETED] User provided", "- Name: Zoë", "- Favorite Color: Blue", "Task created: ", ": completed"}},
			} {
				text := ourText(t, check.task)
				for _, want := range check.want {
					if !strings.Contains(text, want) {
						t.Errorf("%s lacks %q: %s", what, want, text)
					}
				}
			}
			if a.sampled.Load() != 1 || a.elicited.Load() != 1 {
				t.Errorf("asked %d and %d times", a.sampled.Load(), a.elicited.Load())
			}
		})
	}
}

// A person who declines declines through the task, too.
func TestOurClientHostDeclines(t *testing.T) {
	t.Parallel()
	s := connectOurs(t, everythingServer(), &answers{elicit: &mcp.ElicitResult{Action: "decline"}}, true)
	task := ourCall(t, s, "trigger-elicitation-request-async", map[string]any{}, client.Never)
	if text := ourText(t, task); !strings.Contains(text, "[DECLINED]") || !strings.Contains(text, "Task created: ") {
		t.Error(text)
	}
}

// Our client runs tasks on a server of the TypeScript SDK, with a question in the middle
// (GET-2, INP-3, INP-5), and cancels one.
func TestOurClientOnTypeScript(t *testing.T) {
	t.Parallel()
	for name, way := range everythingWays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &answers{elicit: &mcp.ElicitResult{Action: "accept", Content: map[string]any{"interpretation": "snake"}}}
			s := connectOurs(t, way(t), a, false)
			plain := ourCall(t, s, "echo", map[string]any{"message": "ü"}, client.Auto)
			if text := ourText(t, plain); text != "Echo: ü" || plain.ID() != "" { // TOOL-2
				t.Errorf("echo: %q, as task %q", text, plain.ID())
			}
			for _, mode := range []client.Mode{client.Auto, client.Always} {
				task := ourCall(t, s, "simulate-research-query", map[string]any{"topic": "python", "ambiguous": true}, mode)
				if text := ourText(t, task); task.ID() == "" || !strings.Contains(text, "- **Clarification**: snake") {
					t.Errorf("task %q: %s", task.ID(), text)
				}
				state, err := s.Get(t.Context(), task.ID())
				if err != nil || state.Status != client.Completed {
					t.Errorf("tasks/get: %+v, %v", state, err)
				}
			}
			if n := a.elicited.Load(); n != 2 {
				t.Errorf("asked %d times", n)
			}
			checkCancel(t, s, ourCall(t, s, "simulate-research-query", map[string]any{"topic": "cut short"}, client.Always))
		})
	}
}

// checkCancel cancels a task that is running, and checks that it stays so.
func checkCancel(t *testing.T, s *client.Session, task *client.Task) {
	t.Helper()
	if err := task.Cancel(t.Context()); err != nil {
		t.Fatal("cancel:", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := task.Wait(ctx); !errors.Is(err, client.ErrCancelled) {
		t.Errorf("a cancelled task ends with %v", err)
	}
	state, err := s.Get(t.Context(), task.ID())
	if err != nil || state.Status != client.Cancelled {
		t.Errorf("tasks/get: %+v, %v", state, err)
	}
}

// Our client runs tasks on our own server, a gateway.
func TestOurClientOnOurs(t *testing.T) {
	t.Parallel()
	overEach(t, exampleServer, func(t *testing.T, server target) {
		a := &answers{elicit: &mcp.ElicitResult{Action: "accept", Content: map[string]any{"confirm": true}}}
		s := connectOurs(t, server, a, false)
		for _, mode := range []client.Mode{client.Never, client.Auto, client.Always} {
			task := ourCall(t, s, "greet", calls["greet"], mode)
			if text := ourText(t, task); !strings.Contains(text, "Zoë 😀") || (task.ID() == "") != (mode == client.Never) {
				t.Errorf("greet, as task %q: %s", task.ID(), text)
			}
		}
		task := ourCall(t, s, "confirm_delete", map[string]any{"filename": "i.txt"}, client.Always) // FLOW-2
		if text := ourText(t, task); text != "Deleted i.txt." {
			t.Error(text)
		}
		if n := a.elicited.Load(); n != 1 {
			t.Errorf("asked %d times", n)
		}
		checkCancel(t, s, ourCall(t, s, "slow_compute", map[string]any{"seconds": 600, "label": "never done"}, client.Always)) // FLOW-4
	})
}
