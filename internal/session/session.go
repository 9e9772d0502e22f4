package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/protocol"
)

// ErrLost is returned when the server no longer knows the session: over HTTP, it answered
// 404. A new session may work.
var ErrLost = errors.New("the server no longer knows the session")

// ErrDenied is returned when the server refused a request for want of authorization: over
// HTTP, it answered 401 or 403.
var ErrDenied = errors.New("the server refused authorization")

// ErrClosed is returned by a session that was closed from this side.
var ErrClosed = errors.New("the session is closed")

// Options configures Connect. A nil *Options means all defaults.
type Options struct {
	// Capabilities are the client's. Default: none, {}.
	Capabilities json.RawMessage
	// ProtocolVersion is what is asked for; the server may answer with another.
	// Default protocol.Version20251125.
	ProtocolVersion string
	// OnNotification is called with each notification, in order, from the read loop: as long
	// as it runs, nothing else is read. Default: ignored.
	OnNotification func(method string, params json.RawMessage)
	// OnRequest takes the server's requests, in order with its notifications, from the read
	// loop: it must not wait for an answer, which is left to what it returns. ctx ends with the
	// session, or when the server cancels the request: then the answer is not sent.
	// Default: Refuse.
	OnRequest func(ctx context.Context, method string, params json.RawMessage) Answer
}

// Answer waits for the answer to a request of the server, in a goroutine of its own.
type Answer func() (json.RawMessage, *protocol.Error)

// Answered is an Answer that is known already.
func Answered(result json.RawMessage, err *protocol.Error) Answer {
	return func() (json.RawMessage, *protocol.Error) { return result, err }
}

// closeGrace bounds how long Close waits for notifications that are on their way.
const closeGrace = time.Second

// cancelTimeout bounds the sending of notifications/cancelled, which nobody waits for.
const cancelTimeout = 5 * time.Second

// Session is a client's session with a server.
type Session struct {
	opts   Options
	conn   mcp.Connection
	server json.RawMessage

	ctx    context.Context // of the session
	cancel context.CancelFunc
	work   sync.WaitGroup // the read loop and answers to the server's requests

	mu      sync.Mutex
	closing bool
	lastID  int64
	pending map[jsonrpc.ID]chan<- *jsonrpc.Response
	asked   map[jsonrpc.ID]context.CancelFunc // the server's requests that are being answered
	err     error                             // why done is closed
	done    chan struct{}                     // closed when nothing will be read any more
	closed  chan struct{}                     // closed when closing
	notices sync.WaitGroup
}

// Connect opens a connection and initializes a session on it. ctx bounds only that.
// An error that the server answered with is a *protocol.Error.
func Connect(ctx context.Context, t mcp.Transport, opts *Options) (*Session, error) {
	s := &Session{
		pending: map[jsonrpc.ID]chan<- *jsonrpc.Response{},
		asked:   map[jsonrpc.ID]context.CancelFunc{},
		done:    make(chan struct{}),
		closed:  make(chan struct{}),
	}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Capabilities == nil {
		s.opts.Capabilities = json.RawMessage(`{}`)
	}
	if s.opts.ProtocolVersion == "" {
		s.opts.ProtocolVersion = protocol.Version20251125
	}
	if s.opts.OnRequest == nil {
		s.opts.OnRequest = Refuse
	}
	var err error
	if s.conn, err = t.Connect(ctx); err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.work.Go(s.read)
	if err := s.initialize(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Refuse is the default of Options.OnRequest: ping is answered {}, everything else -32601.
func Refuse(_ context.Context, method string, _ json.RawMessage) Answer {
	if method == protocol.MethodPing {
		return Answered(json.RawMessage(`{}`), nil)
	}
	return Answered(nil, protocol.Errorf(protocol.CodeMethodNotFound, "method %q is not supported", method))
}

func (s *Session) initialize(ctx context.Context) error {
	result, err := s.Call(ctx, protocol.MethodInitialize, protocol.Marshal(struct {
		ProtocolVersion string            `json:"protocolVersion"`
		Capabilities    json.RawMessage   `json:"capabilities"`
		ClientInfo      map[string]string `json:"clientInfo"`
	}{s.opts.ProtocolVersion, s.opts.Capabilities, map[string]string{"name": "coatcheck", "version": "0"}}))
	if err != nil {
		return err
	}
	if version, _ := protocol.Unquote(protocol.Get(result, "protocolVersion")); version == "" {
		return errors.New("the answer to initialize has no protocolVersion")
	}
	s.server = result
	return s.Notify(ctx, protocol.MethodInitialized, nil)
}

// Server returns the result of initialize.
func (s *Session) Server() json.RawMessage { return s.server }

// Done is closed when the connection has ended.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err returns why the connection ended, nil while it has not: ErrClosed after Close,
// ErrLost, ErrDenied, a *ProcessError, or what the transport says.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Call sends a request and returns its result as it came. An error that the server answered
// with is a *protocol.Error; any other means that there was no answer. When ctx is cancelled
// the server is told so and ctx's error is returned at once.
func (s *Session) Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	answer := make(chan *jsonrpc.Response, 1)
	id, err := s.register(answer)
	if err != nil {
		return nil, err
	}
	defer s.forget(id)

	out := outgoing{request: &jsonrpc.Request{ID: id, Method: method, Params: params}, failed: make(chan error, 1)}
	// It is cancelled only when the exchange is given up: see exchange.
	out.ctx, out.abandon = context.WithCancel(context.WithoutCancel(ctx))
	go s.send(out)

	select {
	case resp := <-answer:
		return result(resp)
	case err := <-out.failed:
		out.abandon()
		return nil, err
	case <-ctx.Done():
		out.abandon()
		if method != protocol.MethodInitialize { // which must not be cancelled
			s.notifyCancelled(id, ctx.Err())
		}
		return nil, ctx.Err()
	case <-s.closed:
		out.abandon()
		return nil, ErrClosed
	case <-s.done:
		out.abandon()
		select { // both may be ready
		case resp := <-answer:
			return result(resp)
		default:
			return nil, s.Err()
		}
	}
}

type outgoing struct {
	request *jsonrpc.Request
	failed  chan error
	ctx     context.Context
	abandon context.CancelFunc
}

func (s *Session) send(out outgoing) {
	if err := s.conn.Write(out.ctx, out.request); err != nil {
		out.failed <- fmt.Errorf("sending %s: %w", out.request.Method, err)
	}
}

func result(resp *jsonrpc.Response) (json.RawMessage, error) {
	if resp.Error == nil {
		return resp.Result, nil
	}
	if wire, ok := resp.Error.(*jsonrpc.Error); ok { //nolint:errorlint // a wrapped one is the SDK's own
		return nil, &protocol.Error{Code: wire.Code, Message: wire.Message, Data: wire.Data}
	}
	return nil, resp.Error // made up by the transport: the stream ended without an answer
}

func (s *Session) register(answer chan<- *jsonrpc.Response) (jsonrpc.ID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return jsonrpc.ID{}, s.err
	}
	if s.closing {
		return jsonrpc.ID{}, ErrClosed
	}
	s.lastID++
	id, err := jsonrpc.MakeID(float64(s.lastID))
	if err != nil {
		return jsonrpc.ID{}, err
	}
	s.pending[id] = answer
	return id, nil
}

func (s *Session) forget(id jsonrpc.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, id)
}

func (s *Session) notifyCancelled(id jsonrpc.ID, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.notifyCancelledLocked(id, reason)
	}
}

func (s *Session) notifyCancelledLocked(id jsonrpc.ID, reason error) {
	s.notices.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, cancelTimeout)
		defer cancel()
		_ = s.Notify(ctx, protocol.MethodCancelled, protocol.Marshal(map[string]any{
			"requestId": id.Raw(),
			"reason":    reason.Error(),
		})) // best effort: the answer is not waited for any more either way
	})
}

// Notify sends a notification.
func (s *Session) Notify(ctx context.Context, method string, params json.RawMessage) error {
	if err := s.conn.Write(ctx, &jsonrpc.Request{Method: method, Params: params}); err != nil {
		return fmt.Errorf("sending %s: %w", method, err)
	}
	return nil
}

// read hands on what comes, until the connection ends.
func (s *Session) read() {
	for {
		msg, err := s.conn.Read(s.ctx)
		if err != nil {
			s.end(err)
			return
		}
		switch msg := msg.(type) {
		case *jsonrpc.Response:
			s.mu.Lock()
			answer := s.pending[msg.ID]
			delete(s.pending, msg.ID)
			s.mu.Unlock()
			if answer != nil {
				answer <- msg
			}
		case *jsonrpc.Request:
			switch {
			case msg.IsCall():
				ctx, finish := s.begin(msg.ID)
				answer := s.opts.OnRequest(ctx, msg.Method, msg.Params)
				s.work.Go(func() { s.answer(msg.ID, answer, finish) })
			case msg.Method == protocol.MethodCancelled && s.cancelled(msg.Params):
			case s.opts.OnNotification != nil:
				s.opts.OnNotification(msg.Method, msg.Params)
			}
		}
	}
}

// Asked reports whether a request of the server is not answered yet.
func (s *Session) Asked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked) > 0
}

// begin enters a request of the server. finish reports whether it still wants the answer.
func (s *Session) begin(id jsonrpc.ID) (ctx context.Context, finish func() bool) {
	ctx, cancel := context.WithCancel(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[id] = cancel
	return ctx, func() bool {
		s.mu.Lock()
		delete(s.asked, id)
		s.mu.Unlock()
		defer cancel()
		return ctx.Err() == nil
	}
}

// cancelled ends a request of the server that it cancels, and reports whether there was one.
func (s *Session) cancelled(params json.RawMessage) bool {
	named, ok := requestID(params)
	if !ok {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	cancel := s.asked[named]
	if cancel != nil {
		cancel()
	}
	return cancel != nil
}

func (s *Session) answer(id jsonrpc.ID, answer Answer, finish func() bool) {
	resp := &jsonrpc.Response{ID: id}
	var refused *protocol.Error
	if resp.Result, refused = answer(); refused != nil {
		resp.Error = &jsonrpc.Error{Code: refused.Code, Message: refused.Message, Data: refused.Data}
	}
	if finish() {
		_ = s.conn.Write(s.ctx, resp) // it fails when the connection has ended, which read reports
	}
}

func (s *Session) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		err = ErrClosed
	}
	s.err = err
	s.cancel()
	close(s.done)
}

// Close cancels the calls that wait, ends the session and returns when its connection, its
// process and its goroutines are gone.
func (s *Session) Close() error {
	s.mu.Lock()
	if !s.closing {
		s.closing = true
		close(s.closed)
		for id := range s.pending { // else an SDK server's answer to DELETE waits for its handlers
			s.notifyCancelledLocked(id, ErrClosed)
		}
	}
	s.mu.Unlock()
	sent := make(chan struct{})
	go func() {
		s.notices.Wait()
		close(sent)
	}()
	select {
	case <-sent:
	case <-s.done:
	case <-time.After(closeGrace):
	}
	err := s.conn.Close()
	s.cancel()
	s.work.Wait()
	<-sent // their context has ended
	return err
}
