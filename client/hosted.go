package client

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// run has the SDK client's handler do the work of a hosted task: it sees a plain request of
// the server's.
func (c *conn) run(ctx context.Context, job *engine.Job) (task.Outcome, error) {
	answer := make(chan *jsonrpc.Response, 1)
	h := &hosted{answer: answer, line: job.Line, token: string(protocol.Get(protocol.Get(job.Request.Params, "_meta"), "progressToken"))}
	c.mu.Lock()
	c.lastID++
	id, err := jsonrpc.MakeID(idPrefix + "run-" + strconv.Itoa(c.lastID))
	c.hosted[id] = h
	c.mu.Unlock()
	if err != nil {
		return task.Outcome{}, err
	}
	params := job.Request.Params
	// REL-4: what the handler sends in turn is the task's, too.
	if marked, err := protocol.SetMeta(params, protocol.MetaRelatedTask, protocol.RelatedTask(job.Ref.ID)); err == nil {
		params = marked
	}
	if !c.inject(ctx, &jsonrpc.Request{ID: id, Method: job.Request.Method, Params: params}) {
		c.mu.Lock()
		delete(c.hosted, id)
		c.mu.Unlock()
		return task.Outcome{}, c.gone(ctx)
	}
	select {
	case resp := <-answer:
		if resp.Error != nil {
			return task.Outcome{Error: errorObject(resp.Error)}, nil //nolint:nilerr // it is the outcome
		}
		return task.Outcome{Result: resp.Result}, nil
	case <-c.ended:
		return task.Outcome{}, c.gone(ctx)
	case <-c.leaving:
		c.giveUp(ctx, id, h, ErrClosed)
		return task.Outcome{}, c.gone(ctx)
	case <-ctx.Done(): // CAN-2
		c.giveUp(ctx, id, h, context.Cause(ctx))
		return task.Outcome{}, ctx.Err()
	}
}

// giveUp cancels the handler's context. Until the handler returns, nothing that it says is
// passed on (PROG-1).
func (c *conn) giveUp(ctx context.Context, id jsonrpc.ID, h *hosted, why error) {
	c.mu.Lock()
	h.over = true
	c.mu.Unlock()
	cancelled := protocol.Marshal(map[string]any{"requestId": id.Raw(), "reason": why.Error()})
	c.inject(context.WithoutCancel(ctx), &jsonrpc.Request{Method: protocol.MethodCancelled, Params: cancelled})
}

func (c *conn) gone(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return protocol.Errorf(protocol.CodeInternalError, "The client's session ended before it answered")
}

// hosted is a hosted task's request at the SDK client's handler.
type hosted struct {
	answer chan<- *jsonrpc.Response
	line   engine.Line
	token  string // its progress token, as JSON; "" if there is none
	over   bool   // given up
}

// inject puts a message before its handler as if the server had sent it.
func (c *conn) inject(ctx context.Context, msg *jsonrpc.Request) bool {
	if c.handle(msg) {
		return true
	}
	select {
	case c.injected <- msg:
		return true
	case <-c.ended:
	case <-ctx.Done():
	}
	return false
}

// outOfHosted takes what the handler of a hosted task sends, and reports whether it was that.
func (c *conn) outOfHosted(msg jsonrpc.Message) bool {
	switch m := msg.(type) {
	case *jsonrpc.Response:
		c.mu.Lock()
		defer c.mu.Unlock()
		if h := c.hosted[m.ID]; h != nil {
			h.answer <- m
			delete(c.hosted, m.ID)
			return true
		}
		return c.isOurs(m.ID) // of a run that was given up
	case *jsonrpc.Request:
		if m.Method != protocol.MethodProgress {
			return false
		}
		line, ours := c.reporting(string(protocol.Get(m.Params, "progressToken")))
		if line != nil {
			line.Notify(m.Method, m.Params) // before the answer, which ends the task
		}
		return ours
	}
	return false
}

// reporting returns the line of the hosted task that has a progress token, nil if it was
// given up. ours is whether there is one.
func (c *conn) reporting(token string) (line engine.Line, ours bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.hosted {
		switch {
		case h.token == "" || h.token != token:
		case h.over:
			ours = true
		default:
			return h.line, true
		}
	}
	return nil, ours
}

func errorObject(err error) json.RawMessage {
	wire := &protocol.Error{Code: protocol.CodeInternalError, Message: err.Error()}
	if as, ok := err.(*jsonrpc.Error); ok { //nolint:errorlint // what is wrapped is the SDK's own
		wire = &protocol.Error{Code: as.Code, Message: as.Message, Data: as.Data}
	}
	return wire.JSON()
}
