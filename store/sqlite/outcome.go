package sqlite

import (
	"fmt"

	"github.com/coatcheck/coatcheck/task"
)

// The kinds of outcome, of tasks and of answers to input requests.
const (
	outcomeNone int64 = iota
	outcomeResult
	outcomeIsError
	outcomeError
)

func kindOf(o *task.Outcome) (kind int64, body []byte) {
	switch {
	case o == nil:
		return outcomeNone, nil
	case o.Error != nil:
		return outcomeError, o.Error
	case o.IsError:
		return outcomeIsError, o.Result
	default:
		return outcomeResult, o.Result
	}
}

func outcomeOf(kind int64, body []byte) (*task.Outcome, error) {
	switch kind {
	case outcomeNone:
		return nil, nil
	case outcomeResult, outcomeIsError:
		return &task.Outcome{Result: body, IsError: kind == outcomeIsError}, nil
	case outcomeError:
		return &task.Outcome{Error: body}, nil
	}
	return nil, fmt.Errorf("an outcome of unknown kind %d", kind)
}
