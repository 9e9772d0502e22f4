package upstream

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/session"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// ask puts a request of the server to a task's requestor. It is withdrawn when ctx ends, and
// when the task is over.
func ask(ctx context.Context, over <-chan struct{}, line engine.Line, method string, params json.RawMessage) session.Answer {
	if line == nil || method == protocol.MethodPing {
		return session.Refuse(ctx, method, params)
	}
	switch method {
	case protocol.MethodTasksGet, protocol.MethodTasksCancel, protocol.MethodTasksList: // of a task that the client runs for it
		return func() (json.RawMessage, *protocol.Error) {
			answer, err := line.Call(ctx, method, params)
			return answeredBy(answer, err)
		}
	}
	answers := make(chan task.Outcome, 1)
	withdraw, err := line.Ask(method, params, func(answer task.Outcome) { answers <- answer })
	if err != nil {
		return session.Answered(nil, refused(err))
	}
	return func() (json.RawMessage, *protocol.Error) {
		select {
		case answer := <-answers:
			return answeredBy(answer, nil)
		case <-over:
		case <-ctx.Done():
		}
		withdraw()
		return answeredBy(task.Outcome{}, context.Canceled)
	}
}

func answeredBy(answer task.Outcome, err error) (json.RawMessage, *protocol.Error) {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return nil, protocol.Errorf(protocol.CodeRequestCancelled, "Request cancelled")
	case err != nil:
		return nil, refused(err)
	case answer.Error != nil:
		return nil, errorOf(answer.Error)
	}
	return answer.Result, nil
}

// refused makes an error of Ask what the server is answered.
func refused(err error) *protocol.Error {
	if wire, ok := errors.AsType[*protocol.Error](err); ok {
		return wire
	}
	return protocol.Errorf(protocol.CodeInternalError, "Internal error")
}

// errorOf reads an error object.
func errorOf(raw json.RawMessage) *protocol.Error {
	wire := &protocol.Error{}
	if json.Unmarshal(raw, wire) != nil {
		return protocol.Errorf(protocol.CodeInternalError, "The client answered with a malformed error")
	}
	return wire
}

// notify passes on a notification of the server, unless it is about the server as a whole:
// the requestor's own session with it hears that.
func notify(line engine.Line, method string, params json.RawMessage) {
	switch method {
	case protocol.MethodToolsChanged, protocol.MethodPromptsChanged, protocol.MethodResourcesChanged, protocol.MethodResourceUpdated:
		return
	}
	if line != nil {
		line.Notify(method, params)
	}
}

// setLevel asks a server for the log messages that the requestor asked it for.
func setLevel(ctx context.Context, s *session.Session, caller *engine.Caller) {
	if caller == nil || caller.LogLevel == "" || protocol.Get(protocol.Get(s.Server(), "capabilities"), "logging") == nil {
		return
	}
	params := append(protocol.AppendString([]byte(`{"level":`), caller.LogLevel), '}')
	_, _ = s.Call(ctx, protocol.MethodSetLevel, params) // without it the server logs as it likes
}
