package engine

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/task"
)

// Caller is what is known of a requestor while its request is at hand. Only the
// Principal is ever stored.
type Caller struct {
	Principal  task.Principal
	TokenInfo  *auth.TokenInfo // of the bearer token, if there was one
	Header     http.Header     // of the HTTP request, if there was one
	Initialize json.RawMessage // params of the session's initialize request, if seen
	Session    string          // id of the session, "" if there is none
	Identified bool            // the principal tells this requestor from all others
	LogLevel   string          // that the session set last; "" if it set none
	Address    string          // of its connection; "" over stdio
}

// Who names the caller for limits that are counted here: its principal, or, where that does not
// tell it from others, its address.
func (c *Caller) Who() string {
	if c.Identified {
		return "principal " + string(c.Principal)
	}
	return "address " + limit.Place(c.Address)
}

// Job is one run of a task's request.
type Job struct {
	Ref     task.Ref
	Request task.Request
	Caller  *Caller // nil for a task adopted after a restart
	Remote  string  // the upstream's own task id, recorded by an earlier run

	Line // to the requestor
}

// Runner runs requests. Run returns what the request was answered with, exactly. It stops
// as soon as it can when ctx is cancelled; what it returns then is not used.
// An error that is a *protocol.Error becomes the task's JSON-RPC error; any other becomes
// -32603 and is logged (ERR-2).
type Runner interface {
	Run(ctx context.Context, job *Job) (task.Outcome, error)
}

// Starter is a Runner that needs no goroutine while it waits. Start returns as soon as the work
// goes on by itself, and ended is called once with what Run would have returned; it may be
// called before Start returns, and may take its time.
type Starter interface {
	Start(ctx context.Context, job *Job, ended func(task.Outcome, error))
}
