package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
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

// remote is a server with a session to it, which is replaced when it is lost.
type remote struct {
	target  target
	std     streams
	show    *display
	notify  func(method string, params json.RawMessage)
	session *session.Session // nil while there is none
	server  json.RawMessage  // the initialize result
}

// dial connects to a server. notify, if not nil, is called with its notifications.
func dial(ctx context.Context, to target, std streams, show *display, notify func(string, json.RawMessage)) (*remote, error) {
	r := &remote{target: to, std: std, show: show, notify: notify}
	if err := r.connect(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *remote) connect(ctx context.Context) error {
	transport, err := r.target.transport(r.std)
	if err != nil {
		return err
	}
	s, err := session.Connect(ctx, transport, &session.Options{OnNotification: r.notify})
	if err != nil {
		return fmt.Errorf("cannot connect to %s: %w; is an MCP server running there?", r.target, err)
	}
	r.session, r.server = s, s.Server()
	return nil
}

// close ends the session.
func (r *remote) close() {
	if r.session != nil {
		r.session.Close()
		r.session = nil
	}
}

// declares reports whether the server declared the capability with this path.
func (r *remote) declares(path ...string) bool {
	value := protocol.Get(r.server, "capabilities")
	for _, key := range path {
		if value = protocol.Get(value, key); value == nil {
			return false
		}
	}
	return true
}

// call sends a request once. An error that the server answered with is a *protocol.Error.
func (r *remote) call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	return r.session.Call(ctx, method, params)
}

// ask sends a request that may be repeated, over new sessions if need be. It waits up to
// timeout for each answer, 0 for as long as it takes.
func (r *remote) ask(ctx context.Context, timeout time.Duration, method string, params json.RawMessage) (json.RawMessage, error) {
	delay := reconnectDelay
	for attempt := 0; ; attempt++ {
		result, err := r.askOnce(ctx, timeout, method, params)
		var answer *protocol.Error
		if err == nil || errors.As(err, &answer) || ctx.Err() != nil {
			return result, err
		}
		r.close()
		if attempt == reconnects {
			return nil, fmt.Errorf("the connection to %s is lost: %w", r.target, err)
		}
		r.show.line("connection lost (%s); trying again in %v (%d of %d)", oneLine(err.Error()), delay, attempt+1, reconnects)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(delay):
		}
		delay *= 2
	}
}

func (r *remote) askOnce(ctx context.Context, timeout time.Duration, method string, params json.RawMessage) (json.RawMessage, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	if r.session == nil {
		if err := r.connect(ctx); err != nil {
			return nil, err
		}
	}
	return r.session.Call(ctx, method, params)
}
