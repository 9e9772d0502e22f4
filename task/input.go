package task

import (
	"encoding/json"
	"strconv"
	"time"
)

// InputRequest is a request that a running task made of its requestor (INP-1). It is open
// until it has an answer or the task has ended.
type InputRequest struct {
	Key    string // unique for the task's life
	Method string
	Params json.RawMessage
	// Answer is what the requestor answered: a result or an error, byte for byte; an error
	// of ours if the request was withdrawn.
	Answer *Outcome
}

// Ask returns the task with one more input request, waiting for it: input_required. Its
// Inputs are that one alone.
func (t *Task) Ask(method string, params json.RawMessage, message string, now time.Time) (*Task, error) {
	c, err := t.To(InputRequired, message, now)
	if err != nil {
		return nil, err
	}
	c.Asked++
	c.Inputs = []InputRequest{{Key: strconv.Itoa(c.Asked), Method: method, Params: params}}
	return c, nil
}

// Answer returns the task with an answer to one of its input requests. Its Inputs are that
// one alone. With others open it stays input_required, with the last one answered it is
// working again (INP-4).
func (t *Task) Answer(input InputRequest, answer Outcome, others bool, message string, now time.Time) (*Task, error) {
	status := Working
	if others {
		status = InputRequired
	}
	c, err := t.To(status, message, now)
	if err != nil {
		return nil, err
	}
	input.Answer = &answer
	c.Inputs = []InputRequest{input}
	return c, nil
}
