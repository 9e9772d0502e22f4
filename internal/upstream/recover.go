package upstream

import (
	"context"
	"log/slog"
	"runtime/debug"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/protocol"
)

// recoverPanics makes a panic in a handler a JSON-RPC error. The SDK does not, so that one
// would end the process with every task in it. What panicked is logged, not sent (ERR-2).
func recoverPanics(log *slog.Logger) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
			defer recovered(log, method, &res, &err)
			return next(ctx, method, req)
		}
	}
}

func recovered(log *slog.Logger, method string, res *mcp.Result, err *error) {
	if p := recover(); p != nil {
		log.Error("panic in a handler", "method", method, "panic", p, "stack", string(debug.Stack()))
		*res, *err = nil, &jsonrpc.Error{Code: protocol.CodeInternalError, Message: "Internal error"}
	}
}
