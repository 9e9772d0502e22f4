package coatcheck_test

import (
	"bufio"
	"bytes"
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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// settings are the options of the runtime under test that can cross a process boundary.
type settings struct {
	Database   string
	DefaultTTL time.Duration
	MaxTTL     time.Duration
	Retention  time.Duration
	NoTools    bool
	Principal  task.Principal
	NoAuth     bool   // HTTP only: no token is asked for
	Version    string // that clients ask for; default 2025-11-25
	PushInput  bool
	NoStatus   bool
	AskAsTasks bool
	Limits     *coatcheck.Limits // of each principal
	ToolLimits map[string]coatcheck.ToolLimits
	NoLimits   bool
	Audit      string // a file
	Tickets    coatcheck.Tickets

	Capabilities string // of clients; default none
	Listen       bool   // clients over HTTP open a GET stream
}

func (s settings) options() *coatcheck.Options {
	opts := &coatcheck.Options{
		Database:       s.Database,
		Tools:          toolSupport,
		DefaultTTL:     s.DefaultTTL,
		MaxTTL:         s.MaxTTL,
		MinRetention:   s.Retention,
		LocalPrincipal: s.Principal,
		Grace:          -1,
		Tickets:        s.Tickets,

		PushInput:             s.PushInput,
		NoStatusNotifications: s.NoStatus,
		AskAsTasks:            s.AskAsTasks,
	}
	if s.NoTools {
		opts.Tools = nil
	}
	opts.Limits = s.policy()
	if s.Audit != "" {
		file, err := audit.File(s.Audit, nil)
		if err != nil {
			panic(err)
		}
		opts.Audit = file // each line is written when Record returns: nobody closes it
	}
	return opts
}

func (s settings) policy() *coatcheck.Policy {
	switch {
	case s.NoLimits:
		return limit.Off()
	case s.Limits != nil:
		return &coatcheck.Policy{Limits: *s.Limits, Tools: s.ToolLimits}
	}
	return nil
}

func (s settings) version() string {
	if s.Version == "" {
		return protocol.Version20251125
	}
	return s.Version
}

// stdioServer, in the environment, makes this test binary a server on stdin and stdout.
const stdioServer = "COATCHECK_TEST_STDIO"

func TestMain(m *testing.M) {
	if config := os.Getenv(stdioServer); config != "" {
		if err := serveStdio(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if config := os.Getenv(scriptedProcess); config != "" {
		if err := serveScripted(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(plainServer) != "" && len(os.Args) == 1 {
		if err := newServer().Run(context.Background(), &mcp.StdioTransport{}); err != nil && !errors.Is(err, io.EOF) {
			fmt.Fprintln(os.Stderr, err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func serveStdio(config string) error {
	var s settings
	if err := json.Unmarshal([]byte(config), &s); err != nil {
		return err
	}
	ctx := context.Background()
	server := newServer()
	rt, err := coatcheck.Open(ctx, server, s.options())
	if err != nil {
		return err
	}
	err = server.Run(ctx, rt.Transport(&mcp.StdioTransport{}))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, rt.Close(ctx))
}

// peer is a client of the runtime under test, at the level of raw messages.
type peer struct {
	t           *testing.T
	initialized reply // the answer to initialize
	round       func(ctx context.Context, message []byte) ([]byte, error)
	*inbox
	http bool
	web  *httpPeer // if it is http

	idMu sync.Mutex
	id   int
}

// reply is a JSON-RPC response.
type reply struct {
	ID     json.RawMessage
	Result json.RawMessage
	Error  *protocol.Error
}

// face is one way to reach a runtime.
type face struct {
	name string
	// open starts a runtime and returns a function that connects a client of a principal.
	open func(t *testing.T, s settings) (connect func(principal string) *peer)
}

var faces = []face{{"http", openHTTP}, {"stdio", openStdio}, {"in-process", openInProcess}}

// onEveryFace runs a test over HTTP, stdio and in-process.
func onEveryFace(t *testing.T, s settings, test func(t *testing.T, connect func(principal string) *peer)) {
	onFaces(t, faces, s, test)
}

func onFaces(t *testing.T, faces []face, s settings, test func(t *testing.T, connect func(principal string) *peer)) {
	for _, f := range faces {
		t.Run(f.name, func(t *testing.T) {
			s := s
			s.Database = "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")
			test(t, f.open(t, s))
		})
	}
}

func openHTTP(t *testing.T, s settings) func(string) *peer {
	server := newServer()
	rt, err := coatcheck.Open(t.Context(), server, s.options())
	if err != nil {
		t.Fatal(err)
	}
	handler := rt.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	if !s.NoAuth {
		handler = auth.RequireBearerToken(func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
			return &auth.TokenInfo{UserID: token, Expiration: time.Now().Add(time.Hour)}, nil
		}, nil)(handler)
	}
	web := httptest.NewServer(handler)
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
	return connectHTTP(t, s, web.URL)
}

func connectHTTP(t *testing.T, s settings, url string) func(string) *peer {
	return func(principal string) *peer {
		h := &httpPeer{url: url, token: principal, version: s.version(), client: &http.Client{Transport: &http.Transport{}}, inbox: newInbox()}
		t.Cleanup(h.client.CloseIdleConnections)
		p := newPeer(t, s, h.inbox, h.round)
		p.http, p.web = true, h
		if s.Listen {
			h.listen(t)
		}
		return p
	}
}

type httpPeer struct {
	url, token, session, version string
	client                       *http.Client
	refused                      atomic.Pointer[http.Response] // the last one that was no stream, read
	inbox                        *inbox
	whole                        bool // event streams are read to their end, not to the response
}

func (h *httpPeer) request(ctx context.Context, message []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(message))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Authorization", "Bearer "+h.token)
	if h.session != "" {
		req.Header.Set("Mcp-Session-Id", h.session)
		req.Header.Set("Mcp-Protocol-Version", h.version)
	}
	return h.client.Do(req)
}

func (h *httpPeer) round(ctx context.Context, message []byte) ([]byte, error) {
	resp, err := h.request(ctx, message)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
		h.session = id
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		response, err := h.inbox.read(resp.Body, streamOf(message))
		if h.whole && err == nil {
			_, _ = io.Copy(io.Discard, resp.Body) // the response is there
		}
		return response, err
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	h.refused.Store(resp)
	if resp.StatusCode >= 300 && resp.StatusCode != http.StatusTooManyRequests {
		return nil, fmt.Errorf("HTTP %d: %s", resp.StatusCode, body)
	}
	return body, nil
}

// listen opens the session's GET stream, and reads it until the test ends.
func (h *httpPeer) listen(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Authorization", "Bearer "+h.token)
	req.Header.Set("Mcp-Session-Id", h.session)
	req.Header.Set("Mcp-Protocol-Version", h.version)
	resp, err := h.client.Do(req) //nolint:bodyclose // the goroutine below closes it
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatal("GET:", resp.Status)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer resp.Body.Close()
		_, _ = h.inbox.read(resp.Body, "GET")
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func openStdio(t *testing.T, s settings) func(string) *peer {
	return func(principal string) *peer {
		s := s
		s.Principal = task.Principal(principal)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), stdioServer+"="+string(protocol.Marshal(s)))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = in.Close()
			if err := cmd.Wait(); err != nil {
				t.Error("server process:", err)
			}
		})
		d := newDemux(func(message []byte) error {
			_, err := in.Write(append(message, '\n'))
			return err
		})
		go func() {
			lines := bufio.NewReader(out)
			for {
				line, err := lines.ReadBytes('\n')
				if err != nil {
					return
				}
				d.deliver(line)
			}
		}()
		return newPeer(t, s, d.inbox, d.round)
	}
}

func openInProcess(t *testing.T, s settings) func(string) *peer {
	server := newServer() // shared, so that one client's tool call can reach another's gate
	return func(principal string) *peer {
		s := s
		s.Principal = task.Principal(principal)
		rt, err := coatcheck.Open(t.Context(), server, s.options())
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := mcp.NewInMemoryTransports()
		session, err := server.Connect(context.Background(), rt.Transport(theirs), nil)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := ours.Connect(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = conn.Close()
			_ = session.Wait()
			if err := rt.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		d := newDemux(func(message []byte) error {
			msg, err := jsonrpc.DecodeMessage(message)
			if err != nil {
				return err
			}
			return conn.Write(context.Background(), msg)
		})
		go func() {
			for {
				msg, err := conn.Read(context.Background())
				if err != nil {
					return
				}
				data, err := jsonrpc.EncodeMessage(msg)
				if err != nil {
					return
				}
				d.deliver(data)
			}
		}()
		return newPeer(t, s, d.inbox, d.round)
	}
}

// demux matches answers on one stream with the requests on another.
type demux struct {
	send  func([]byte) error
	inbox *inbox

	mu      sync.Mutex
	waiting map[string]chan []byte
}

func newDemux(send func([]byte) error) *demux {
	return &demux{send: send, inbox: newInbox(), waiting: map[string]chan []byte{}}
}

func (d *demux) deliver(message []byte) {
	m, err := protocol.ParseMessage(message)
	if err != nil {
		return
	}
	if m.Method != "" {
		d.inbox.add("connection", message)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	answer := d.waiting[string(m.ID)]
	if answer == nil {
		d.inbox.add("connection", message)
		return
	}
	delete(d.waiting, string(m.ID))
	answer <- bytes.Clone(bytes.TrimSpace(message))
}

func (d *demux) round(ctx context.Context, message []byte) ([]byte, error) {
	m, err := protocol.ParseMessage(message)
	if err != nil {
		return nil, err
	}
	answer := make(chan []byte, 1)
	d.mu.Lock()
	if m.IsCall() {
		d.waiting[string(m.ID)] = answer
	}
	err = d.send(message)
	d.mu.Unlock()
	if err != nil || !m.IsCall() {
		return nil, err
	}
	select {
	case data := <-answer:
		return data, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func newPeer(t *testing.T, s settings, in *inbox, round func(context.Context, []byte) ([]byte, error)) *peer {
	p := &peer{t: t, round: round, inbox: in}
	t.Cleanup(func() {
		for _, m := range in.seen(func(m heard) bool { return m.IsResponse() }) {
			t.Errorf("a second answer to a call: %s", m.raw)
		}
	})
	capabilities := s.Capabilities
	if capabilities == "" {
		capabilities = "{}"
	}
	p.initialized = p.call("initialize", fmt.Sprintf(`{"protocolVersion":%q,"capabilities":%s,"clientInfo":{"name":"t","version":"1"}}`, s.version(), capabilities))
	p.notify("notifications/initialized", `{}`)
	return p
}

func (p *peer) nextID() int {
	p.idMu.Lock()
	defer p.idMu.Unlock()
	p.id++
	return p.id
}

// callContext sends a request and returns its answer.
func (p *peer) callContext(ctx context.Context, id int, method, params string) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // a test that hangs says where
	defer cancel()
	data, err := p.round(ctx, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params))
	if err != nil {
		return reply{}, err
	}
	var r reply
	err = json.Unmarshal(data, &r)
	return r, err
}

func (p *peer) call(method, params string) reply {
	p.t.Helper()
	r, err := p.callContext(context.Background(), p.nextID(), method, params)
	if err != nil {
		p.t.Fatalf("%s %s: %v", method, params, err)
	}
	return r
}

func (p *peer) notify(method, params string) {
	p.t.Helper()
	if _, err := p.round(context.Background(), fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params)); err != nil {
		p.t.Fatal(err)
	}
}

// create calls a tool as a task and returns the task.
func (p *peer) create(params string) protocol.Task {
	p.t.Helper()
	r := p.call("tools/call", params)
	if r.Error != nil {
		p.t.Fatalf("create %s: %v", params, r.Error)
	}
	var created protocol.CreateTaskResult
	if err := json.Unmarshal(r.Result, &created); err != nil {
		p.t.Fatalf("create %s: %v in %s", params, err, r.Result)
	}
	return created.Task
}

func (p *peer) get(id string) protocol.Task {
	p.t.Helper()
	return p.task(p.call("tasks/get", idParams(id)))
}

func (p *peer) task(r reply) protocol.Task {
	p.t.Helper()
	var got protocol.Task
	if r.Error != nil {
		p.t.Fatal(r.Error)
	}
	if err := json.Unmarshal(r.Result, &got); err != nil {
		p.t.Fatal(err)
	}
	return got
}

// tool makes a plain call.
func (p *peer) tool(name, key string) reply {
	p.t.Helper()
	r := p.call("tools/call", fmt.Sprintf(`{"name":%q,"arguments":{"key":%q}}`, name, key))
	if r.Error != nil {
		p.t.Fatal(r.Error)
	}
	return r
}

func idParams(id string) string { return `{"taskId":` + string(protocol.AppendString(nil, id)) + `}` }

func gate(key string) string {
	return fmt.Sprintf(`{"name":"gate","arguments":{"key":%q},"task":{}}`, key)
}
