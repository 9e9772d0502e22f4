package session

import (
	"context"
	"encoding/json"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/protocol"
)

// withdrawGrace is how long a call that is not waited for any more is still looked after.
const withdrawGrace = time.Second

// firstRepeat is how long after the first notifications/cancelled it is sent again; each time
// after that it takes three times as long.
const firstRepeat = 50 * time.Millisecond

// withdraw sends notifications/cancelled. Each message has a POST of its own, so this one may
// overtake the call that it is about: a server that does not know the call yet ignores it, and
// then works for nobody. It is sent again until the call is answered, or the server was seen to
// have the call before the last one left.
func (c *httpConn) withdraw(ctx context.Context, cancelled *jsonrpc.Request) error {
	e := c.exchangeOf(cancelled.Params)
	known := e == nil || e.reached.Load()
	err := c.Connection.Write(ctx, cancelled)
	c.mu.Lock()
	defer c.mu.Unlock()
	if e != nil && !c.closing && (err != nil || !known) {
		c.withdrawals.Go(func() { c.insist(e, cancelled) })
	}
	if err != nil {
		return c.explain(err)
	}
	return nil
}

func (c *httpConn) insist(e *exchange, cancelled *jsonrpc.Request) {
	ctx, done := context.WithTimeout(c.ctx, withdrawGrace)
	defer done()
	for pause := firstRepeat; ; pause *= 3 {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-e.over:
			timer.Stop()
			return
		case <-c.failed:
			timer.Stop()
			return
		case <-ctx.Done():
			timer.Stop()
			return
		}
		known := e.reached.Load()
		if err := c.Connection.Write(ctx, cancelled); err == nil && known {
			return
		}
	}
}

// exchangeOf returns the exchange of the call that the parameters of notifications/cancelled
// name, nil if there is none.
func (c *httpConn) exchangeOf(params json.RawMessage) *exchange {
	id, ok := requestID(params)
	if !ok {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[id]
}

// requestID returns the request that notifications/cancelled is about.
func requestID(params json.RawMessage) (jsonrpc.ID, bool) {
	var id any
	if json.Unmarshal(protocol.Get(params, "requestId"), &id) != nil {
		return jsonrpc.ID{}, false
	}
	named, err := jsonrpc.MakeID(id)
	return named, err == nil
}
