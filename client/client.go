package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"

	"github.com/coatcheck/coatcheck/internal/session"
	"github.com/coatcheck/coatcheck/protocol"
)

// noticeTimeout bounds the sending of a notification that nobody waits for.
const noticeTimeout = 5 * time.Second

// Options configures Connect. A nil *Options means all defaults.
type Options struct {
	// Ledger records the tasks that are running, so that a later process can find them with
	// Resume. Default: none.
	Ledger Ledger
	// Server names the server in the ledger. Default: the endpoint's URL, or else the name
	// that the server gives itself.
	Server string
	// MinPoll and MaxPoll bound the interval at which the server is asked about a task,
	// whatever it suggests (GET-2). Default 100 ms and 30 s.
	MinPoll, MaxPoll time.Duration
	// Poll is the interval where the server suggests none. Default 1 s.
	Poll time.Duration
	// Host, if set, runs what the server asks of this client as tasks.
	Host *Host
	// Handlers answer requests of the server, by method, in the place of the SDK client's own
	// handlers. Its options must declare the capability (mcp.ClientOptions.Capabilities).
	// Default: none.
	Handlers map[string]Handler
	// OnNotification is called with each notification of the server, in order and as it came,
	// before the SDK client's own handler. Nothing else is read as long as it runs.
	OnNotification func(method string, params json.RawMessage)
	// Logger is told of each task's life (AUD-3): its creation, re-attachment and end at
	// level info, changes of its status at level debug, polls that fail at level warn.
	// Default: discards.
	Logger *slog.Logger
	// TracerProvider makes a span for each request about calls and tasks. Those about a task
	// link to the span of the call that made it, also after Resume. The trace context goes to
	// the server in params._meta. Default: OpenTelemetry's global one, which makes none
	// unless the program sets it.
	TracerProvider trace.TracerProvider
}

func (o *Options) withDefaults() Options {
	var opts Options
	if o != nil {
		opts = *o
	}
	opts.MinPoll = cmp.Or(max(0, opts.MinPoll), 100*time.Millisecond)
	opts.MaxPoll = max(opts.MinPoll, cmp.Or(max(0, opts.MaxPoll), 30*time.Second))
	opts.Poll = min(max(cmp.Or(max(0, opts.Poll), time.Second), opts.MinPoll), opts.MaxPoll)
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return opts
}

// Session is a client's session with a server. Its methods may be called concurrently.
type Session struct {
	opts Options
	id   string // in this process, if it hosts
	sdk  *mcp.ClientSession
	conn *conn

	ctx  context.Context // of what goes on in the background
	stop context.CancelFunc
	work sync.WaitGroup

	tools   *tools
	tracing tracing

	mu    sync.Mutex
	tasks map[string][]*Task // that are followed here, by id
	calls map[string]*Task   // by progress token, of those whose id is not known yet too
}

// Connect connects an SDK client to a server and initializes a session. The session ends
// with Close, and with it all waiting; tasks go on at the server.
func Connect(ctx context.Context, c *mcp.Client, transport mcp.Transport, opts *Options) (*Session, error) {
	s := &Session{opts: opts.withDefaults(), tasks: map[string][]*Task{}, calls: map[string]*Task{}}
	s.tools = newTools(s)
	t := newTap(transport, s.heard, s.opts.Handlers)
	if opts := s.opts; opts.Host != nil {
		// The name is the host's principal, so it must be known before the server says its own.
		if opts.Server == "" {
			opts.Server = serverName(transport, nil)
		}
		if opts.Server == "" {
			return nil, errors.New("client: Options.Server must name the server that a host serves, as it has no URL")
		}
		s.opts.Server, s.id = opts.Server, rand.Text()
		t.inner = opts.Host.transport(t.inner, opts.Server, s.id)
		t.onConnect = func(c *conn) { opts.Host.runs.enter(s.id, c) }
	}
	// Later revisions have no tasks in their core.
	sdk, err := c.Connect(ctx, t, &mcp.ClientSessionOptions{ProtocolVersion: protocol.Version20251125})
	if err != nil {
		s.unhost()
		return nil, err
	}
	s.sdk, s.conn = sdk, t.made
	if s.opts.Server == "" {
		s.opts.Server = serverName(transport, s.conn.server)
	}
	s.tracing = newTracing(s.opts.TracerProvider, transport, sdk.InitializeResult().ProtocolVersion)
	s.ctx, s.stop = context.WithCancel(untraced(ctx))
	return s, nil
}

func (s *Session) unhost() {
	if s.opts.Host != nil {
		s.opts.Host.runs.leave(s.id)
	}
}

func serverName(transport mcp.Transport, initialized json.RawMessage) string {
	switch t := transport.(type) {
	case *mcp.StreamableClientTransport:
		return t.Endpoint
	case *session.HTTP:
		return t.URL
	}
	name, _ := protocol.Unquote(protocol.Get(protocol.Get(initialized, "serverInfo"), "name"))
	return name
}

// SDK returns the SDK's session, for everything that is not about tasks.
func (s *Session) SDK() *mcp.ClientSession { return s.sdk }

// Close ends the session. Whoever waits gets ErrClosed; the contexts of handlers that are at
// work on hosted tasks are cancelled, and Close waits for these to return.
func (s *Session) Close() error {
	s.stop()
	s.work.Wait() // the server is told what is not waited for any more
	s.unhost()
	err := s.sdk.Close()
	s.conn.end(errors.New("closed"))
	s.conn.work.Wait()
	return err
}

// declares reports whether the server declared a capability, such as tasks.cancel (CAP-3).
func (s *Session) declares(path ...string) bool {
	value := protocol.Get(s.conn.server, "capabilities")
	for _, key := range path {
		if value = protocol.Get(value, key); value == nil || string(value) == "null" {
			return false
		}
	}
	return true
}

// heard takes a notification of the server: a hint (NOT-2).
func (s *Session) heard(method string, params json.RawMessage) {
	if s.opts.OnNotification != nil {
		s.opts.OnNotification(method, params)
	}
	switch method {
	case protocol.MethodToolsChanged:
		s.tools.changed()
	case protocol.MethodTasksStatus:
		id, _ := protocol.Unquote(protocol.Get(params, "taskId"))
		for _, t := range s.following(id) {
			t.hint()
		}
	case protocol.MethodProgress:
		s.mu.Lock()
		t := s.calls[string(protocol.Get(params, "progressToken"))]
		s.mu.Unlock()
		if t != nil {
			t.progressed(params)
			return
		}
		for _, t := range s.following(relatedTask(params)) { // attached: the token is another's
			t.progressed(params)
		}
	}
}

func (s *Session) following(id string) []*Task {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Task(nil), s.tasks[id]...)
}

// enter has a task told of what the server says of it.
func (s *Session) enter(t *Task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.id != "" {
		s.tasks[t.id] = append(s.tasks[t.id], t)
	}
	if t.token != "" {
		s.calls[t.token] = t
	}
}

func (s *Session) leave(t *Task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.tasks[t.id]
	for i, other := range all {
		if other == t {
			all = append(all[:i:i], all[i+1:]...)
			break
		}
	}
	if len(all) == 0 {
		delete(s.tasks, t.id)
	} else {
		s.tasks[t.id] = all
	}
	if s.calls[t.token] == t {
		delete(s.calls, t.token)
	}
}

// ask sends a request that is answered at once. Where the server refuses it for a limit, it waits
// as long as that says, and asks again.
func (s *Session) ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	return s.patiently(ctx, func() (json.RawMessage, error) { return s.askOnce(ctx, method, params) })
}

// patiently sends a request until it is not refused for a limit. The error is that of the last
// time, ctx's, or ErrClosed.
func (s *Session) patiently(ctx context.Context, send func() (json.RawMessage, error)) (json.RawMessage, error) {
	for {
		raw, err := send()
		wait, limited := busy(err)
		if !limited {
			return raw, err
		}
		if err := s.pause(ctx, wait); err != nil {
			return nil, err
		}
	}
}

func (s *Session) askOnce(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return s.call(ctx, method, params)
}

// askTimeout bounds requests whose answer is due at once; a server that takes longer is asked
// again.
const askTimeout = 30 * time.Second

func isWire(err error) bool {
	_, ok := errors.AsType[*jsonrpc.Error](err)
	return ok
}
