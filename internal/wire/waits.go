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
	cancel context.CancelFunc
	known  chan struct{} // closed when giveUp is set, or never will be; nil if there is none
	once   sync.Once     // closes it
	giveUp func()        // what else its cancellation does; may be nil
}

type wait struct{ scope, id string }

func newWaits() *waits { return &waits{open: map[wait]*opened{}} }

// begin enters a call, unless its scope is "": request ids mean nothing between strangers. The
// context ends when it is cancelled; end must be called.
func (ws *waits) begin(ctx context.Context, scope string, id json.RawMessage) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	return ctx, ws.enter(scope, id, &opened{cancel: cancel})
}

// beginTask is begin for a call that may turn out to be a task's: onGiveUp says what its
// cancellation also does, nil for nothing, and whoever cancels it waits until that is known.
func (ws *waits) beginTask(ctx context.Context, scope string, id json.RawMessage) (_ context.Context, onGiveUp func(func()), end func()) {
	ctx, cancel := context.WithCancel(ctx)
	call := &opened{cancel: cancel, known: make(chan struct{})}
	leave := ws.enter(scope, id, call)
	return ctx, func(giveUp func()) {
			call.once.Do(func() {
				call.giveUp = giveUp
				close(call.known)
			})
		}, func() {
			call.once.Do(func() { close(call.known) })
			leave()
		}
}

func (ws *waits) enter(scope string, id json.RawMessage, call *opened) (end func()) {
	if scope == "" {
		return call.cancel
	}
	key := wait{scope, string(id)}
	ws.mu.Lock()
	ws.open[key] = call
	ws.mu.Unlock()
	return func() {
		ws.mu.Lock()
		if ws.open[key] == call {
			delete(ws.open, key)
		}
		ws.mu.Unlock()
		call.cancel()
	}
}

// cancel ends a call, and reports whether there was one.
func (ws *waits) cancel(scope string, id json.RawMessage) bool {
	ws.mu.Lock()
	call, ok := ws.open[wait{scope, string(id)}]
	ws.mu.Unlock()
	if !ok {
		return false
	}
	call.cancel()
	if call.known != nil {
		<-call.known
		if call.giveUp != nil {
			call.giveUp()
		}
	}
	return true
}
