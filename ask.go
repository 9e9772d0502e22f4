package coatcheck

import (
	"context"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/upstream"
)

// Mode says whether a question is put to the client as a task of the client's own, which may
// take as long as a person needs without a connection held open (FLOW-3).
type Mode int

// The values of Mode.
const (
	Auto   = Mode(upstream.WhenPossible) // as a task where the client runs such requests as tasks (CAP-4)
	Never  = Mode(upstream.Never)
	Always = Mode(upstream.Always) // or the question fails with ErrNotHosted
)

// ErrNoTask is returned for a question of a nil *Task.
var ErrNoTask = errors.New("coatcheck: no Runtime is opened on the server")

// ErrNotHosted is returned for a question with Always if the client runs no such requests as
// tasks.
var ErrNotHosted = upstream.ErrNotHosted

// AskOptions says how a question is put. A nil *AskOptions means all defaults.
type AskOptions struct {
	// Mode is whether the question is a task of the client's own. Default Auto.
	Mode Mode
	// TTL is the lifetime asked for that task, in whole milliseconds. Default 0: the client's.
	TTL time.Duration
}

func (o *AskOptions) on(ctx context.Context) context.Context {
	if o == nil {
		o = &AskOptions{}
	}
	return upstream.Way{AsTask: upstream.AsTask(o.Mode), TTL: o.TTL}.On(ctx)
}

// Elicit asks the requestor's user, as the SDK's ServerSession.Elicit does (INP-1). What a
// task asks is stored until it is answered. A question that the client runs as a task is
// followed to its end: polled, its result fetched over any stream, and cancelled when ctx is
// done or the call that asked is over. Errors are the client's *jsonrpc.Error, ctx's,
// ErrNotHosted, and ErrNoTask for a nil *Task.
func (t *Task) Elicit(ctx context.Context, params *mcp.ElicitParams, opts *AskOptions) (*mcp.ElicitResult, error) {
	if t == nil {
		return nil, ErrNoTask
	}
	return t.running.Session.Elicit(opts.on(ctx), params)
}

// Sample asks the requestor's model, as the SDK's ServerSession.CreateMessageWithTools does,
// in the way of Elicit.
func (t *Task) Sample(ctx context.Context, params *mcp.CreateMessageWithToolsParams, opts *AskOptions) (*mcp.CreateMessageWithToolsResult, error) {
	if t == nil {
		return nil, ErrNoTask
	}
	return t.running.Session.CreateMessageWithTools(opts.on(ctx), params)
}
