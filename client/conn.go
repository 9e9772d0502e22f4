package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"sync"

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
}

// newTap returns a tap on a transport. The SDK's own of Streamable HTTP does for an
// mcp.Client alone what is needed here, too: internal/session's adds it.
func newTap(inner mcp.Transport, heard func(string, json.RawMessage)) *tap {
	if t, ok := inner.(*mcp.StreamableClientTransport); ok {
		inner = &session.HTTP{SDK: t}
	}
	return &tap{inner: inner, heard: heard}
}

func (t *tap) Connect(ctx context.Context) (mcp.Connection, error) {
	inner, err := t.inner.Connect(ctx)
	if err != nil {
		return nil, err
	}
	t.made = &conn{
		Connection: inner,
		heard:      t.heard,
		pending:    map[jsonrpc.ID]chan<- *jsonrpc.Response{},
		related:    map[jsonrpc.ID]string{},
		hosted:     map[jsonrpc.ID]*hosted{},
		arrived:    make(chan jsonrpc.Message),
		injected:   make(chan jsonrpc.Message),
		ended:      make(chan struct{}),
	}
	if t.onConnect != nil {
		t.onConnect(t.made)
	}
	go t.made.receive()
	return t.made, nil
}

// conn is one session's connection.
type conn struct {
	mcp.Connection
	heard func(method string, params json.RawMessage) // of a notification; must not block

	mu         sync.Mutex
	lastID     int
	pending    map[jsonrpc.ID]chan<- *jsonrpc.Response // our own calls
	related    map[jsonrpc.ID]string                   // the tasks that the server's open requests belong to
	hosted     map[jsonrpc.ID]*hosted                  // the requests of hosted tasks, at the SDK
	initialize jsonrpc.ID                              // of the SDK's initialize request
	server     json.RawMessage                         // what that was answered with

	arrived  chan jsonrpc.Message // from the server, for the SDK
	injected chan jsonrpc.Message // from here, for the SDK

	once  sync.Once
	cause error         // as the transport said it; set before ended is closed
	err   error         // ErrClosed with it
	ended chan struct{} // closed when nothing will be read any more
}

// receive reads what the server sends, until the connection ends.
func (c *conn) receive() {
	for {
		msg, err := c.Connection.Read(context.Background())
		if err != nil {
			c.end(err)
			return
		}
		switch msg := msg.(type) {
		case *jsonrpc.Response:
			if c.answered(msg) {
				continue
			}
		case *jsonrpc.Request:
			if msg.IsCall() {
				c.asked(msg)
			} else {
				c.heard(msg.Method, msg.Params)
				if msg.Method == protocol.MethodTasksStatus { // the SDK does not know it
					continue
				}
			}
		}
		select {
		case c.arrived <- msg:
		case <-c.ended:
			return
		}
	}
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

// Close ends the connection.
func (c *conn) Close() error {
	err := c.Connection.Close()
	c.end(io.EOF)
	return err
}

func (c *conn) end(err error) {
	c.once.Do(func() {
		c.cause, c.err = err, fmt.Errorf("%w: %w", ErrClosed, err)
		close(c.ended)
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

// asked remembers which task a request of the server belongs to.
func (c *conn) asked(req *jsonrpc.Request) {
	if id := relatedTask(req.Params); id != "" {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.related[req.ID] = id
	}
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
		c.mu.Lock()
		id := c.related[m.ID]
		delete(c.related, m.ID)
		c.mu.Unlock()
		if id == "" || m.Error != nil {
			break
		}
		if marked, err := protocol.SetMeta(m.Result, protocol.MetaRelatedTask, protocol.RelatedTask(id)); err == nil {
			answer := *m
			answer.Result = marked
			msg = &answer
		}
	}
	return c.Connection.Write(ctx, msg)
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

// cancelled tells the server that nobody waits for a call any more.
func (c *conn) cancelled(id jsonrpc.ID, reason error) {
	params := protocol.Marshal(map[string]any{"requestId": id.Raw(), "reason": reason.Error()})
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), noticeTimeout)
		defer cancel()
		_ = c.Connection.Write(ctx, &jsonrpc.Request{Method: protocol.MethodCancelled, Params: params}) // best effort
	}()
}
