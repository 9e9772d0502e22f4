package main

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// ending is how a task ended, as far as it was watched.
type ending struct {
	status client.Status
	result json.RawMessage // of the task's request
	err    error           // instead of a result: a *jsonrpc.Error if it is the server's answer
}

// follow waits for a task, over new sessions if need be, and tells seen how it stands.
func (r *remote) follow(ctx context.Context, t *client.Task, seen func(protocol.Task)) ending {
	for {
		at := t
		for u := range at.Updates(ctx) {
			if u.Err == nil {
				seen(protocol.Task{Status: string(u.Status), StatusMessage: u.Message})
				continue
			}
			var err error
			if t, err = r.find(ctx, at, u.Err); err != nil {
				return ending{at.Status().Status, nil, err}
			}
			if t != at {
				break
			}
		}
		if t != at {
			continue
		}
		result, err := t.WaitRaw(ctx)
		if errors.Is(err, client.ErrClosed) {
			if t, err = r.find(ctx, at, err); err == nil {
				continue
			}
		}
		return ending{at.Status().Status, result, err}
	}
}

// find returns a task that was lost sight of, as it was if its session goes on.
func (r *remote) find(ctx context.Context, t *client.Task, lost error) (*client.Task, error) {
	before := r.current()
	return retry(ctx, r, before, lost, func(ctx context.Context, s *client.Session) (*client.Task, error) {
		if s != before {
			return s.Attach(ctx, t.ID())
		}
		_, err := s.Get(ctx, t.ID())
		return t, err
	})
}
