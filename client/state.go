package client

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// Status is where a call stands.
type Status = task.Status

// The statuses; the last three are final.
const (
	Working       = task.Working
	InputRequired = task.InputRequired
	Completed     = task.Completed
	Failed        = task.Failed
	Cancelled     = task.Cancelled
)

// State is what a server says of a task.
type State struct {
	ID        string
	Status    Status
	Message   string // what it is at, in words; "" if the server says nothing
	CreatedAt time.Time
	UpdatedAt time.Time
	TTL       time.Duration   // from CreatedAt; 0 is unlimited
	Poll      time.Duration   // how often the server wants to be asked; 0 if it does not say
	Raw       json.RawMessage // all of this as it came
}

// longest caps what a server says in milliseconds to what a time.Duration holds.
const longest = 100 * 365 * 24 * time.Hour

func readState(raw json.RawMessage) (*State, error) {
	var wire protocol.Task
	if err := json.Unmarshal(raw, &wire); err != nil {
		return nil, fmt.Errorf("%w: a malformed task: %w", ErrProtocol, err)
	}
	state := &State{
		ID: wire.TaskID, Status: Status(wire.Status), Message: wire.StatusMessage,
		CreatedAt: wire.CreatedAt, UpdatedAt: wire.LastUpdatedAt,
		TTL: duration(wire.TTL), Poll: duration(wire.PollInterval), Raw: raw,
	}
	if state.ID == "" {
		return nil, fmt.Errorf("%w: a task without id", ErrProtocol)
	}
	switch state.Status {
	case Working, InputRequired, Completed, Failed, Cancelled:
		return state, nil
	}
	return nil, fmt.Errorf("%w: unknown status %q", ErrProtocol, wire.Status)
}

func duration(ms *int64) time.Duration {
	switch {
	case ms == nil || *ms <= 0:
		return 0
	case *ms > longest.Milliseconds():
		return longest
	}
	return time.Duration(*ms) * time.Millisecond
}
