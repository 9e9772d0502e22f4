package upstream

import (
	"encoding/json"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// outcomeOf makes an answer a task's outcome.
func outcomeOf(method string, result json.RawMessage, err error) (task.Outcome, error) {
	if err != nil {
		var wire *protocol.Error
		if !errors.As(err, &wire) {
			var sdk *jsonrpc.Error
			if !errors.As(err, &sdk) {
				return task.Outcome{}, err
			}
			wire = &protocol.Error{Code: sdk.Code, Message: err.Error(), Data: sdk.Data}
		}
		return task.Outcome{Error: wire.JSON()}, nil
	}
	isError := method == protocol.MethodToolsCall && string(protocol.Get(result, "isError")) == "true"
	return task.Outcome{Result: result, IsError: isError}, nil
}

// answerRequest answers what a server asks its client from inside a task.
func answerRequest(method string) (json.RawMessage, *protocol.Error) {
	if method == protocol.MethodPing {
		return json.RawMessage("{}"), nil
	}
	return nil, protocol.Errorf(protocol.CodeMethodNotFound, "Method not found: %s", method)
}
