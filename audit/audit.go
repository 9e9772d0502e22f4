// Package audit has the events of tasks: what happened, when, to what, and by whom (AUD-1,
// AUD-2).
package audit

import (
	"context"
	"time"

	"github.com/coatcheck/coatcheck/task"
)

// Kind is what happened.
type Kind string

// The kinds of events. What nobody asked for (an outcome, say) has the principal of the task, and
// the address and session of who created it, if this process knows them.
const (
	Created    Kind = "created"    // a task is stored
	Started    Kind = "started"    // its work has begun; Duration is how long it waited for its turn
	Asked      Kind = "asked"      // it asks its requestor something; Reason is the method
	Answered   Kind = "answered"   // its requestor answered; Duration is how long the question was open
	Retrieved  Kind = "retrieved"  // its outcome went to a requestor
	Cancelled  Kind = "cancelled"  // it was cancelled by request; Duration is how long it ran
	Ended      Kind = "ended"      // its outcome is stored; Duration is how long it ran
	Expired    Kind = "expired"    // its lifetime is over and it was deleted; Duration is how late
	Refused    Kind = "refused"    // an operation was refused; Reason is why
	Suspicious Kind = "suspicious" // a pattern was seen (AUD-2); Reason is which, Count how often in the window; see Watch
)

// Reasons of Refused.
const (
	NotFound     = "not_found"    // no such task, or another's
	Gone         = "expired"      // the task was the requestor's, and has expired
	OverLimit    = "limit"        // of what the requestor may have or do; Limit says which ("polls": the answer was delayed)
	Scope        = "scope"        // the token does not allow the operation
	Unauthorized = "unauthorized" // no valid token
	Origin       = "origin"       // a web page may not use the endpoint
	Host         = "host"         // the endpoint may not be reached under this name
	Invalid      = "invalid"      // the request is malformed, or not possible in the task's status
	Internal     = "internal"     // a fault of ours
)

// Event is one thing that happened. Fields that do not apply are empty.
type Event struct {
	Time      time.Time
	Kind      Kind
	Principal task.Principal
	Address   string        // of the requestor's connection; "" over stdio
	Session   string        // of MCP
	Method    string        // of the request that did it
	Tool      string        // that the task calls
	Task      string        // its id
	Trace     string        // id of the OpenTelemetry trace, in hex
	Status    task.Status   // of the task, afterwards
	Reason    string        // see the kinds
	Limit     string        // Refused for OverLimit: the limit's name
	Duration  time.Duration // see the kinds
	Count     int           // Suspicious

	// Request is what the task runs and Outcome what came of it. A Sink that does not want
	// arguments and results recorded leaves them out.
	Request *task.Request // Created
	Outcome *task.Outcome // Ended
}

// Sink takes events. Record is called while what happened is being answered, by many
// goroutines at once: it should not take long.
type Sink interface {
	Record(ctx context.Context, ev Event)
}

// SinkFunc is a function as a Sink.
type SinkFunc func(ctx context.Context, ev Event)

// Record implements Sink.
func (f SinkFunc) Record(ctx context.Context, ev Event) { f(ctx, ev) }

// Join returns a Sink that hands each event to all of those that are not nil; nil if none is.
func Join(sinks ...Sink) Sink {
	var joined joint
	for _, s := range sinks {
		if s != nil {
			joined = append(joined, s)
		}
	}
	switch len(joined) {
	case 0:
		return nil
	case 1:
		return joined[0]
	}
	return joined
}

type joint []Sink

func (j joint) Record(ctx context.Context, ev Event) {
	for _, s := range j {
		s.Record(ctx, ev)
	}
}
