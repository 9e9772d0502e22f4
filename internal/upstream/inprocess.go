// Package upstream runs a task's request against the server that knows nothing of tasks: an
// SDK server in this process, a child process, or a URL.
package upstream

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"

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
	p := &pipe{
		in:       make(chan jsonrpc.Message, 8),
		closed:   make(chan struct{}),
		answered: make(chan *jsonrpc.Response, 1),
		line:     job.Line,
	}
	running := &Running{Job: job}
	session, err := u.server.Connect(context.WithValue(ctx, runningKey{}, running), p, &mcp.ServerSessionOptions{State: stateOf(job.Caller)})
	if err != nil {
		return task.Outcome{}, err
	}
	// Closing the pipe cancels the handler's context; a handler that ignores it is left to
	// end by itself.
	defer p.Close()
	running.Session = session
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

// Running is what a handler's context says of the task it runs in.
type Running struct {
	Job     *engine.Job
	Session *mcp.ServerSession // the task's own
}

type runningKey struct{}

// FromContext returns the task that a handler runs in, or nil.
func FromContext(ctx context.Context) *Running {
	running, _ := ctx.Value(runningKey{}).(*Running)
	return running
}

// stateOf makes a session look as if it had been initialized by the task's requestor.
func stateOf(caller *engine.Caller) *mcp.ServerSessionState {
	params := &mcp.InitializeParams{}
	if caller != nil && caller.Initialize != nil {
		_ = json.Unmarshal(caller.Initialize, params) // a malformed one says nothing
	}
	params.ProtocolVersion = protocol.Version20251125
	params.Capabilities = &mcp.ClientCapabilities{}
	_ = json.Unmarshal(caller.Capabilities(), params.Capabilities)
	if params.ClientInfo == nil {
		params.ClientInfo = &mcp.Implementation{Name: "coatcheck"}
	}
	state := &mcp.ServerSessionState{InitializeParams: params, InitializedParams: &mcp.InitializedParams{}}
	if caller != nil {
		state.LogLevel = mcp.LoggingLevel(caller.LogLevel)
	}
	return state
}

func extraOf(caller *engine.Caller) *mcp.RequestExtra {
	if caller == nil {
		return &mcp.RequestExtra{}
	}
	return &mcp.RequestExtra{TokenInfo: caller.TokenInfo, Header: caller.Header}
}
