package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/session"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// Bounds of the interval at which a server's own task is polled (GET-2).
const (
	minPoll     = 100 * time.Millisecond
	maxPoll     = 30 * time.Second
	defaultPoll = time.Second
)

// cancelTimeout bounds a tasks/cancel, whose answer changes nothing here.
const cancelTimeout = 5 * time.Second

// run is the running of one job. It outlives a connection where the server runs a task of
// its own for it.
type run struct {
	job    *engine.Job
	tools  *toolSupport
	remote string // the server's own task id, once there is one
	heard  int    // answers about it
}

// on runs the job, or goes on with it, in a session.
func (r *run) on(ctx context.Context, s *session.Session) (task.Outcome, error) {
	if r.remote != "" {
		return r.poll(ctx, s)
	}
	request := r.job.Request
	if request.Method == protocol.MethodToolsCall {
		name, _ := protocol.Unquote(protocol.Get(request.Params, "name"))
		tools, err := r.tools.get(ctx, s, name)
		if err != nil {
			return task.Outcome{}, err
		}
		if tools[name] == protocol.Required {
			return r.create(ctx, s)
		}
	}
	result, err := s.Call(ctx, request.Method, request.Params)
	return outcomeOf(request.Method, result, err)
}

// create calls a tool that its server runs only as a task (TOOL-4). How long it keeps that
// is left to it: our requestor's ttl is about our task.
func (r *run) create(ctx context.Context, s *session.Session) (task.Outcome, error) {
	params, err := protocol.Set(r.job.Request.Params, "task", []byte(`{}`))
	if err != nil {
		return task.Outcome{}, err
	}
	// The answer is due at once, and without the id in it the task there cannot be cancelled:
	// so a cancel waits for it a little.
	calling, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(cancelTimeout, abandon) })()
	result, err := s.Call(calling, r.job.Request.Method, params)
	id, ok := protocol.Unquote(protocol.Get(protocol.Get(result, "task"), "taskId"))
	if err != nil || !ok {
		return outcomeOf(r.job.Request.Method, result, err) // it was answered, one way or the other
	}
	r.remote = id
	if err := r.job.SetRemote(ctx, id); err != nil {
		r.cancel(ctx, s) // nobody will ever ask for it
		return task.Outcome{}, err
	}
	return r.poll(ctx, s)
}

// poll follows the server's own task to its end.
func (r *run) poll(ctx context.Context, s *session.Session) (task.Outcome, error) {
	params := protocol.Marshal(map[string]string{"taskId": r.remote})
	for {
		answer, err := s.Call(ctx, protocol.MethodTasksGet, params)
		if err != nil {
			return task.Outcome{}, r.failed(ctx, s, err)
		}
		var at protocol.Task
		if err := json.Unmarshal(answer, &at); err != nil {
			return task.Outcome{}, protocol.Errorf(protocol.CodeInternalError, "The server's answer about its own task is malformed: %v", err)
		}
		r.heard++
		if at.StatusMessage != "" {
			r.job.Say(bounded(at.StatusMessage))
		}
		switch status := task.Status(at.Status); {
		case status == task.Cancelled:
			return task.Outcome{}, protocol.Errorf(protocol.CodeRequestCancelled, "Request cancelled by the server that ran it")
		case status.Terminal(), status == task.InputRequired: // INP-3
			result, err := s.Call(ctx, protocol.MethodTasksResult, params)
			if connectionLost(ctx, err) || ctx.Err() != nil {
				return task.Outcome{}, r.failed(ctx, s, err)
			}
			return outcomeOf(r.job.Request.Method, result, err)
		}
		if err := pause(ctx, pollInterval(&at)); err != nil {
			return task.Outcome{}, r.failed(ctx, s, err)
		}
	}
}

// failed says what became of the task when the server did not tell.
func (r *run) failed(ctx context.Context, s *session.Session, err error) error {
	var wire *protocol.Error
	switch {
	case ctx.Err() != nil:
		if engine.Stopped(ctx) {
			r.cancel(ctx, s)
		}
	case errors.As(err, &wire) && wire.Code == protocol.CodeInvalidParams:
		return protocol.Errorf(protocol.CodeInternalError, "The server that ran this no longer knows its task: %s", bounded(wire.Message))
	case wire != nil:
		return protocol.Errorf(protocol.CodeInternalError, "The server that runs this does not tell about its task: %s", bounded(wire.Message))
	}
	return err
}

// cancel cancels the server's own task, as ours is over (CAN-2).
func (r *run) cancel(ctx context.Context, s *session.Session) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer done()
	_, _ = s.Call(ctx, protocol.MethodTasksCancel, protocol.Marshal(map[string]string{"taskId": r.remote}))
}

func pollInterval(t *protocol.Task) time.Duration {
	if t.PollInterval == nil {
		return defaultPoll
	}
	return time.Duration(min(max(*t.PollInterval, minPoll.Milliseconds()), maxPoll.Milliseconds())) * time.Millisecond
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// connectionLost reports whether err says that there was no answer, though one was waited
// for.
func connectionLost(ctx context.Context, err error) bool {
	var wire *protocol.Error
	return err != nil && ctx.Err() == nil && !errors.As(err, &wire)
}

// maxMessage bounds what a server may put into a statusMessage, in bytes.
const maxMessage = 4 << 10

func bounded(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage], "") + "…"
}
