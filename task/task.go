// Package task is the domain: a task, its status and how it may change, and its outcome.
// It is pure: no I/O, no clock and no randomness of its own.
package task

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Principal names a requestor, the authorization context a task is bound to (SEC-1).
// The empty Principal stands for all requestors that cannot be told apart (SEC-3, SEC-4).
type Principal string

// Ref names a task. Every look-up is by both parts, so a foreign id is an unknown one
// (requirements C.6).
type Ref struct {
	Principal Principal
	ID        string
}

// Status is where a task stands.
type Status string

// The statuses; the last three are terminal.
const (
	Working       Status = "working"
	InputRequired Status = "input_required"
	Completed     Status = "completed"
	Failed        Status = "failed"
	Cancelled     Status = "cancelled"
)

// Terminal reports whether the status is final.
func (s Status) Terminal() bool { return s == Completed || s == Failed || s == Cancelled }

// CanBecome reports whether a task may go from s to next (LIFE-1, LIFE-2, LIFE-3).
func (s Status) CanBecome(next Status) bool {
	switch s {
	case Working:
		return next == InputRequired || next.Terminal()
	case InputRequired:
		return next == Working || next.Terminal()
	}
	return false
}

// Outcome is what the task's own request was answered with, byte for byte. Exactly one of
// Result and Error is set.
type Outcome struct {
	Result json.RawMessage // the result object
	Error  json.RawMessage // the JSON-RPC error object
	// IsError says that Result is a tool result with isError: true (EXE-2).
	IsError bool
}

// Request is the plain request a task runs: the augmented one without params.task.
type Request struct {
	Method string
	Params json.RawMessage
}

// Task is a task as stored. Values are treated as immutable: a change makes a new value
// with the next Revision.
type Task struct {
	Ref
	Revision      int64 // 1 at creation, one more with each change
	Status        Status
	StatusMessage string
	CreatedAt     time.Time     // UTC, whole milliseconds
	UpdatedAt     time.Time     // UTC, whole milliseconds
	TTL           time.Duration // from CreatedAt, whole milliseconds; 0 is unlimited
	PollInterval  time.Duration // suggested to the requestor; 0 suggests none
	Key           string        // idempotency key; "" is none
	Request       Request
	Asked         int            // how many input requests it has made
	Inputs        []InputRequest // in the order they were made; see store.Store for who gives them

	Owner  string // the process that runs it; "" once terminal
	Remote string // the upstream's own id for it, where the upstream runs it as a task

	Outcome *Outcome // set when terminal, except for a cancelled task
}

// ErrTerminal is returned when a change is asked of a task whose status is final (LIFE-3).
var ErrTerminal = errors.New("task is in a terminal status")

// ExpiresAt returns when the task may be deleted; ok is false if its lifetime is unlimited.
func (t *Task) ExpiresAt() (at time.Time, ok bool) {
	if t.TTL == 0 {
		return time.Time{}, false
	}
	return t.CreatedAt.Add(t.TTL), true
}

// Expired reports whether the task's lifetime is over at now (TTL-3).
func (t *Task) Expired(now time.Time) bool {
	at, ok := t.ExpiresAt()
	return ok && !now.Before(at)
}

// To returns the task changed to status next, with message as its statusMessage. Going to
// the status it has changes only the message, unless that status is terminal.
// The error is ErrTerminal, or says which step is not allowed.
func (t *Task) To(next Status, message string, now time.Time) (*Task, error) {
	if t.Status.Terminal() {
		return nil, ErrTerminal
	}
	if next != t.Status && !t.Status.CanBecome(next) {
		return nil, fmt.Errorf("task cannot go from %s to %s", t.Status, next)
	}
	c := *t
	c.Revision++
	c.Status, c.StatusMessage = next, message
	if at := Instant(now); at.After(t.UpdatedAt) { // a clock may go back, a task's times do not
		c.UpdatedAt = at
	}
	if next.Terminal() {
		c.Owner = ""
	}
	return &c, nil
}

// Finish returns the task ended by outcome: failed for a JSON-RPC error (EXE-1) or a
// result with isError (EXE-2), else completed.
func (t *Task) Finish(outcome Outcome, message string, now time.Time) (*Task, error) {
	status := Completed
	if outcome.Error != nil || outcome.IsError {
		status = Failed
	}
	c, err := t.To(status, message, now)
	if err != nil {
		return nil, err
	}
	c.Outcome = &outcome
	return c, nil
}

// OwnedBy returns the task with another owner: taken over, or adopted after a restart.
func (t *Task) OwnedBy(owner string) (*Task, error) {
	if t.Status.Terminal() {
		return nil, ErrTerminal
	}
	c := *t
	c.Revision++
	c.Owner = owner
	return &c, nil
}

// RunAs returns the task with the upstream's own id for it recorded.
func (t *Task) RunAs(remote string) (*Task, error) {
	if t.Status.Terminal() {
		return nil, ErrTerminal
	}
	c := *t
	c.Revision++
	c.Remote = remote
	return &c, nil
}

// PollEvery returns the task with another interval suggested to its requestor (TTL-4);
// 0 suggests none.
func (t *Task) PollEvery(d time.Duration) (*Task, error) {
	if t.Status.Terminal() {
		return nil, ErrTerminal
	}
	c := *t
	c.Revision++
	c.PollInterval = max(0, d).Truncate(time.Millisecond)
	return &c, nil
}

// KeepUntil lets the task's lifetime reach at least to until, but never beyond limit from
// creation (requirements C.5); limit 0 is unlimited. It changes t, so it is for a value
// that nobody else has seen yet.
func (t *Task) KeepUntil(until time.Time, limit time.Duration) {
	if t.TTL == 0 {
		return
	}
	want := until.Sub(t.CreatedAt)
	if limit > 0 {
		want = min(want, limit)
	}
	t.TTL = max(t.TTL, want.Truncate(time.Millisecond))
}

// Instant returns at as tasks record it: UTC, whole milliseconds, no monotonic part.
func Instant(at time.Time) time.Time { return at.UTC().Truncate(time.Millisecond).Round(0) }
