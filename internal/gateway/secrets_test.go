package gateway

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/protocol"
)

// Everything secret here has this in it.
const secret = "SECRET"

// heard is what a gateway says to its log and its clients.
type heard struct{ bytes.Buffer }

func (h *heard) check(t *testing.T, atLeast ...string) {
	t.Helper()
	for line := range strings.Lines(h.String()) {
		if strings.Contains(line, secret) {
			t.Errorf("a secret in: %s", line)
		}
	}
	for _, text := range atLeast {
		if !strings.Contains(h.String(), text) {
			t.Errorf("nothing was said of %q in:\n%s", text, h.String())
		}
	}
}

// shy is a server that wants to see the secrets of its URL, and breaks off every tools/call.
func shy(t *testing.T) (server *httptest.Server, url string, asked *atomic.Int32) {
	asked = new(atomic.Int32)
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		user, password, _ := req.BasicAuth()
		if user != "user" || password != secret+"-password" || req.URL.String() != "/mcp?key="+secret+"-query" {
			t.Errorf("%s %s as %q", req.Method, req.URL, user)
		}
		body, _ := io.ReadAll(req.Body)
		m, err := protocol.ParseMessage(body)
		if err != nil || !m.IsCall() {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set(sessionHeader, "s")
		switch m.Method {
		case protocol.MethodInitialize:
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}}`)
		case protocol.MethodToolsList:
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{"tools":[{"name":"x","inputSchema":{"type":"object"}}]}}`)
		default:
			asked.Add(1)
			panic(http.ErrAbortHandler)
		}
	}))
	return server, strings.Replace(server.URL, "http://", "http://user:"+secret+"-password@", 1) + "/mcp?key=" + secret + "-query", asked
}

// What is secret in a URL, a header or arguments is neither in the log nor in what clients are
// told when a server fails them.
func TestNoSecretsOfURL(t *testing.T) {
	var said heard
	backend, endpoint, asked := shy(t)
	defer backend.Close()
	url, stop := start(t, Config{URL: endpoint, Logger: slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	c := newClient(t, url)
	var answers strings.Builder
	params := `{"name":"x","arguments":{"key":"` + secret + `-argument"}%s}`
	fail := func() {
		answers.WriteString(c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":`+strings.Replace(params, "%s", "", 1)+`}`).body + "\n")
		id := c.create(strings.Replace(params, "%s", `,"task":{}`, 1))
		answers.WriteString(c.post(`{"jsonrpc":"2.0","id":2,"method":"tasks/result","params":`+ref(id)+`}`).body + "\n")
		answers.WriteString(c.post(`{"jsonrpc":"2.0","id":3,"method":"tasks/get","params":`+ref(id)+`}`).body + "\n")
	}
	fail()
	if asked.Load() < 2 {
		t.Errorf("the server was asked %d times", asked.Load())
	}
	backend.Close() // the connection to it is refused from here on
	fail()
	stop()
	_, _ = said.WriteString(answers.String())
	said.check(t, "the server cannot be reached", "was not answered by the server", `"status":"failed"`, "-32603")
}

// The same over stdio.
func TestNoSecretsOverStdio(t *testing.T) {
	var said heard
	backend, endpoint, _ := shy(t)
	backend.Close()
	near, far := mcp.NewInMemoryTransports()
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		ended <- Serve(ctx, Config{
			URL: endpoint, Stdio: far, Store: "memory:",
			Logger: slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
	}()
	conn, err := near.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	msg, _ := jsonrpc.DecodeMessage([]byte(initialize))
	if err := conn.Write(ctx, msg); err != nil {
		t.Fatal(err)
	}
	answer, err := conn.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := jsonrpc.EncodeMessage(answer)
	_ = conn.Close()
	if err := <-ended; err != nil {
		_, _ = said.WriteString(err.Error() + "\n")
	}
	_, _ = said.Write(text)
	said.check(t, "refused")
}

// Of a command that fails, nothing is said but its name.
func TestNoSecretsOfCommand(t *testing.T) {
	var said heard
	url, stop := start(t, Config{
		Command: []string{"/bin/sh", "-c", "read line; exit 3", secret + "-argument"},
		Logger:  slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	c := &client{t: t, url: url, web: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	answers := c.post(initialize).body
	answers += c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","task":{}}}`).body
	stop()
	_, _ = said.WriteString(answers)
	said.check(t, "exit status 3")
}

// A URL that cannot be parsed is not repeated.
func TestNoSecretsOfBadURL(t *testing.T) {
	err := Serve(t.Context(), Config{URL: "http://user:" + secret + "@h:port/%zz", Listen: "127.0.0.1:0", Store: "memory:"})
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("%v", err)
	}
}
