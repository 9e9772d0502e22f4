package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/exampleserver"
	"github.com/coatcheck/coatcheck/protocol"
)

// staging is what a model is put in front of.
type staging struct {
	gateway []string // flags
	server  []string // arguments of counted-server after the directory
	many    bool     // over HTTP, without --single-user: there is no listing
	url     bool     // the server is one with a URL, not one that a command starts
	elicit  func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error)
}

// stage is a gateway, a process of its own, in front of a counted-server. Over HTTP it keeps its
// address when it is started again.
type stage struct {
	staging
	counted
	t       *testing.T
	http    bool
	address string
	child   *child    // the gateway, over HTTP
	behind  *child    // the server, if it has a URL
	cmd     *exec.Cmd // over stdio
	session *mcp.ClientSession
}

// onStage starts the gateway.
func onStage(t *testing.T, face string, s staging) *stage {
	t.Helper()
	st := &stage{staging: s, counted: counted(t.TempDir()), t: t, http: face == "http", address: "127.0.0.1:0"}
	t.Cleanup(func() {
		if st.session != nil {
			st.session.Close()
		}
		for _, c := range []*child{st.child, st.behind} {
			if c != nil {
				c.stop()
			}
		}
	})
	if s.url {
		st.behind = st.run(append([]string{"counted-server", string(st.counted), "http"}, s.server...)...)
	}
	st.start()
	return st
}

func (s *stage) start() {
	s.t.Helper()
	args := []string{"coatcheck", "gateway", "--store=sqlite:" + filepath.Join(string(s.counted), "tasks.db")}
	if s.http {
		args = append(args, "--listen="+s.address)
	} else {
		args = append(args, "--stdio")
	}
	if !s.many {
		args = append(args, "--principal=me")
		if s.http {
			args = append(args, "--single-user")
		}
	}
	args = append(args, s.gateway...)
	if s.url {
		args = append(args, s.behind.url)
	} else {
		args = append(append(args, "--", "counted-server", string(s.counted)), s.server...)
	}
	if s.http {
		s.child = s.run(args...)
		s.address = strings.TrimSuffix(strings.TrimPrefix(s.child.url, "http://"), "/mcp")
	}
	s.session = s.connect(args)
}

// run starts a program that says where it listens.
func (s *stage) run(args ...string) *child {
	s.t.Helper()
	c, err := startChild(s.t.Context(), s.t.Output(), "env", append([]string{"GORACE=" + race}, args...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// connect opens a session, of a client that knows nothing of tasks.
func (s *stage) connect(args []string) *mcp.ClientSession {
	s.t.Helper()
	var transport mcp.Transport
	if s.http {
		pool := &http.Transport{}
		s.t.Cleanup(pool.CloseIdleConnections)
		transport = &mcp.StreamableClientTransport{Endpoint: s.child.url, HTTPClient: &http.Client{Transport: pool}}
	} else {
		s.cmd = exec.Command("env", append([]string{"GORACE=" + race}, args...)...)
		s.cmd.Stderr = s.t.Output()
		transport = &mcp.CommandTransport{Command: s.cmd}
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "plain", Version: "1"}, &mcp.ClientOptions{ElicitationHandler: s.elicit})
	session, err := client.Connect(s.t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: protocol.Version20251125})
	if err != nil {
		s.t.Fatal(err)
	}
	return session
}

// crash kills the gateway and starts it again.
func (s *stage) crash() {
	s.t.Helper()
	if s.http {
		s.child.kill()
	} else if err := s.cmd.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	s.session.Close()
	s.start()
}

// model is one that wants the result of a call, which may be made twice.
func (s *stage) model() *model {
	s.t.Helper()
	m := &model{wants: "result", harmless: true}
	if err := m.orient(s.t.Context(), s.session); err != nil {
		s.t.Fatal(err)
	}
	return m
}

// ask gives the model a task, and checks that the answer it comes back with is the tool's own.
func (s *stage) ask(m *model, tool string, arguments map[string]any) {
	s.t.Helper()
	m.original, m.subject = &modelCall{tool, arguments}, tool
	if err := s.finish(m, m.original, tool, arguments); err != nil {
		s.t.Fatal(err)
	}
}

// finish has the model make a call. That it does not come back with what a tool answers by itself
// is an error.
func (s *stage) finish(m *model, call *modelCall, tool string, arguments map[string]any) error {
	var want string
	var failed error
	var both sync.WaitGroup
	both.Go(func() { want, failed = ownAnswer(s.t.Context(), tool, arguments) })
	got, err := m.work(s.t.Context(), call)
	both.Wait()
	if err = cmp.Or(err, failed); err != nil {
		return err
	}
	if got.outcome() != want {
		return fmt.Errorf("got %s, want %s, after %q", got.outcome(), want, m.heard)
	}
	return nil
}

// ownAnswer is what a tool answers where there is no gateway.
func ownAnswer(ctx context.Context, tool string, arguments map[string]any) (string, error) {
	near, far := mcp.NewInMemoryTransports()
	server, err := exampleserver.New().Connect(ctx, far, nil)
	if err != nil {
		return "", err
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "plain", Version: "1"}, &mcp.ClientOptions{ElicitationHandler: accept})
	session, err := client.Connect(ctx, near, &mcp.ClientSessionOptions{ProtocolVersion: protocol.Version20251125})
	if err != nil {
		return "", err
	}
	defer func() {
		session.Close()
		_ = server.Wait()
	}()
	answer, err := (&model{session: session}).call(ctx, &modelCall{tool, arguments})
	if err != nil {
		return "", err
	}
	return answer.outcome(), nil
}

func accept(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"confirm": true}}, nil
}

// worked checks how often a tool began its work and ended it.
func (s *stage) worked(tool string, began, ended int) {
	s.t.Helper()
	s.until("ended", tool, ended)
	if b, e := s.times("began", tool), s.times("ended", tool); b != began || e != ended {
		s.t.Errorf("%s began %d times and ended %d, want %d and %d", tool, b, e, began, ended)
	}
}

// call makes a call that no model decides on.
func (s *stage) call(tool string, arguments map[string]any) string {
	s.t.Helper()
	result, err := s.session.CallTool(s.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		s.t.Fatal(err)
	}
	return textsOf(result)
}
