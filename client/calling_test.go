package client_test

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
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// serve returns a server with the model as a tool, and tasks.
func (s *stage) serve(principal string) (*mcp.Server, *coatcheck.Runtime) {
	s.Helper()
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "model", InputSchema: json.RawMessage(`{"type":"object"}`)}, s.call)
	tool := coatcheck.Tool{Support: coatcheck.Optional}
	if s.required {
		tool.Support = coatcheck.Required
	}
	if s.immediate {
		tool.Immediate = patience
	}
	rt, err := coatcheck.Open(s.Context(), server, &coatcheck.Options{
		Tools: map[string]coatcheck.Tool{"model": tool}, Database: s.database, Grace: -1, LocalPrincipal: task.Principal(principal),
		MaxTTL: s.maxTTL, MinRetention: s.minRetention, PollInterval: s.pollInterval, NoStatusNotifications: s.noStatus,
	})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := rt.Close(context.Background()); err != nil {
			s.Error(err)
		}
	})
	return server, rt
}

// calling returns a client that calls the model, and shakes hands by way of say.
func (s *stage) calling(say func(id, method string, params json.RawMessage) error) *requesting {
	r := newRequesting(s.T)
	r.method, r.say = protocol.MethodToolsCall, say
	r.params = func(text, more string) string {
		return fmt.Sprintf(`{"name":"model","arguments":{"text":%q}%s}`, text, more)
	}
	return r
}

func (r *requesting) shakeHands() {
	r.t.Helper()
	result := r.must("initialize", `{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"t","version":"1"}}`)
	r.declared = protocol.Get(protocol.Get(result, "capabilities"), "tasks")
	if err := r.say("", protocol.MethodInitialized, json.RawMessage(`{}`)); err != nil {
		r.t.Fatal(err)
	}
}

// callingOverStdio connects a client to a server of its own, as over stdio.
func callingOverStdio(s *stage, principal string) (*requesting, func()) {
	s.Helper()
	server, rt := s.serve(principal)
	fromClient, in, err := os.Pipe()
	if err != nil {
		s.Fatal(err)
	}
	fromServer, out, err := os.Pipe()
	if err != nil {
		s.Fatal(err)
	}
	session, err := server.Connect(context.Background(), rt.Transport(&mcp.IOTransport{Reader: fromClient, Writer: out}), nil)
	if err != nil {
		s.Fatal(err)
	}
	var mu sync.Mutex
	write := func(message string) error {
		mu.Lock()
		defer mu.Unlock()
		_, err := io.WriteString(in, message)
		return err
	}
	r := s.calling(func(id, method string, params json.RawMessage) error { return write(line(id, method, params)) })
	r.reply = write
	read := make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewReader(fromServer)
		for {
			text, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			if m, err := protocol.ParseMessage(text); err != nil {
				s.Errorf("not a message: %s", text)
			} else {
				r.heard(m)
			}
		}
	}()
	r.shakeHands()
	return r, func() {
		_ = in.Close()
		_ = session.Wait() // it ends as the client went
		_ = out.Close()
		<-read
	}
}

// callingOverHTTP connects a client to the stage's one server, with a GET stream open.
func callingOverHTTP(s *stage, principal string) (*requesting, func()) {
	s.Helper()
	url, ok := s.open.(string)
	if !ok {
		url = s.serveHTTP()
		s.open = url
	}
	over, end := context.WithCancel(context.Background())
	c := &calling{stage: s, url: url, token: principal, over: over, client: &http.Client{Transport: &http.Transport{}}}
	c.requesting = s.calling(c.say)
	c.reply = c.post
	c.shakeHands()
	c.listen()
	return c.requesting, func() {
		end()
		c.open.Wait()
		c.client.CloseIdleConnections()
	}
}

func (s *stage) serveHTTP() (url string) {
	server, rt := s.serve("")
	web := httptest.NewServer(auth.RequireBearerToken(func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
		return &auth.TokenInfo{UserID: token, Expiration: time.Now().Add(time.Hour)}, nil
	}, nil)(rt.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))))
	s.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
		for session := range server.Sessions() {
			_ = session.Close()
		}
	})
	return web.URL
}

// calling is a client over HTTP.
type calling struct {
	*requesting
	stage      *stage
	url, token string
	over       context.Context // done once it leaves
	client     *http.Client
	open       sync.WaitGroup // exchanges

	mu      sync.Mutex
	session string
}

func (c *calling) request(method string, body io.Reader) *http.Request {
	req, err := http.NewRequestWithContext(c.over, method, c.url, body)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != "" {
		req.Header.Set("Mcp-Session-Id", c.session)
		req.Header.Set("Mcp-Protocol-Version", protocol.Version20251125)
	}
	return req
}

// say posts a message. The answer is read in the background: it may take its time.
func (c *calling) say(id, method string, params json.RawMessage) error {
	if id == "" {
		return c.post(line(id, method, params))
	}
	c.open.Go(func() {
		if err := c.post(line(id, method, params)); err != nil && c.over.Err() == nil {
			c.t.Errorf("%s %s: %v", method, params, err)
		}
	})
	return nil
}

// post posts a message and hears all that it is answered with.
func (c *calling) post(message string) error {
	resp, err := c.client.Do(c.request(http.MethodPost, strings.NewReader(message)))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if session := resp.Header.Get("Mcp-Session-Id"); session != "" {
		c.mu.Lock()
		c.session = session
		c.mu.Unlock()
	}
	c.read(resp.Body)
	return nil
}

func (c *calling) listen() {
	c.t.Helper()
	resp, err := c.client.Do(c.request(http.MethodGet, nil))
	if err != nil || resp.StatusCode != http.StatusOK {
		c.t.Fatalf("no GET stream: %v", err)
	}
	c.open.Go(func() {
		defer resp.Body.Close()
		c.read(resp.Body)
	})
}

// read reads an answer, JSON or events, to its end.
func (c *calling) read(body io.Reader) {
	lines := bufio.NewReader(body)
	for {
		text, err := lines.ReadBytes('\n')
		if m, parseErr := protocol.ParseMessage(bytes.TrimPrefix(bytes.TrimSpace(text), []byte("data: "))); parseErr == nil {
			c.heard(m)
		}
		if err != nil {
			return
		}
	}
}
