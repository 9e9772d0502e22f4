package upstream

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// askDirectly puts what a call's handler asks of its client to the requestor, past the
// session's connection: where that is the way, as a task of the requestor's.
//
// A task's handler may wait for days: the way through the SDK's connection keeps twice the
// memory meanwhile, most of it a stack too deep to shrink.
func askDirectly(usual Way) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			running := FromContext(ctx)
			if running == nil || req.GetSession() != mcp.Session(running.Session) || resultOf(method) == nil {
				return next(ctx, method, req)
			}
			way, ok := ctx.Value(wayKey{}).(Way)
			if !ok {
				way = usual
			}
			if way.AsTask != Never {
				if line := running.hosting(method); line != nil {
					return askAsTask(ctx, line, method, req.GetParams(), way.TTL)
				}
				if way.AsTask == Always {
					return nil, ErrNotHosted
				}
			}
			if running.Job == nil {
				return next(ctx, method, req)
			}
			q := newDirectQuestion(running, method, req.GetParams())
			if q.err != nil {
				return nil, q.err
			}
			q.wait(ctx)
			return q.read()
		}
	}
}

// directQuestion is a question on its way.
type directQuestion struct {
	method   string
	answers  chan task.Outcome
	answer   task.Outcome
	withdraw func()
	err      error
}

// newDirectQuestion asks.
func newDirectQuestion(running *Running, method string, params mcp.Params) *directQuestion {
	q := &directQuestion{method: method, answers: make(chan task.Outcome, 1)}
	raw, err := encode(params)
	if err != nil {
		q.err = err
		return q
	}
	q.withdraw, err = running.Job.Ask(method, raw, func(answer task.Outcome) { q.answers <- answer })
	if err != nil {
		q.err = wireError(refused(err))
	}
	return q
}

// encode writes params as the SDK does; nil for none.
func encode(params mcp.Params) (json.RawMessage, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(params); err != nil {
		return nil, err
	}
	raw := bytes.TrimSpace(out.Bytes())
	if string(raw) == "null" {
		return nil, nil
	}
	return bytes.Clone(raw), nil // without the buffer's spare room, which would be kept as long
}

// wait waits for the answer. Nothing else is on the stack that need not be.
func (q *directQuestion) wait(ctx context.Context) {
	select {
	case q.answer = <-q.answers:
	case <-ctx.Done():
		q.withdraw()
		q.err = ctx.Err()
	}
}

func (q *directQuestion) read() (mcp.Result, error) {
	if q.err != nil {
		return nil, q.err
	}
	return readAnswer(q.method, q.answer)
}

// readAnswer returns an answer as the SDK would have read it.
func readAnswer(method string, answer task.Outcome) (mcp.Result, error) {
	if answer.Error != nil {
		return nil, wireError(errorOf(answer.Error))
	}
	result := resultOf(method)
	if err := json.Unmarshal(answer.Result, result); err != nil {
		return nil, &jsonrpc.Error{Code: protocol.CodeInternalError, Message: "malformed answer: " + err.Error()}
	}
	return result, nil
}

// resultOf returns where the answer to a question goes; nil for what is no question.
func resultOf(method string) mcp.Result {
	switch method {
	case protocol.MethodElicit:
		return &mcp.ElicitResult{}
	case protocol.MethodCreateMessage:
		return &mcp.CreateMessageWithToolsResult{}
	case protocol.MethodListRoots:
		return &mcp.ListRootsResult{}
	}
	return nil
}
