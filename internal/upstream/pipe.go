package upstream

import (
	"context"
	"encoding/json"
	"io"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// pipe is the server's end of a session that carries one request. Messages stay values.
type pipe struct {
	in      chan jsonrpc.Message
	method  string // of the request
	line    engine.Line
	ended   func(task.Outcome, error) // called once, with what the request was answered with
	unwatch func() bool               // stops watching the task's context
	over    sync.Once

	mu    sync.Mutex
	asked map[jsonrpc.ID]func() // withdraws what the server asks and still waits for

	once   sync.Once
	closed chan struct{}
}

// Connect implements mcp.Transport.
func (p *pipe) Connect(context.Context) (mcp.Connection, error) { return p, nil }

// SessionID implements mcp.Connection.
func (p *pipe) SessionID() string { return "" }

// Read implements mcp.Connection.
func (p *pipe) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case msg := <-p.in:
		return msg, nil
	case <-p.closed:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write implements mcp.Connection.
func (p *pipe) Write(_ context.Context, msg jsonrpc.Message) error {
	switch msg := msg.(type) {
	case *jsonrpc.Response:
		outcome, err := answered(p.method, msg)
		go p.end(outcome, err) // what follows takes its time, and the SDK waits for this
	case *jsonrpc.Request:
		switch {
		case msg.IsCall():
			return p.ask(msg)
		case msg.Method == protocol.MethodCancelled:
			p.withdraw(msg.Params)
		default:
			notify(p.line, msg.Method, msg.Params)
		}
	}
	return nil
}

// ask puts a request of the server to the task's requestor. A goroutine that waits for the
// answer would be one more for each task that waits.
func (p *pipe) ask(req *jsonrpc.Request) error {
	if req.Method == protocol.MethodPing {
		return p.respond(&jsonrpc.Response{ID: req.ID, Result: json.RawMessage("{}")})
	}
	p.mu.Lock() // so that the answer does not come before it is known how to withdraw
	defer p.mu.Unlock()
	withdraw, err := p.line.Ask(req.Method, req.Params, func(answer task.Outcome) {
		resp := &jsonrpc.Response{ID: req.ID, Result: answer.Result}
		if answer.Error != nil {
			resp.Error = wireError(errorOf(answer.Error))
		}
		go func() { // the SDK may be about to ask for more, and hold up its own reading
			p.forget(req.ID)
			_ = p.respond(resp) // fails when nobody waits any more
		}()
	})
	if err != nil {
		return p.respond(&jsonrpc.Response{ID: req.ID, Error: wireError(refused(err))})
	}
	if p.asked == nil {
		p.asked = map[jsonrpc.ID]func(){}
	}
	p.asked[req.ID] = withdraw
	return nil
}

func wireError(err *protocol.Error) *jsonrpc.Error {
	return &jsonrpc.Error{Code: err.Code, Message: err.Message, Data: err.Data}
}

func (p *pipe) respond(resp *jsonrpc.Response) error {
	select {
	case p.in <- resp:
		return nil
	case <-p.closed:
		return mcp.ErrConnectionClosed
	}
}

func (p *pipe) forget(id jsonrpc.ID) (withdraw func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	withdraw = p.asked[id]
	delete(p.asked, id)
	return withdraw
}

// withdraw takes back what the server no longer waits for.
func (p *pipe) withdraw(params json.RawMessage) {
	var id any
	if json.Unmarshal(protocol.Get(params, "requestId"), &id) != nil {
		return
	}
	named, err := jsonrpc.MakeID(id)
	if err != nil {
		return
	}
	if withdraw := p.forget(named); withdraw != nil {
		withdraw()
	}
}

// end ends the session, which cancels the handler's context, and tells how the request ended.
// A handler that ignores its context is left to end by itself.
func (p *pipe) end(outcome task.Outcome, err error) {
	p.over.Do(func() {
		p.unwatch()
		p.once.Do(func() { close(p.closed) })
		p.ended(outcome, err)
	})
}

// Close implements mcp.Connection: the server ends the session.
func (p *pipe) Close() error {
	p.once.Do(func() {
		close(p.closed)
		go p.end(task.Outcome{}, io.ErrUnexpectedEOF)
	})
	return nil
}
