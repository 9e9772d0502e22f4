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

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/internal/session"
)

// target says where a server is: at a URL, or behind a command.
type target struct {
	url   string
	stdio string                 // the command line as it was given
	token func() (string, error) // the bearer token for url, "" for none; nil if there is none
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
		transport := &session.HTTP{URL: t.url, Client: &http.Client{}, Listen: true}
		if t.token != nil {
			token, err := t.token()
			if err != nil {
				return nil, err
			}
			if token != "" {
				transport.Header = http.Header{"Authorization": {"Bearer " + token}}
			}
		}
		return transport, nil
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
)

// How often a server is asked about a task, whatever it suggests.
const (
	minPoll = 20 * time.Millisecond
	maxPoll = time.Minute
)

// remote is a server with a session to it, which is replaced when it is lost. It may be used
// by several goroutines.
type remote struct {
	target target
	std    streams
	show   *display
	peer   peer

	mu      sync.Mutex
	session *client.Session // nil while there is none
}

// peer is the client's side towards a server. The zero value ignores and refuses everything.
type peer struct {
	capabilities mcp.ClientCapabilities
	// level is the least level of the log messages that are wanted, "" for none in particular.
	level mcp.LoggingLevel
	// notified is called with the server's notifications, in order; it must not block.
	notified func(method string, params json.RawMessage)
	// handlers answer the server's requests.
	handlers map[string]client.Handler
	host     *client.Host // ends with the remote; nil for none
}

// dial connects to a server.
func dial(ctx context.Context, to target, std streams, show *display, as peer) (*remote, error) {
	r := &remote{target: to, std: std, show: show, peer: as}
	if _, err := r.connected(ctx); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// connected returns the session, a new one if there is none.
func (r *remote) connected(ctx context.Context) (*client.Session, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.session != nil {
		return r.session, nil
	}
	transport, err := r.target.transport(r.std)
	if err != nil {
		return nil, err
	}
	c := mcp.NewClient(&mcp.Implementation{Name: "coatcheck", Version: "0"}, &mcp.ClientOptions{Capabilities: &r.peer.capabilities})
	s, err := client.Connect(ctx, c, transport, &client.Options{
		Server: r.target.String(), MinPoll: minPoll, MaxPoll: maxPoll,
		Handlers: r.peer.handlers, OnNotification: r.peer.notified, Host: r.peer.host,
	})
	switch {
	case errors.Is(err, session.ErrDenied):
		return nil, fmt.Errorf("%s wants another token, or one at all: --token-file, or COATCHECK_TOKEN", r.target)
	case err != nil:
		return nil, fmt.Errorf("cannot connect to %s: %w; is an MCP server running there?", r.target, err)
	}
	r.session = s
	if server := s.SDK().InitializeResult().Capabilities; r.peer.level != "" && server != nil && server.Logging != nil {
		// Many servers say nothing before they are told. One that refuses just says nothing.
		_ = s.SDK().SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: r.peer.level})
	}
	return s, nil
}

// drop gives a session up, unless it was replaced already.
func (r *remote) drop(s *client.Session) {
	r.mu.Lock()
	current := r.session == s && s != nil
	if current {
		r.session = nil
	}
	r.mu.Unlock()
	if current {
		_ = s.Close()
	}
}

// close ends the session, and what is hosted.
func (r *remote) close() {
	if r.peer.host != nil {
		_ = r.peer.host.Close(context.Background()) // it has nothing to keep
	}
	r.drop(r.current())
}

// current returns the session, nil if there is none.
func (r *remote) current() *client.Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.session
}

// name is what the server calls itself.
func (r *remote) name() string {
	s := r.current()
	if s == nil {
		return ""
	}
	server := s.SDK().InitializeResult().ServerInfo
	if server == nil {
		return ""
	}
	return cmp.Or(server.Title, server.Name)
}

// request does something that may be repeated, over new sessions if need be.
func request[T any](ctx context.Context, r *remote, do func(context.Context, *client.Session) (T, error)) (T, error) {
	result, s, err := once(ctx, r, do)
	if err != nil && !isFinal(ctx, err) {
		return retry(ctx, r, s, err, do)
	}
	return result, err
}

// retry does something again that failed in a session. One that goes on is kept at first: it
// carries other requests, and questions of the server.
func retry[T any](ctx context.Context, r *remote, s *client.Session, failure error, do func(context.Context, *client.Session) (T, error)) (result T, err error) {
	delay := reconnectDelay
	for attempt := 1; ; attempt++ {
		if attempt > 1 || errors.Is(failure, client.ErrClosed) {
			r.drop(s)
		}
		if attempt > reconnects {
			return result, fmt.Errorf("the connection to %s is lost: %w", r.target, failure)
		}
		r.show.line("connection lost (%s); trying again in %v (%d of %d)", oneLine(failure.Error()), delay, attempt, reconnects)
		select {
		case <-ctx.Done():
			return result, ctx.Err()
		case <-time.After(delay):
		}
		delay *= 2
		if result, s, err = once(ctx, r, do); err == nil || isFinal(ctx, err) {
			return result, err
		}
		failure = err
	}
}

// connectError says that there is no session.
type connectError struct{ error }

func once[T any](ctx context.Context, r *remote, do func(context.Context, *client.Session) (T, error)) (result T, s *client.Session, err error) {
	if s, err = r.connected(ctx); err != nil {
		return result, nil, connectError{err}
	}
	result, err = do(ctx, s)
	return result, s, err
}

// isFinal reports whether it makes no sense to try again: the server has answered.
func isFinal(ctx context.Context, err error) bool {
	switch {
	case ctx.Err() != nil:
		return true
	case errors.As(err, new(connectError)):
		return false
	}
	_, answered := errors.AsType[*jsonrpc.Error](err)
	return answered || errors.Is(err, client.ErrUnsupported) || errors.Is(err, client.ErrProtocol)
}
