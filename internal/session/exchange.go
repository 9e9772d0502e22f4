package session

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/protocol"
)

// exchange is a call on its way over HTTP. The context that the SDK was given for it is that
// of the whole exchange, stream included. It is cancelled when the exchange is given up, not
// when it is over: the SDK still drains the body then, so that the connection can be used
// again.
type exchange struct {
	abandon context.CancelFunc
	release func()        // ends the watch for a reason to give up
	reached atomic.Bool   // the server has begun to answer
	over    chan struct{} // closed when the call has its response
}

type exchangeKey struct{}

// call sends a call in the background.
func (c *httpConn) call(ctx context.Context, req *jsonrpc.Request) error {
	e := &exchange{over: make(chan struct{})}
	var sending context.Context
	sending, e.abandon = context.WithCancel(context.WithValue(context.WithoutCancel(ctx), exchangeKey{}, e))
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := cmp.Or(ctx.Err(), c.ctx.Err()); err != nil { // closed: nothing may be added to work any more
		e.abandon()
		return err
	}
	withCaller := context.AfterFunc(ctx, func() { e.linger(c.ctx) })
	withConnection := context.AfterFunc(c.ctx, e.abandon)
	e.release = func() {
		withCaller()
		withConnection()
	}
	c.calls[req.ID] = e
	c.work.Go(func() {
		err := c.Connection.Write(sending, req)
		if err == nil {
			return
		}
		e.abandon()
		c.finish(req.ID)
		if ctx.Err() == nil {
			c.deliver(&jsonrpc.Response{ID: req.ID, Error: c.answered(err)})
		}
	})
	return nil
}

// linger gives up the exchange a while after its caller has gone: a call that is withdrawn is
// still to be seen to stop, and what its server asks to be refused.
func (e *exchange) linger(connection context.Context) {
	timer := time.NewTimer(withdrawGrace)
	defer timer.Stop()
	select {
	case <-timer.C:
		e.abandon()
	case <-e.over:
	case <-connection.Done():
	}
}

// finish forgets a call that has its response.
func (c *httpConn) finish(id jsonrpc.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.calls[id]; e != nil {
		e.release()
		close(e.over)
		delete(c.calls, id)
	}
}

// answered returns the JSON-RPC error that an HTTP error response had as its body, else what
// is to be said of err. The SDK wraps the former, and uses the same type for its own -32005,
// "rejected by transport".
func (c *httpConn) answered(err error) error {
	const rejected = -32005
	err = c.explain(err)
	var wire *jsonrpc.Error
	if errors.Is(err, ErrLost) || errors.Is(err, ErrDenied) || !errors.As(err, &wire) || wire.Code == rejected {
		return err
	}
	return wire
}

// maxComplaint bounds what is read of an HTTP error response, in bytes.
const maxComplaint = 1 << 10

// unrefused makes the plain refusal of a message a JSON-RPC error, or for one that has no
// answer an acceptance: the SDK's transport would end the connection, while all that was
// wrong is this message. An SDK server answers 400 to a method that it does not know.
func unrefused(req *http.Request, resp *http.Response) *http.Response {
	switch {
	case req.Method != http.MethodPost, req.GetBody == nil, resp.StatusCode < 400, resp.StatusCode >= 500:
		return resp
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden,
		resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusTooManyRequests:
		return resp // about more than this message
	case strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json"):
		return resp // as far as it is a JSON-RPC error, the SDK can tell
	}
	body, err := req.GetBody()
	if err != nil {
		return resp
	}
	defer body.Close()
	sent, err := io.ReadAll(body)
	if err != nil {
		return resp
	}
	m, err := protocol.ParseMessage(sent)
	if err != nil || m.Method == protocol.MethodInitialize {
		return resp
	}
	complaint, _ := io.ReadAll(io.LimitReader(resp.Body, maxComplaint))
	resp.Body.Close()
	made := &http.Response{Proto: resp.Proto, ProtoMajor: resp.ProtoMajor, ProtoMinor: resp.ProtoMinor, Request: req, Header: http.Header{}}
	if !m.IsCall() {
		made.StatusCode, made.Body = http.StatusAccepted, http.NoBody
		return made
	}
	answer := protocol.AppendError(nil, m.ID, protocol.Errorf(protocol.CodeInvalidRequest,
		"the server answered %s: %s", resp.Status, strings.ToValidUTF8(strings.TrimSpace(string(complaint)), "")).JSON())
	made.StatusCode = http.StatusOK
	made.Header.Set("Content-Type", "application/json")
	made.Body, made.ContentLength = io.NopCloser(bytes.NewReader(answer)), int64(len(answer))
	return made
}

// maxRefusal bounds a JSON-RPC error that comes with 429, in bytes.
const maxRefusal = 64 << 10

// unlimited makes the answer to a call that came with 429 (Too Many Requests) an answer like any
// other: the SDK's transport would not read it.
func unlimited(resp *http.Response) *http.Response {
	if resp.StatusCode != http.StatusTooManyRequests || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		return resp
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	rest := resp.Body
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), rest), rest}
	if err != nil {
		return resp
	}
	if m, err := protocol.ParseMessage(body); err == nil && m.Error != nil && len(m.ID) > 0 && string(m.ID) != "null" {
		resp.StatusCode, resp.Status = http.StatusOK, "200 OK"
	}
	return resp
}

// Passing reports whether err, of a Write, is about the one message: the connection goes on.
func Passing(err error) bool {
	const rejected = -32005
	return errors.Is(err, &jsonrpc.Error{Code: rejected}) && !errors.Is(err, ErrLost)
}
