package protocol

import (
	"encoding/json"
	"fmt"
)

// JSON-RPC error codes in use.
const (
	CodeParseError       = -32700
	CodeInvalidRequest   = -32600
	CodeMethodNotFound   = -32601
	CodeInvalidParams    = -32602
	CodeInternalError    = -32603
	CodeRequestCancelled = -32800 // tasks/result of a cancelled task (requirements C.2)

	// CodeLimitExceeded: the requestor has or does as much as it may (SEC-5, RSC-1). The
	// error's data is {"limit": NAME, "retryAfterMs": N}, the latter where it helps to wait.
	CodeLimitExceeded = -32029
	// CodeInsufficientScope: the requestor's token does not allow the operation. The error's
	// data is {"scope": NAME}.
	CodeInsufficientScope = -32033
)

// Error is a JSON-RPC error object. Its message is sent to the requestor.
type Error struct {
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Errorf returns an Error with the given code and formatted message.
func Errorf(code int64, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

func (e *Error) Error() string { return e.Message }

// JSON returns the error object's wire form.
func (e *Error) JSON() json.RawMessage { return Marshal(e) }
