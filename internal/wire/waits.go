package wire

import (
	"context"
	"encoding/json"
	"sync"
)

// waits are the open tasks/result calls of a connection or handler, so that
// notifications/cancelled can end the call and leave the task alone (CAN-4).
type waits struct {
	mu   sync.Mutex
	open map[wait]*opened
}

// opened is a call that waits.
type opened struct {
	cancel    context.CancelFunc
	cancelled bool
	giveUp    func() // what else its cancellation does; may be nil
}

type wait struct{ scope, id string }

func newWaits() *waits { return &waits{open: map[wait]*opened{}} }

// begin enters a call, unless its scope is "": request ids mean nothing between strangers. The context ends when it is cancelled; end must be called.
func (ws *waits) begin(ctx context.Context, scope string, id json.RawMessage) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	if scope == "" {
		return ctx, cancel
	}
	key := wait{scope, string(id)}
	ws.mu.Lock()
	ws.open[key] = &opened{cancel: cancel}
	ws.mu.Unlock()
	return ctx, func() {
		ws.mu.Lock()
		delete(ws.open, key)
		ws.mu.Unlock()
		cancel()
	}
}

// cancel ends a call, and reports whether there was one.
func (ws *waits) cancel(scope string, id json.RawMessage) bool {
	ws.mu.Lock()
	call, ok := ws.open[wait{scope, string(id)}]
	var giveUp func()
	if ok {
		call.cancel()
		call.cancelled, giveUp = true, call.giveUp
	}
	ws.mu.Unlock()
	if giveUp != nil {
		giveUp()
	}
	return ok
}

// onCancel has a call's cancellation also call giveUp, before it is over; at once if it came
// already.
func (ws *waits) onCancel(scope string, id json.RawMessage, giveUp func()) {
	ws.mu.Lock()
	call, ok := ws.open[wait{scope, string(id)}]
	if ok {
		call.giveUp = giveUp
	}
	late := ok && call.cancelled
	ws.mu.Unlock()
	if late {
		giveUp()
	}
}
