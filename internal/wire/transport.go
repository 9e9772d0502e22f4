package wire

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// TransportOptions configures Transport.
type TransportOptions struct {
	// Principal is the one requestor at the other end (requirements C.10).
	Principal task.Principal
}

// Transport returns a server's transport whose connection answers task messages itself and
// leaves the rest to the server.
func Transport(inner mcp.Transport, r *receiver.Receiver, opts TransportOptions) mcp.Transport {
	return &transport{inner: inner, receiver: r, opts: opts}
}

type transport struct {
	inner    mcp.Transport
	receiver *receiver.Receiver
	opts     TransportOptions
}

func (t *transport) Connect(ctx context.Context) (mcp.Connection, error) {
	inner, err := t.inner.Connect(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{
		Connection: inner,
		receiver:   t.receiver,
		from: receiver.Requestor{
			Caller:     engine.Caller{Principal: t.opts.Principal},
			Identified: true,
		},
		rewrites: map[jsonrpc.ID]func(json.RawMessage) json.RawMessage{},
		waits:    newWaits(),
	}
	c.ctx, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	return c, nil
}

// ownScope is that of all calls on a connection with waits of its own.
const ownScope = "connection"

// conn is one session. It lacks the SDK's unexported sessionUpdated, whose only use on a
// stdio connection is to refuse batches.
type conn struct {
	mcp.Connection
	receiver *receiver.Receiver
	waits    *waits

	ctx     context.Context // of the calls being answered here
	stop    context.CancelFunc
	answers sync.WaitGroup

	mu       sync.Mutex
	from     receiver.Requestor
	tasks    bool // tasks were declared
	rewrites map[jsonrpc.ID]func(json.RawMessage) json.RawMessage
}

// Read returns the next message that is for the server.
func (c *conn) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		msg, err := c.Connection.Read(ctx)
		if err != nil {
			c.stop()
			return nil, err
		}
		req, ok := msg.(*jsonrpc.Request)
		if !ok || !c.take(req) {
			return msg, nil
		}
	}
}

// take reports whether a request is dealt with here.
func (c *conn) take(req *jsonrpc.Request) bool {
	switch {
	case !req.IsCall():
		return req.Method == protocol.MethodCancelled && c.waits.cancel(ownScope, protocol.Get(req.Params, "requestId"))
	case req.Method == protocol.MethodInitialize:
		params := req.Params
		c.onResult(req.ID, func(result json.RawMessage) json.RawMessage {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.from.Initialize = params
			result, c.tasks = c.receiver.Negotiate(&c.from, result)
			return result
		})
		return false
	}
	c.mu.Lock()
	tasks, from := c.tasks, c.from
	c.mu.Unlock()
	if !tasks {
		return false
	}
	if req.Method == protocol.MethodToolsList {
		c.onResult(req.ID, c.receiver.DeclareTools)
		return false
	}
	m := protocol.NewCall(protocol.Marshal(req.ID.Raw()), req.Method, req.Params)
	if !c.receiver.Takes(m) {
		return false
	}
	ctx, end := c.waits.begin(c.ctx, ownScope, m.ID)
	c.answers.Go(func() {
		defer end()
		a, err := c.receiver.Handle(ctx, &from, m)
		if err != nil {
			return // the call was cancelled, or the connection is closed
		}
		_ = c.Connection.Write(c.ctx, response(req.ID, a)) // fails only when nobody reads any more
	})
	return true
}

func (c *conn) onResult(id jsonrpc.ID, change func(json.RawMessage) json.RawMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rewrites[id] = change
}

// Write sends a message of the server, with the results edited that declare tasks.
func (c *conn) Write(ctx context.Context, msg jsonrpc.Message) error {
	if resp, ok := msg.(*jsonrpc.Response); ok {
		c.mu.Lock()
		change := c.rewrites[resp.ID]
		delete(c.rewrites, resp.ID)
		c.mu.Unlock()
		if change != nil && resp.Error == nil {
			edited := *resp
			edited.Result = change(resp.Result)
			msg = &edited
		}
	}
	return c.Connection.Write(ctx, msg)
}

// Close ends the calls being answered here, and the connection.
func (c *conn) Close() error {
	c.stop()
	err := c.Connection.Close()
	c.answers.Wait()
	return err
}

func response(id jsonrpc.ID, a receiver.Answer) *jsonrpc.Response {
	if a.Error == nil {
		return &jsonrpc.Response{ID: id, Result: a.Result}
	}
	wire := &jsonrpc.Error{}
	if err := json.Unmarshal(a.Error, wire); err != nil {
		return &jsonrpc.Response{ID: id, Error: errors.New("malformed error object")}
	}
	return &jsonrpc.Response{ID: id, Error: wire}
}
