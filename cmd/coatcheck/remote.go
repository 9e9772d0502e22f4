package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/session"
	"github.com/coatcheck/coatcheck/protocol"
)

// target says where a server is: at a URL, or behind a command.
type target struct {
	url   string
	stdio string // the command line as it was given
}

// String is the target as the SERVER of a command line to paste.
func (t target) String() string {
	if t.stdio != "" {
		return fmt.Sprintf("--stdio %s", quote(t.stdio))
	}
	return t.url
}

// transport returns a new way to the server.
func (t target) transport(std streams) (mcp.Transport, error) {
	if t.stdio == "" {
		u, err := url.Parse(t.url)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("SERVER %q is no http or https URL; for a command use --stdio 'COMMAND ARGS'", t.url)
		}
		return session.HTTPTransport(t.url, &http.Client{}), nil
	}
	words, err := splitCommand(t.stdio)
	if err != nil {
		return nil, fmt.Errorf("--stdio %q: %w", t.stdio, err)
	}
	if _, err := exec.LookPath(words[0]); err != nil {
		return nil, commandError(words[0], err)
	}
	cmd := exec.CommandContext(context.Background(), words[0], words[1:]...) // the session ends it
	cmd.Stderr = std.err
	return session.CommandTransport(cmd), nil
}

// commandError says what to do about a command that cannot be run.
func commandError(name string, err error) error {
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("there is no command %q; install it, or give its path", name)
	}
	return fmt.Errorf("cannot run %q: %w", name, err)
}

// How a request that may be repeated is repeated when the connection is lost.
const (
	reconnects     = 5
	reconnectDelay = 500 * time.Millisecond // doubles each time
	pollTimeout    = 30 * time.Second       // for a request that is answered at once
)

// remote is a server with a session to it, which is replaced when it is lost. It may be used
// by several goroutines.
type remote struct {
	target target
	std    streams
	show   *display
	peer   peer

	mu      sync.Mutex
	session *session.Session // nil while there is none
	server  json.RawMessage  // the initialize result
}

// peer is the client's side towards a server. The zero value ignores and refuses everything.
type peer struct {
	capabilities json.RawMessage
	// level is the least level of the log messages that are wanted, "" for none in particular.
	level string
	// notified is called with the server's notifications, in order; it must not block.
	notified func(method string, params json.RawMessage)
	// requested takes the server's requests, in order with its notifications; it must not block.
	requested func(ctx context.Context, method string, params json.RawMessage) session.Answer
}

// dial connects to a server.
func dial(ctx context.Context, to target, std streams, show *display, as peer) (*remote, error) {
	r := &remote{target: to, std: std, show: show, peer: as}
	if _, err := r.connected(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// connected returns the session, a new one if there is none.
func (r *remote) connected(ctx context.Context) (*session.Session, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.session != nil {
		return r.session, nil
	}
	transport, err := r.target.transport(r.std)
	if err != nil {
		return nil, err
	}
	s, err := session.Connect(ctx, transport, &session.Options{
		Capabilities:   r.peer.capabilities,
		OnNotification: r.peer.notified,
		OnRequest:      r.peer.requested,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w; is an MCP server running there?", r.target, err)
	}
	r.session, r.server = s, s.Server()
	if r.peer.level != "" && protocol.Get(protocol.Get(r.server, "capabilities"), "logging") != nil {
		// Many servers say nothing before they are told. One that refuses just says nothing.
		_, _ = s.Call(ctx, protocol.MethodSetLevel, protocol.Marshal(map[string]string{"level": r.peer.level}))
	}
	return s, nil
}

// drop gives a session up, unless it was replaced already.
func (r *remote) drop(s *session.Session) {
	r.mu.Lock()
	current := r.session == s
	if current {
		r.session = nil
	}
	r.mu.Unlock()
	if current {
		s.Close()
	}
}

// close ends the session.
func (r *remote) close() {
	r.mu.Lock()
	s := r.session
	r.mu.Unlock()
	if s != nil {
		r.drop(s)
	}
}

// initialized is the server's answer to initialize.
func (r *remote) initialized() json.RawMessage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.server
}

// name is what the server calls itself.
func (r *remote) name() string {
	var server struct {
		ServerInfo struct{ Name, Title string }
	}
	_ = json.Unmarshal(r.initialized(), &server) // without a name it has none
	return cmp.Or(server.ServerInfo.Title, server.ServerInfo.Name)
}

// declares reports whether the server declared the capability with this path.
func (r *remote) declares(path ...string) bool {
	value := protocol.Get(r.initialized(), "capabilities")
	for _, key := range path {
		if value = protocol.Get(value, key); value == nil {
			return false
		}
	}
	return true
}

// call sends a request once. An error that the server answered with is a *protocol.Error.
func (r *remote) call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	s, err := r.connected(ctx)
	if err != nil {
		return nil, err
	}
	return s.Call(ctx, method, params)
}

// ask sends a request that may be repeated, over new sessions if need be. It waits up to
// timeout for each answer, 0 for as long as it takes.
func (r *remote) ask(ctx context.Context, timeout time.Duration, method string, params json.RawMessage) (json.RawMessage, error) {
	delay := reconnectDelay
	for attempt := 0; ; {
		result, err := r.askOnce(ctx, timeout, attempt > 0, method, params)
		var answer *protocol.Error
		switch {
		case err == nil || errors.As(err, &answer) || ctx.Err() != nil:
			return result, err
		case errors.Is(err, session.ErrClosed):
			continue // the session was replaced meanwhile
		case attempt == reconnects:
			return nil, fmt.Errorf("the connection to %s is lost: %w", r.target, err)
		}
		attempt++
		r.show.line("connection lost (%s); trying again in %v (%d of %d)", oneLine(err.Error()), delay, attempt, reconnects)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(delay):
		}
		delay *= 2
	}
}

// askOnce sends a request and gives the session up if it is no good any more. One that goes
// on is kept at first: it carries other requests, and questions of the server.
func (r *remote) askOnce(caller context.Context, timeout time.Duration, impatient bool, method string, params json.RawMessage) (json.RawMessage, error) {
	ctx := caller
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(caller, timeout)
		defer cancel()
	}
	s, err := r.connected(ctx)
	if err != nil {
		return nil, err
	}
	result, err := s.Call(ctx, method, params)
	if err != nil && caller.Err() == nil && !errors.As(err, new(*protocol.Error)) &&
		(impatient || s.Err() != nil || errors.Is(err, session.ErrLost)) {
		r.drop(s)
	}
	return result, err
}
