package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"

	"github.com/coatcheck/coatcheck/internal/session"
	"github.com/coatcheck/coatcheck/protocol"
)

// tap is the SDK client's transport, whose connection also carries what the SDK has no words
// for.
type tap struct {
	inner mcp.Transport
	made  *conn // by Connect
	// onConnect, if set, is called by Connect.
	onConnect func(*conn)
	heard     func(method string, params json.RawMessage)
	handlers  map[string]Handler
}

// newTap returns a tap on a transport. The SDK's own of Streamable HTTP does for an
// mcp.Client alone what is needed here, too: internal/session's adds it.
func newTap(inner mcp.Transport, heard func(string, json.RawMessage), handlers map[string]Handler) *tap {
	if t, ok := inner.(*mcp.StreamableClientTransport); ok {
		inner = &session.HTTP{SDK: t}
	}
	return &tap{inner: inner, heard: heard, handlers: handlers}
}

func (t *tap) Connect(ctx context.Context) (mcp.Connection, error) {
	inner, err := t.inner.Connect(ctx)
	if err != nil {
		return nil, err
	}
	t.made = &conn{
		Connection: inner,
		heard:      t.heard,
		handlers:   t.handlers,
		pending:    map[jsonrpc.ID]chan<- *jsonrpc.Response{},
		related:    map[jsonrpc.ID]string{},
		results:    map[string]int{},
		hosted:     map[jsonrpc.ID]*hosted{},
		handling:   map[jsonrpc.ID]context.CancelFunc{},
		arrived:    make(chan jsonrpc.Message),
		injected:   make(chan jsonrpc.Message),
		leaving:    make(chan struct{}),
		ended:      make(chan struct{}),
	}
	t.made.ctx, t.made.stop = context.WithCancel(context.WithoutCancel(ctx))
	if t.onConnect != nil {
		t.onConnect(t.made)
	}
	go t.made.receive()
	return t.made, nil
}

// conn is one session's connection.
type conn struct {
	mcp.Connection
	heard    func(method string, params json.RawMessage) // of a notification; must not block
	handlers map[string]Handler

	ctx  context.Context // of the connection
	stop context.CancelFunc
	work sync.WaitGroup // of the handlers

	notices sync.WaitGroup // of what was given up

	mu         sync.Mutex
	closing    bool
	lastID     int
	pending    map[jsonrpc.ID]chan<- *jsonrpc.Response // our own calls
	related    map[jsonrpc.ID]string                   // the tasks that the server's open requests belong to
	questions  []*question                             // the server's open requests, each once
	results    map[string]int                          // how many tasks/result are open, by task
	hosted     map[jsonrpc.ID]*hosted                  // the requests of hosted tasks, at the SDK
	handling   map[jsonrpc.ID]context.CancelFunc       // the requests at Handlers
	initialize jsonrpc.ID                              // of the SDK's initialize request
	server     json.RawMessage                         // what that was answered with

	arrived  chan jsonrpc.Message // from the server, for the SDK
	injected chan jsonrpc.Message // from here, for the SDK
	leaving  chan struct{}        // closed when hosted tasks are to end here

	once  sync.Once
	cause error         // as the transport said it; set before ended is closed
	err   error         // ErrClosed with it
	ended chan struct{} // closed when nothing will be read any more
}

// receive reads what the server sends, until the connection ends.
func (c *conn) receive() {
	for {
		next, err := c.Connection.Read(context.Background())
		if err != nil {
			c.end(err)
			return
		}
		switch msg := next.(type) {
		case *jsonrpc.Response:
			if c.answered(msg) {
				continue
			}
		case *jsonrpc.Request:
			if msg = c.took(msg); msg == nil {
				continue
			}
			next = msg
		}
		select {
		case c.arrived <- next:
		case <-c.ended:
			return
		}
	}
}

// took takes a request or notification of the server, and returns what the SDK is to have of
// it: nil for nothing.
func (c *conn) took(msg *jsonrpc.Request) *jsonrpc.Request {
	switch {
	case msg.IsCall():
		if c.asked(msg) {
			return nil
		}
	default:
		c.heard(msg.Method, msg.Params)
		switch msg.Method {
		case protocol.MethodTasksStatus: // the SDK does not know it
			return nil
		case protocol.MethodCancelled:
			if msg = c.withdrawn(msg); msg == nil {
				return nil
			}
		}
	}
	if c.handle(msg) {
		return nil
	}
	return msg
}

// Read returns the next message that is for the SDK.
func (c *conn) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case msg := <-c.arrived:
		return msg, nil
	case msg := <-c.injected:
		return msg, nil
	case <-c.ended:
		return nil, c.cause
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close ends the connection, once the server was told what is not waited for any more.
func (c *conn) Close() error {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	told := make(chan struct{})
	go func() {
		defer close(told)
		c.notices.Wait()
	}()
	select {
	case <-told:
	case <-c.ended:
	case <-time.After(closeGrace):
	}
	err := c.Connection.Close()
	c.end(io.EOF)
	return err
}

func (c *conn) end(err error) {
	c.once.Do(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.cause, c.err = err, fmt.Errorf("%w: %w", ErrClosed, err)
		close(c.ended)
		c.stop()
	})
}

// answered reports whether a response was to a call of ours.
func (c *conn) answered(resp *jsonrpc.Response) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if resp.ID == c.initialize && resp.Error == nil {
		c.server = resp.Result
	}
	answer, ours := c.pending[resp.ID]
	delete(c.pending, resp.ID)
	if ours {
		answer <- resp
	}
	return ours || c.isOurs(resp.ID) // one that comes too late
}

const idPrefix = "coatcheck-"

func (c *conn) isOurs(id jsonrpc.ID) bool {
	s, ok := id.Raw().(string)
	return ok && len(s) > len(idPrefix) && s[:len(idPrefix)] == idPrefix
}

func relatedTask(params json.RawMessage) string {
	related := protocol.Get(protocol.Get(params, "_meta"), protocol.MetaRelatedTask)
	id, _ := protocol.Unquote(protocol.Get(related, "taskId"))
	return id
}

// Write sends a message of the SDK. What answers a task's request is marked as the task's
// (REL-1).
func (c *conn) Write(ctx context.Context, msg jsonrpc.Message) error {
	if c.outOfHosted(msg) {
		return nil
	}
	switch m := msg.(type) {
	case *jsonrpc.Request:
		if m.Method == protocol.MethodInitialize {
			c.mu.Lock()
			c.initialize = m.ID
			c.mu.Unlock()
		}
	case *jsonrpc.Response:
		var failed error
		for _, id := range c.reply(m.ID) {
			failed = errors.Join(failed, c.Connection.Write(ctx, c.marked(m, id)))
		}
		return failed
	}
	return c.Connection.Write(ctx, msg)
}

// marked returns a response as the answer to the request with this id.
func (c *conn) marked(resp *jsonrpc.Response, id jsonrpc.ID) *jsonrpc.Response {
	c.mu.Lock()
	task := c.related[id]
	delete(c.related, id)
	c.mu.Unlock()
	answer := *resp
	answer.ID = id
	if task != "" && resp.Error == nil {
		if marked, err := protocol.SetMeta(resp.Result, protocol.MetaRelatedTask, protocol.RelatedTask(task)); err == nil {
			answer.Result = marked
		}
	}
	return &answer
}

// call sends a request of ours and returns its result as it came. The error is a
// *jsonrpc.Error as the server sent it, ctx's, ErrClosed, or says that no answer came.
func (c *conn) call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	answer := make(chan *jsonrpc.Response, 1)
	c.mu.Lock()
	c.lastID++
	id, err := jsonrpc.MakeID(idPrefix + strconv.Itoa(c.lastID))
	c.pending[id] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.pending, id)
		c.mu.Unlock()
	}()
	if err != nil {
		return nil, err
	}
	if method == protocol.MethodTasksResult {
		task, _ := protocol.Unquote(protocol.Get(params, "taskId"))
		defer c.collecting(task)()
	}
	// The exchange, over HTTP its stream included, lasts as long as its context.
	exchange, abandon := context.WithCancel(context.WithoutCancel(ctx))
	failed := make(chan error, 1)
	trace.SpanFromContext(ctx).SetAttributes(attrRequestID.String(fmt.Sprint(id.Raw())))
	go func() {
		if err := c.Connection.Write(exchange, &jsonrpc.Request{ID: id, Method: method, Params: params}); err != nil {
			failed <- fmt.Errorf("sending %s: %w", method, err)
		}
	}()
	select {
	case resp := <-answer:
		_ = abandon // over HTTP the rest of the body is read, so that the connection can be used again
		return answerOf(resp)
	case err := <-failed:
		abandon()
		return nil, err
	case <-c.ended:
		abandon()
		select { // both may be ready
		case resp := <-answer:
			return answerOf(resp)
		default:
			return nil, c.err
		}
	case <-ctx.Done():
		abandon()
		c.cancelled(id, ctx.Err())
		return nil, ctx.Err()
	}
}

// transportError is why there is no answer, in the transport's words. What is in its chain is not the
// server's, even if it is a *jsonrpc.Error.
type transportError struct{ why string }

func (e *transportError) Error() string { return e.why }

func answerOf(resp *jsonrpc.Response) (json.RawMessage, error) {
	if _, wire := resp.Error.(*jsonrpc.Error); resp.Error != nil && !wire { //nolint:errorlint // see transportError
		return nil, &transportError{resp.Error.Error()}
	}
	return resp.Result, resp.Error
}

// closeGrace bounds how long Close waits for notifications that are on their way.
const closeGrace = time.Second

// cancelled tells the server that nobody waits for a call any more.
func (c *conn) cancelled(id jsonrpc.ID, reason error) {
	params := protocol.Marshal(map[string]any{"requestId": id.Raw(), "reason": reason.Error()})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return
	}
	c.notices.Go(func() {
		ctx, cancel := context.WithTimeout(c.ctx, noticeTimeout)
		defer cancel()
		_ = c.Connection.Write(ctx, &jsonrpc.Request{Method: protocol.MethodCancelled, Params: params}) // best effort
	})
}
