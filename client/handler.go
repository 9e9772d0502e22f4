package client

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/protocol"
)

// Handler takes a request of the server, with its params as they are on the wire. What the
// server sends is handed on in its order, notifications included, and nothing else is read as
// long as a Handler runs: it must not wait for the answer, which is left to what it returns.
// ctx ends with the session, and when the server cancels the request or the hosted task that
// it belongs to; then there is no answer. Requests of hosted tasks may come at the same time.
type Handler func(ctx context.Context, params json.RawMessage) Answer

// Answer waits for the answer to a request, in a goroutine of its own, and returns the result
// as it is to be on the wire. An error that is no *jsonrpc.Error is one with code -32603.
type Answer func() (json.RawMessage, error)

// Answered is an Answer that is known already.
func Answered(result json.RawMessage, err error) Answer {
	return func() (json.RawMessage, error) { return result, err }
}

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
	if c.ctx.Err() != nil { // nothing may be added to work any more
		c.mu.Unlock()
		return true
	}
	ctx, cancel := context.WithCancel(c.ctx)
	c.handling[req.ID] = cancel
	c.work.Add(1)
	c.mu.Unlock()
	answer := handler(ctx, req.Params)
	go func() {
		defer c.work.Done()
		defer cancel()
		result, err := answer()
		if c.handled(ctx, req.ID) {
			c.respond(req.ID, result, err)
		}
	}()
	return true
}

// handled is the end of a request at a Handler. It reports whether it is still to be answered.
func (c *conn) handled(ctx context.Context, id jsonrpc.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.handling, id)
	if ctx.Err() != nil {
		delete(c.related, id)
		return false
	}
	return true
}

func (c *conn) respond(id jsonrpc.ID, result json.RawMessage, err error) {
	resp := &jsonrpc.Response{ID: id, Result: result}
	if err != nil {
		wire, ok := errors.AsType[*jsonrpc.Error](err)
		if !ok {
			wire = &jsonrpc.Error{Code: protocol.CodeInternalError, Message: err.Error()}
		}
		resp.Result, resp.Error = nil, wire
	}
	_ = c.Write(c.ctx, resp) // it fails when the connection has ended
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
