package upstream

import (
	"encoding/json"
	"errors"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// outcomeOf makes an answer a task's outcome. An error that is no *protocol.Error is none.
func outcomeOf(method string, result json.RawMessage, err error) (task.Outcome, error) {
	var wire *protocol.Error
	switch {
	case errors.As(err, &wire):
		return task.Outcome{Error: wire.JSON()}, nil
	case err != nil:
		return task.Outcome{}, err
	case len(result) == 0:
		return task.Outcome{}, protocol.Errorf(protocol.CodeInternalError, "The server's answer has neither a result nor an error")
	}
	isError := method == protocol.MethodToolsCall && string(protocol.Get(result, "isError")) == "true"
	return task.Outcome{Result: result, IsError: isError}, nil
}
