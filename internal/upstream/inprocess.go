// Package upstream runs a task's request against the server that knows nothing of tasks: an
// SDK server in this process, a child process, or a URL.
package upstream

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// InProcess runs requests on an SDK server, each in a session of its own over a message
// pipe, without a handshake. It adds middleware to the server: one that answers a panic in a
// handler with -32603 and logs it, and one that takes the short way for questions. Those that
// a handler puts to its session are put as asTask says.
func InProcess(server *mcp.Server, log *slog.Logger, asTask AsTask) engine.Runner {
	server.AddReceivingMiddleware(recoverPanics(log))
	server.AddSendingMiddleware(askDirectly(Way{AsTask: asTask}))
	return &inProcess{server: server}
}

type inProcess struct{ server *mcp.Server }

// Start implements engine.Starter: a goroutine that waits for the answer would be one more for
// each task that waits for its requestor.
func (u *inProcess) Start(ctx context.Context, job *engine.Job, ended func(task.Outcome, error)) {
	p := &pipe{
		in:     make(chan jsonrpc.Message, 1),
		closed: make(chan struct{}),
		method: job.Request.Method,
		line:   job.Line,
		ended:  ended,
	}
	watching := make(chan struct{})
	p.unwatch = context.AfterFunc(ctx, func() {
		<-watching // ctx may be done already
		p.end(task.Outcome{}, ctx.Err())
	})
	close(watching)
	running := &Running{Job: job}
	session, err := u.server.Connect(context.WithValue(ctx, runningKey{}, running), p, &mcp.ServerSessionOptions{State: stateOf(job.Caller)})
	if err != nil {
		p.end(task.Outcome{}, err)
		return
	}
	running.Session = session
	p.in <- &jsonrpc.Request{ID: requestID, Method: job.Request.Method, Params: job.Request.Params, Extra: extraOf(job.Caller)}
}

// Run implements engine.Runner.
func (u *inProcess) Run(ctx context.Context, job *engine.Job) (outcome task.Outcome, err error) {
	done := make(chan struct{})
	u.Start(ctx, job, func(o task.Outcome, e error) {
		outcome, err = o, e
		close(done)
	})
	<-done
	return outcome, err
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
