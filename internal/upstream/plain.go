package upstream

import (
	"context"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
)

// PlainCalls has the handler of a tools/call that is no task find its Running. take returns
// the way to the requestor's own tasks, nil if there is none, from the call's headers.
func PlainCalls(take func(http.Header) *engine.Plain) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			session, ok := req.GetSession().(*mcp.ServerSession)
			if !ok || method != protocol.MethodToolsCall || FromContext(ctx) != nil {
				return next(ctx, method, req)
			}
			running := &Running{Session: session}
			if extra := req.GetExtra(); extra != nil {
				running.Plain = take(extra.Header)
			}
			if running.Plain != nil {
				defer running.Plain.Close()
			}
			ctx = context.WithValue(ctx, runningKey{}, running)
			if params, ok := req.GetParams().(mcp.RequestParams); ok {
				running.report = reporter(ctx, session, params.GetProgressToken())
			}
			return next(ctx, method, req)
		}
	}
}

// reporter reports progress of a plain call, whose client may want none.
func reporter(ctx context.Context, session *mcp.ServerSession, token any) func(progress, total float64, message string) {
	if token == nil {
		return nil
	}
	return func(progress, total float64, message string) {
		// It fails only when the client is gone, which the handler's context says.
		_ = session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: progress, Total: total, Message: message})
	}
}
