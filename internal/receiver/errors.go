package receiver

import (
	"errors"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
)

var errNoOutcome = errors.New("a terminal task has no outcome")

// failed maps an error of the engine to its JSON-RPC error (ERR-1, ERR-2, ERR-3). what is
// what could not be done. A foreign task and an unknown one are the same here (C.6).
func (r *Receiver) failed(what string, err error) Answer {
	var wrong *protocol.Error
	switch {
	case errors.As(err, &wrong):
		return Answer{Error: wrong.JSON()}
	case errors.Is(err, store.ErrNotFound):
		return refuse(protocol.CodeInvalidParams, "Failed to %s: Task not found", what)
	case errors.Is(err, store.ErrExpired):
		return refuse(protocol.CodeInvalidParams, "Failed to %s: Task has expired", what)
	case errors.Is(err, engine.ErrKeyReused):
		return refuse(protocol.CodeInvalidParams, "Failed to %s: %v", what, engine.ErrKeyReused)
	case errors.Is(err, engine.ErrShutdown):
		return refuse(protocol.CodeInternalError, "Failed to %s: %v", what, engine.ErrShutdown)
	}
	r.log.Error("task operation failed", "operation", what, "error", err)
	return refuse(protocol.CodeInternalError, "Internal error")
}
