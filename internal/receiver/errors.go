package receiver

import (
	"context"
	"errors"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
)

var errNoOutcome = errors.New("a terminal task has no outcome")

// failed maps an error of the engine to its JSON-RPC error (ERR-1, ERR-2, ERR-3). what is
// what could not be done. A foreign task and an unknown one are the same here (C.6).
func (o *operation) failed(ctx context.Context, what string, err error) Answer {
	var wrong *protocol.Error
	var exceeded *engine.LimitError
	refused := func(reason string, code int64, text any) Answer {
		o.record(ctx, audit.Event{Kind: audit.Refused, Reason: reason})
		return refuse(code, "Failed to %s: %v", what, text)
	}
	switch {
	case errors.As(err, &wrong):
		o.record(ctx, audit.Event{Kind: audit.Refused, Reason: audit.Invalid})
		return Answer{Error: wrong.JSON()}
	case errors.As(err, &exceeded):
		return o.exceeded(ctx, exceeded)
	case errors.Is(err, store.ErrNotFound):
		if wait := o.missed(); wait > 0 { // others were looked up meanwhile
			return o.exceeded(ctx, &engine.LimitError{Limit: "misses", RetryAfter: wait, Message: tooOften["misses"]})
		}
		return refused(audit.NotFound, protocol.CodeInvalidParams, "Task not found")
	case errors.Is(err, store.ErrExpired):
		return refused(audit.Gone, protocol.CodeInvalidParams, "Task has expired")
	case errors.Is(err, engine.ErrKeyReused):
		return refused(audit.Invalid, protocol.CodeInvalidParams, engine.ErrKeyReused)
	case errors.Is(err, engine.ErrShutdown):
		return refused(audit.Internal, protocol.CodeInternalError, engine.ErrShutdown)
	}
	o.log.Error("task operation failed", "operation", what, "error", err)
	o.record(ctx, audit.Event{Kind: audit.Refused, Reason: audit.Internal})
	return refuse(protocol.CodeInternalError, "Internal error")
}
