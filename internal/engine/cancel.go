package engine

import (
	"context"
	"errors"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

const cancelledMessage = "The task was cancelled by request."

// Cancel stops a task and returns it cancelled (CAN-2, CAN-3).
// Errors: store.ErrNotFound, store.ErrExpired, or task.ErrTerminal together with the task
// as it ended (CAN-1).
func (e *Engine) Cancel(ctx context.Context, ref task.Ref) (*task.Task, error) {
	toCancelled := func(t *task.Task) (*task.Task, error) {
		return t.To(task.Cancelled, cancelledMessage, e.now())
	}
	for {
		if l := e.liveTask(ref); l != nil {
			t, err := unexpired(l.state.Load(), nil, e.now())
			if err != nil {
				return nil, err
			}
			err = e.change(ctx, l, toCancelled)
			if errors.Is(err, errLost) {
				continue // it ended this moment: look again
			}
			if err != nil {
				return t, err
			}
			e.recordOf(ctx, l.state.Load(), audit.Event{Kind: audit.Cancelled, Tool: l.tool, Duration: l.ran(e.opts.Now())})
			l.cancel(errCancelled)
			e.lastWord(l) // PROG-1: none comes after this answer
			return l.state.Load(), nil
		}
		t, err := unexpiredFrom(e.store.Get(ctx, ref))(e.now())
		if err != nil {
			return nil, err
		}
		next, err := toCancelled(t)
		if err != nil {
			return t, err
		}
		err = e.store.Update(context.WithoutCancel(ctx), next)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, err
		}
		e.settled.add(next)
		e.recordOf(ctx, next, audit.Event{Kind: audit.Cancelled, Duration: e.now().Sub(t.CreatedAt)})
		if !e.opts.NoStatusNotifications {
			e.announceTo(place{principal: ref.Principal}, Event{Task: ref.ID, Method: protocol.MethodTasksStatus, State: next})
		}
		return next, nil
	}
}
