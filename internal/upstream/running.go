package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/requestor"
)

// Running is what a handler's context says of the call it runs in: a task, or a plain one.
type Running struct {
	Job     *engine.Job        // of a task; nil in a plain call
	Plain   *engine.Plain      // of a plain call whose requestor runs tasks, or nil
	Session *mcp.ServerSession // the call's own

	report func(progress, total float64, message string) // of a plain call; nil to report nothing
}

type runningKey struct{}

// FromContext returns the call that a handler runs in, or nil.
func FromContext(ctx context.Context) *Running {
	running, _ := ctx.Value(runningKey{}).(*Running)
	return running
}

// Report reports progress, under the requestor's token.
func (r *Running) Report(progress, total float64, message string) {
	switch {
	case r.Job != nil:
		r.Job.Report(progress, total, message)
	case r.report != nil:
		r.report(progress, total, message)
	}
}

// AsTask says whether a question is put to the requestor as a task of its own.
type AsTask int

// The values of AsTask.
const (
	WhenPossible AsTask = iota // where it runs such questions as tasks (CAP-4)
	Never
	Always // or it fails with ErrNotHosted
)

// ErrNotHosted is returned for a question that is to be a task of a requestor that runs none.
var ErrNotHosted = errors.New("coatcheck: the client does not run such requests as tasks")

// Way is how a question is put.
type Way struct {
	AsTask AsTask
	TTL    time.Duration // of the requestor's task; 0 leaves it to the requestor
}

type wayKey struct{}

// On returns a context in which the session's questions are put in a way of their own.
func (w Way) On(ctx context.Context) context.Context { return context.WithValue(ctx, wayKey{}, w) }

// hosting returns the line for questions of a kind to be tasks of the requestor; nil if it
// runs no such tasks.
func (r *Running) hosting(method string) requestor.Line {
	switch {
	case r.Job != nil && r.Job.Caller != nil && engine.Hosts(r.Job.Caller.Initialize, method):
		return r.Job.Line
	case r.Plain != nil && engine.Hosts(r.Plain.Initialize(), method):
		return r.Plain
	}
	return nil
}

// askAsTask puts a question as a task of the requestor's and returns what it ends with.
func askAsTask(ctx context.Context, line requestor.Line, method string, params mcp.Params, ttl time.Duration) (mcp.Result, error) {
	raw, err := encode(params)
	if err != nil {
		return nil, err
	}
	if raw == nil {
		raw = json.RawMessage("{}")
	}
	outcome, err := requestor.Do(ctx, line, method, raw, ttl)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, wireError(refused(err))
	}
	return readAnswer(method, outcome)
}
