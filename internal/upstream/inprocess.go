// Package upstream runs a task's request against the server that knows nothing of tasks: an
// SDK server in this process, a child process, or a URL.
package upstream

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// InProcess runs requests on an SDK server, each in a session of its own over a message
// pipe, without a handshake. It adds a middleware to the server that answers a panic in a
// handler with -32603 and logs it.
func InProcess(server *mcp.Server, log *slog.Logger) engine.Runner {
	server.AddReceivingMiddleware(recoverPanics(log))
	return &inProcess{server: server}
}

type inProcess struct{ server *mcp.Server }

func (u *inProcess) Run(ctx context.Context, job *engine.Job) (task.Outcome, error) {
	progress := newProgress(job)
	p := &pipe{
		in:       make(chan jsonrpc.Message, 8),
		closed:   make(chan struct{}),
		answered: make(chan *jsonrpc.Response, 1),
		notified: progress.notified,
	}
	session, err := u.server.Connect(ctx, p, &mcp.ServerSessionOptions{State: stateOf(job.Caller)})
	if err != nil {
		return task.Outcome{}, err
	}
	// Closing the pipe cancels the handler's context; a handler that ignores it is left to
	// end by itself.
	defer p.Close()
	p.in <- &jsonrpc.Request{ID: requestID, Method: job.Request.Method, Params: job.Request.Params, Extra: extraOf(job.Caller)}
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	select {
	case resp := <-p.answered:
		return answered(job.Request.Method, resp)
	case <-ctx.Done():
		return task.Outcome{}, ctx.Err()
	case err := <-ended:
		select {
		case resp := <-p.answered:
			return answered(job.Request.Method, resp)
		default:
		}
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return task.Outcome{}, err
	}
}

// answered makes a response that never was on a wire what it would have been there (RES-1):
// its error may be any Go error.
func answered(method string, resp *jsonrpc.Response) (task.Outcome, error) {
	if resp.Error == nil {
		return outcomeOf(method, resp.Result, nil)
	}
	data, err := jsonrpc.EncodeMessage(resp)
	if err != nil {
		return task.Outcome{}, err
	}
	m, err := protocol.ParseMessage(data)
	if err != nil {
		return task.Outcome{}, err
	}
	return task.Outcome{Error: m.Error}, nil
}

var requestID, _ = jsonrpc.MakeID(float64(1))

// stateOf makes a session look as if it had been initialized by the task's requestor, as a
// client that answers no questions: those from inside a task have no way to it yet.
func stateOf(caller *engine.Caller) *mcp.ServerSessionState {
	params := &mcp.InitializeParams{}
	if caller != nil && caller.Initialize != nil {
		_ = json.Unmarshal(caller.Initialize, params) // a malformed one says nothing
	}
	params.ProtocolVersion = protocol.Version20251125
	params.Capabilities = &mcp.ClientCapabilities{}
	if params.ClientInfo == nil {
		params.ClientInfo = &mcp.Implementation{Name: "coatcheck"}
	}
	return &mcp.ServerSessionState{InitializeParams: params, InitializedParams: &mcp.InitializedParams{}}
}

func extraOf(caller *engine.Caller) *mcp.RequestExtra {
	if caller == nil {
		return &mcp.RequestExtra{}
	}
	return &mcp.RequestExtra{TokenInfo: caller.TokenInfo, Header: caller.Header}
}

// pipe is the server's end of a session that carries one request. Messages stay values.
type pipe struct {
	in       chan jsonrpc.Message
	answered chan *jsonrpc.Response // to the request
	notified func(method string, params json.RawMessage)

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
		select {
		case p.answered <- msg:
		default:
		}
	case *jsonrpc.Request:
		if !msg.IsCall() {
			p.notified(msg.Method, msg.Params)
			return nil
		}
		result, refusal := answerRequest(msg.Method)
		resp := &jsonrpc.Response{ID: msg.ID, Result: result}
		if refusal != nil {
			resp.Error = &jsonrpc.Error{Code: refusal.Code, Message: refusal.Message}
		}
		select {
		case p.in <- resp:
		case <-p.closed:
			return mcp.ErrConnectionClosed
		}
	}
	return nil
}

// Close implements mcp.Connection.
func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}
