package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// peer is the command line of a server written by others. It serves on stdio, and with one
// more argument, streamableHttp, at /mcp on the port in PORT.
type peer []string

func nodePeer(t *testing.T, script ...string) peer {
	t.Helper()
	modules := filepath.Join("..", "peers", "node_modules", "@modelcontextprotocol")
	for _, name := range []string{"sdk", "server-everything"} {
		if _, err := os.Stat(filepath.Join(modules, name)); err != nil {
			t.Fatalf("%v; run: make peers", err)
		}
	}
	return peer{"node", filepath.Join(append([]string{"..", "peers"}, script...)...)}
}

func everything(t *testing.T) peer {
	return nodePeer(t, "node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js")
}

// mcpGo builds the server on mcp-go in the module it belongs to.
func mcpGo(t *testing.T) peer {
	t.Helper()
	program := filepath.Join(t.TempDir(), "mcpgoserver")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", program, "./mcpgoserver")
	build.Dir = filepath.Join("..", "peers")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build ./mcpgoserver: %v\n%s", err, out)
	}
	return peer{program}
}

// over runs a test with the peer over stdio and over streamable HTTP.
func (p peer) over(t *testing.T, test func(t *testing.T, transport mcp.Transport)) {
	t.Run("stdio", func(t *testing.T) {
		// server-everything does not end with its input as long as it has a task.
		test(t, &mcp.CommandTransport{Command: exec.Command(p[0], p[1:]...), TerminateDuration: time.Second})
	})
	t.Run("http", func(t *testing.T) { test(t, p.serve(t)) })
}

func (p peer) serve(t *testing.T) mcp.Transport {
	t.Helper()
	// The peers cannot be asked to take any free port and say which, so one is found for them.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().(*net.TCPAddr)
	listener.Close()
	cmd := exec.Command(p[0], append(p[1:len(p):len(p)], "streamableHttp")...)
	cmd.Env = append(os.Environ(), "PORT="+strconv.Itoa(address.Port))
	if err := cmd.Start(); err != nil { // one process: no peer starts another
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	web := &http.Transport{}
	t.Cleanup(web.CloseIdleConnections)
	for deadline := time.Now().Add(30 * time.Second); !listens(address); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen", strings.Join(p, " "))
		}
	}
	return &mcp.StreamableClientTransport{Endpoint: "http://" + address.String() + "/mcp", HTTPClient: &http.Client{Transport: web}}
}

func listens(address net.Addr) bool {
	conn, err := net.Dial("tcp", address.String())
	return err == nil && conn.Close() == nil
}

// user answers what the peers ask.
type user struct{ asked atomic.Int32 }

func (u *user) elicit(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	u.asked.Add(1)
	content := map[string]any{"name": "Zoë", "favoriteColor": "Blue"}
	if strings.Contains(req.Params.Message, "interpretations") {
		content = map[string]any{"interpretation": "snake"}
	}
	return &mcp.ElicitResult{Action: "accept", Content: content}, nil
}

func (u *user) sample(_ context.Context, req *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
	u.asked.Add(1)
	prompt, _ := req.Params.Messages[0].Content.(*mcp.TextContent)
	if strings.Contains(prompt.Text, "refuse") {
		return nil, errors.New("no model")
	}
	return &mcp.CreateMessageResult{Model: "none", Role: "assistant", Content: &mcp.TextContent{Text: "grey wool"}}, nil
}

func connectPeer(t *testing.T, transport mcp.Transport, opts *client.Options) (*client.Session, *user) {
	t.Helper()
	u := &user{}
	c := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ClientOptions{ElicitationHandler: u.elicit, CreateMessageHandler: u.sample})
	s, err := client.Connect(t.Context(), c, transport, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	// server-everything adds tools once it has handled notifications/initialized.
	if err := s.SDK().Ping(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return s, u
}

func callPeer(t *testing.T, s *client.Session, tool string, args any, mode client.Mode) *client.Task {
	t.Helper()
	task, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args}, &client.CallOptions{Mode: mode})
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	return task
}

func said(t *testing.T, task *client.Task) (text string, isError bool) {
	t.Helper()
	result, err := task.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range result.Content {
		part, _ := json.Marshal(block)
		piece, _ := protocol.Unquote(protocol.Get(part, "text"))
		text += piece
	}
	return text, result.IsError
}

// CAP-2, GET-3, RES-3: the reference server has this client sample and elicit as tasks.
func TestEverythingAsksHost(t *testing.T) {
	everything(t).over(t, func(t *testing.T, transport mcp.Transport) {
		host, err := client.OpenHost(t.Context(), &client.HostOptions{
			Sampling: client.Optional, Elicitation: client.Optional, Database: "sqlite:" + filepath.Join(t.TempDir(), "tasks.db"),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := host.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		s, u := connectPeer(t, transport, &client.Options{Host: host, Server: "everything"})
		for _, c := range []struct {
			tool, prompt string
			want         []string
		}{
			{"trigger-sampling-request-async", "coats", []string{"[COMPLETED]", "Task created: ", `"text": "grey wool"`, protocol.MetaRelatedTask}}, // REL-3
			{"trigger-sampling-request-async", "refuse", []string{"[FAILED]", "Task created: ", "no model"}},
			{"trigger-elicitation-request-async", "", []string{"[COMPLETED]", "Task created: ", "- Name: Zoë", "- Favorite Color: Blue"}},
		} {
			before := u.asked.Load()
			text, _ := said(t, callPeer(t, s, c.tool, map[string]any{"prompt": c.prompt}, client.Auto))
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("%s %s: no %q in %s", c.tool, c.prompt, want, text)
				}
			}
			if asked := u.asked.Load() - before; asked != 1 {
				t.Errorf("%s %s: the handler was called %d times", c.tool, c.prompt, asked)
			}
		}
	})
}

// GET-2, INP-3, INP-5: the reference server's own task, which asks in the middle.
func TestEverythingRunsTask(t *testing.T) {
	everything(t).over(t, func(t *testing.T, transport mcp.Transport) {
		s, u := connectPeer(t, transport, nil)
		unambiguous := callPeer(t, s, "simulate-research-query", map[string]any{"topic": "wool"}, client.Always)
		ambiguous := callPeer(t, s, "simulate-research-query", map[string]any{"topic": "python", "ambiguous": true}, client.Auto)
		seen := map[client.Status]bool{}
		for update := range ambiguous.Updates(t.Context()) {
			seen[update.Status] = true
		}
		if !seen[client.Working] || !seen[client.Completed] {
			t.Errorf("went through %v", seen)
		}
		for task, want := range map[*client.Task]string{unambiguous: "Research Report: wool", ambiguous: "Research Report: python (snake)"} {
			if text, isError := said(t, task); task.ID() == "" || isError || !strings.Contains(text, want) {
				t.Errorf("task %q: %s; want %s", task.ID(), text, want)
			}
		}
		if asked := u.asked.Load(); asked != 1 {
			t.Errorf("the handler was called %d times", asked)
		}
	})
}

// CAP-4, TOOL-2, RES-1, CAN-2 with servers on other SDKs.
func TestPeersRunTasks(t *testing.T) {
	for name, open := range map[string]func(*testing.T) peer{
		"typescript": func(t *testing.T) peer { return nodePeer(t, "ts", "serve.mjs") },
		"mcp-go":     mcpGo,
	} {
		t.Run(name, func(t *testing.T) {
			open(t).over(t, func(t *testing.T, transport mcp.Transport) {
				s, _ := connectPeer(t, transport, &client.Options{Poll: 100 * time.Millisecond})
				for _, mode := range []client.Mode{client.Auto, client.Always, client.Never} {
					task := callPeer(t, s, "work", nil, mode)
					if text, isError := said(t, task); text != "worked" || isError || (task.ID() == "") != (mode == client.Never) || task.Status().Status != client.Completed {
						t.Errorf("mode %d, task %q: %s, %+v", mode, task.ID(), text, task.Status())
					}
				}
				task := callPeer(t, s, "fail", nil, client.Always)
				if text, isError := said(t, task); text != "no luck" || !isError {
					t.Errorf("fail: %s, %v", text, isError)
				}
				// EXE-2, which mcp-go leaves out: there such a task is completed.
				if status := task.Status().Status; (status == client.Failed) != (name == "typescript") {
					t.Errorf("fail: %s", status)
				}
				if name == "mcp-go" {
					_, err := callPeer(t, s, "break", nil, client.Always).Wait(t.Context())
					if wire, ok := errors.AsType[*jsonrpc.Error](err); !ok || wire.Code != protocol.CodeInternalError || wire.Message != "broken" {
						t.Errorf("break: %v", err)
					}
				}
				detach(t, s)
				if task = callPeer(t, s, "hold", nil, client.Always); task.Cancel(t.Context()) != nil {
					t.Error("not cancelled")
				}
				if _, err := task.Wait(t.Context()); !errors.Is(err, client.ErrCancelled) {
					t.Errorf("cancelled: %v", err)
				}
				if state, err := s.Get(t.Context(), task.ID()); err != nil || state.Status != client.Cancelled {
					t.Errorf("cancelled: %+v, %v", state, err)
				}
				if _, err := s.Get(t.Context(), "no-such-task"); !errors.Is(err, client.ErrNotFound) {
					t.Errorf("unknown: %v", err)
				}
			})
		})
	}
}

// detach lets go of a task that waits, has it go on by a plain call, and comes back to it.
func detach(t *testing.T, s *client.Session) {
	t.Helper()
	task := callPeer(t, s, "hold", nil, client.Auto)
	if _, ended, err := task.WaitOrDetach(t.Context(), 50*time.Millisecond); ended || err != nil {
		t.Fatalf("hold: %v, %v", ended, err)
	}
	if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "release"}, &client.CallOptions{Mode: client.Always}); !errors.Is(err, client.ErrUnsupported) {
		t.Errorf("release as a task: %v", err)
	}
	plain := callPeer(t, s, "release", nil, client.Auto)
	if text, _ := said(t, plain); plain.ID() != "" || text != "released" {
		t.Errorf("release, task %q: %s", plain.ID(), text)
	}
	again, err := s.Attach(t.Context(), task.ID())
	if err != nil {
		t.Fatal(err)
	}
	if text, isError := said(t, again); text != "let go" || isError {
		t.Errorf("attached: %s, %v", text, isError)
	}
}
