package coatcheck_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/internal/authn"
	"github.com/coatcheck/coatcheck/internal/gateway"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// place is a way to run the scripted tools, that can be left and come back to: the database and
// the office stay.
type place struct {
	name       string
	principals []string
	// alone: there is one session at a time, that of the process.
	alone bool
	// lets: a graceful end lets work end; else it is interrupted.
	lets bool
	open func(setup) (counter, error)
}

var manyPrincipals = []string{"alice", "bob", "carol"}

var (
	libraryOverHTTP  = place{name: "http", principals: manyPrincipals, open: openCounter}
	libraryOverStdio = place{name: "stdio", principals: []string{"alice"}, alone: true, open: openStdioCounter}
	gatewayToURL     = place{name: "gateway to a URL", principals: manyPrincipals, lets: true, open: openURLCounter}
	gatewayToCommand = place{name: "gateway to a command", principals: manyPrincipals, lets: true, open: openCommandCounter}
	processOverHTTP  = place{name: "process", principals: []string{"alice", "bob"}, open: openProcessCounter}
)

// setup is what a place is opened with. It crosses process boundaries.
type setup struct {
	Dir      string // for the database, and what else is kept
	Office   string // its URL
	Reattach time.Duration
	Stdio    bool
	Bare     bool // without tickets, behind a gateway
}

// counter is a server with tickets while it runs.
type counter interface {
	// connect begins a session, before the MCP handshake.
	connect(who string) (*session, error)
	// close ends it: gracefully, or at once if that can be. Work that may end may do so meanwhile:
	// while is called when it has begun to end.
	close(kill bool, while func()) error
}

// session is a client's, of one principal.
type session struct {
	*peer
	who    string
	listed bool // it was told of the tools
	left   bool // its client ended it
	heard  int  // messages of the inbox that were looked at
	hangUp func()
}

// GoString is what rapid shows.
func (s *session) GoString() string { return fmt.Sprintf("session of %s, listed %v", s.who, s.listed) }

// handshake initializes a session.
func (s *session) handshake() error {
	r, err := s.callContext(context.Background(), s.nextID(), "initialize",
		fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"t","version":"1"}}`, protocol.Version20251125))
	if err != nil || r.Error != nil {
		return fmt.Errorf("initialize: %w %s", err, protocol.Marshal(r.Error))
	}
	_, err = s.round(context.Background(), []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	return err
}

func (s setup) options() *coatcheck.Options {
	opts := &coatcheck.Options{
		Database: "sqlite:" + filepath.Join(s.Dir, "tasks.db"), Grace: -1, Limits: limit.Off(), LocalPrincipal: "alice",
		Tickets: scriptedTickets(s.Reattach), Tools: map[string]coatcheck.Tool{},
	}
	for name, support := range scriptedSupport() {
		opts.Tools[name] = coatcheck.Tool{Support: support}
	}
	return opts
}

// openRuntime returns a runtime and what serves it over HTTP, to whom a token names.
func (s setup) openRuntime() (*coatcheck.Runtime, *mcp.Server, http.Handler, error) {
	server := newScriptedServer(s.Office)
	rt, err := coatcheck.Open(context.Background(), server, s.options())
	if err != nil {
		return nil, nil, nil, err
	}
	handler := rt.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	return rt, server, auth.RequireBearerToken(func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
		return &auth.TokenInfo{UserID: token, Expiration: time.Now().Add(time.Hour)}, nil
	}, nil)(handler), nil
}

func connectTo(url, who, token string) *session {
	transport := &http.Transport{}
	h := &httpPeer{url: url, token: token, version: protocol.Version20251125, client: &http.Client{Transport: transport}, inbox: newInbox()}
	h.whole = true
	return &session{peer: &peer{round: h.round, inbox: h.inbox, http: true, web: h}, who: who, hangUp: transport.CloseIdleConnections}
}

// webCounter is the library in this process.
type webCounter struct {
	rt     *coatcheck.Runtime
	server *mcp.Server
	web    *httptest.Server
}

func openCounter(s setup) (counter, error) {
	rt, server, handler, err := s.openRuntime()
	if err != nil {
		return nil, err
	}
	return &webCounter{rt, server, httptest.NewServer(handler)}, nil
}

func (c *webCounter) connect(who string) (*session, error) {
	return connectTo(c.web.URL, who, who), nil
}

func (c *webCounter) close(_ bool, while func()) error {
	c.web.CloseClientConnections()
	c.web.Close()
	err := c.rt.Close(context.Background())
	while() // work does not end by itself that was not stopped
	for session := range c.server.Sessions() {
		_ = session.Close()
	}
	return err
}

// gatewayCounter is a gateway in this process.
type gatewayCounter struct {
	url    string
	stop   context.CancelFunc
	served chan error
	behind func() // closes what the gateway did not start itself
	tokens map[string]string
}

// openURLCounter has the server behind in this process, too.
func openURLCounter(s setup) (counter, error) {
	server := newScriptedServer(s.Office)
	behind := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	return s.openGateway(gateway.Config{URL: behind.URL}, func() {
		behind.CloseClientConnections()
		behind.Close()
		for session := range server.Sessions() {
			_ = session.Close()
		}
	})
}

// openCommandCounter has the servers behind in processes of the gateway.
func openCommandCounter(s setup) (counter, error) {
	s.Bare = true
	return s.openGateway(gateway.Config{Command: append([]string{"env"}, s.command()...), Processes: 64}, func() {})
}

func (s setup) openGateway(cfg gateway.Config, behind func()) (counter, error) {
	c := &gatewayCounter{behind: behind, served: make(chan error, 1), tokens: map[string]string{}}
	var lines strings.Builder
	for _, who := range manyPrincipals {
		token, secret, err := authn.NewToken(authn.Token{Subject: who})
		if err != nil {
			return nil, err
		}
		c.tokens[who] = secret
		lines.WriteString(token.String() + "\n")
	}
	file := filepath.Join(s.Dir, "tokens")
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		return nil, err
	}
	ready := make(chan string, 1)
	var ctx context.Context
	ctx, c.stop = context.WithCancel(context.Background())
	cfg.Listen, cfg.Store = "127.0.0.1:0", "sqlite:"+filepath.Join(s.Dir, "tasks.db")
	cfg.Support, cfg.Tools, cfg.Limits, cfg.Tickets = protocol.Optional, scriptedSupport(), limit.Off(), scriptedTickets(s.Reattach)
	cfg.DefaultTTL, cfg.MaxTTL, cfg.MinRetention = time.Hour, 24*time.Hour, time.Minute
	cfg.Auth = authn.Config{Mode: authn.Tokens, TokenFile: file}
	cfg.Ready = func(address string) { ready <- "http://" + address + "/mcp" }
	go func() { c.served <- gateway.Serve(ctx, cfg) }()
	select {
	case c.url = <-ready:
		return c, nil
	case err := <-c.served:
		return nil, fmt.Errorf("gateway: %w", err)
	}
}

func (c *gatewayCounter) connect(who string) (*session, error) {
	return connectTo(c.url, who, c.tokens[who]), nil
}

func (c *gatewayCounter) close(_ bool, while func()) error {
	c.stop()
	while()
	err := <-c.served
	c.behind()
	return err
}

// scriptedProcess, in the environment, makes this test binary a server of scripted tools.
const scriptedProcess = "COATCHECK_TEST_SCRIPTED"

// serveScripted serves on stdin and stdout, or over HTTP until stdin ends.
func serveScripted(config string) error {
	var s setup
	if err := json.Unmarshal([]byte(config), &s); err != nil {
		return err
	}
	ctx := context.Background()
	if s.Bare {
		if err := newScriptedServer(s.Office).Run(ctx, &mcp.StdioTransport{}); !errors.Is(err, io.EOF) {
			return err
		}
		return nil
	}
	rt, server, handler, err := s.openRuntime()
	if err != nil {
		return err
	}
	if s.Stdio {
		err = server.Run(ctx, rt.Transport(&mcp.StdioTransport{}))
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return errors.Join(err, rt.Close(ctx))
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	web := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = web.Close()
	}()
	fmt.Fprintln(os.Stdout, "http://"+listener.Addr().String())
	if err := web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return rt.Close(ctx)
}

// processCounter is the library in another process.
type processCounter struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	url string // if it is not on stdio
	one *session
}

// command is that of a process: what to add to the environment, and the program.
func (s setup) command() []string {
	return []string{scriptedProcess + "=" + string(protocol.Marshal(s)), "GORACE=atexit_sleep_ms=0 " + os.Getenv("GORACE"), os.Args[0]}
}

func openProcess(s setup) (*processCounter, error) {
	cmd := exec.Command("env", s.command()...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &processCounter{cmd: cmd, in: in, out: bufio.NewReader(out)}, cmd.Start()
}

func openProcessCounter(s setup) (counter, error) {
	c, err := openProcess(s)
	if err != nil {
		return nil, err
	}
	line, err := c.out.ReadString('\n')
	c.url = strings.TrimSpace(line)
	return c, err
}

func openStdioCounter(s setup) (counter, error) {
	s.Stdio = true
	c, err := openProcess(s)
	if err != nil {
		return nil, err
	}
	d := newDemux(func(message []byte) error {
		_, err := c.in.Write(append(message, '\n'))
		return err
	})
	go func() {
		for {
			line, err := c.out.ReadBytes('\n')
			if err != nil {
				return
			}
			d.deliver(line)
		}
	}()
	c.one = &session{peer: &peer{round: d.round, inbox: d.inbox}, who: string(task.Principal("alice")), hangUp: func() {}}
	return c, nil
}

func (c *processCounter) connect(who string) (*session, error) {
	if c.one != nil {
		return c.one, nil
	}
	return connectTo(c.url, who, who), nil
}

func (c *processCounter) close(kill bool, while func()) error {
	defer while()
	if kill {
		err := c.cmd.Process.Kill()
		_ = c.cmd.Wait() // it was killed
		return err
	}
	return errors.Join(c.in.Close(), c.cmd.Wait())
}
