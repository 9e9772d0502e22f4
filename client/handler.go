package client

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/protocol"
)

// Handler answers a request of the server, with params and result as they are on the wire.
// ctx ends with the session, and when the server cancels the request or the hosted task that
// it belongs to; then there is no answer. An error that is no *jsonrpc.Error is one with code
// -32603. Handlers run concurrently.
type Handler func(ctx context.Context, params json.RawMessage) (json.RawMessage, error)

// handle takes a message to a Handler, and reports whether there was one.
func (c *conn) handle(req *jsonrpc.Request) bool {
	if req.Method == protocol.MethodCancelled {
		return c.withdraw(req.Params)
	}
	handler := c.handlers[req.Method]
	if handler == nil || !req.IsCall() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil { // nothing may be added to work any more
		return true
	}
	ctx, cancel := context.WithCancel(c.ctx)
	c.handling[req.ID] = cancel
	c.work.Go(func() {
		result, err := handler(ctx, req.Params)
		gone := ctx.Err() != nil
		c.mu.Lock()
		delete(c.handling, req.ID)
		if gone {
			delete(c.related, req.ID)
		}
		c.mu.Unlock()
		cancel()
		if gone {
			return
		}
		resp := &jsonrpc.Response{ID: req.ID, Result: result}
		if err != nil {
			wire, ok := errors.AsType[*jsonrpc.Error](err)
			if !ok {
				wire = &jsonrpc.Error{Code: protocol.CodeInternalError, Message: err.Error()}
			}
			resp.Result, resp.Error = nil, wire
		}
		_ = c.Write(c.ctx, resp) // it fails when the connection has ended
	})
	return true
}

// withdraw ends what a Handler is at, and reports whether it was that.
func (c *conn) withdraw(params json.RawMessage) bool {
	id := requestID(params)
	c.mu.Lock()
	defer c.mu.Unlock()
	cancel := c.handling[id]
	if cancel != nil {
		cancel()
	}
	return cancel != nil
}

// requestID returns which request a notifications/cancelled is about, the zero ID for none.
func requestID(params json.RawMessage) jsonrpc.ID {
	var raw any
	if json.Unmarshal(protocol.Get(params, "requestId"), &raw) != nil {
		return jsonrpc.ID{}
	}
	id, _ := jsonrpc.MakeID(raw) // the zero ID
	return id
}
