package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// Line is what running work can tell and ask its requestor. Its methods may be called
// concurrently, and do nothing once the task is over.
type Line interface {
	// SetRemote records the upstream's own task id, durably, before it returns.
	SetRemote(ctx context.Context, id string) error
	// Say shows what the work is at, as the statusMessage, until progress or the next call
	// says something else. It is not stored.
	Say(message string)
	// Notify passes on a notification of the work: its progress, a log message, any other.
	// Progress under another token than the request's own, or less than before, is dropped
	// (PROG-1).
	Notify(method string, params json.RawMessage)
	// Report tells of progress, under the request's own token if it has one; total 0 is not
	// known.
	Report(progress, total float64, message string)
	// Ask puts a request to the requestor (INP-1), durably before it returns. reply is called
	// once, with the answer, unless withdraw is called or the task ends before; it must not
	// block. An error that is a *protocol.Error is the requestor's answer at once.
	Ask(method string, params json.RawMessage, reply func(task.Outcome)) (withdraw func(), err error)
	// Call puts a request about a task that the requestor runs to it (tasks/get, tasks/list,
	// tasks/cancel), and waits for the answer. It is not stored. Errors are as Ask's, or ctx's.
	Call(ctx context.Context, method string, params json.RawMessage) (task.Outcome, error)
	// Host notes that the requestor runs a task, named by its id there, for this one alone.
	// Unless done is called before, it is cancelled there when this one ends.
	Host(id string) (done func())
	// SetMessage stores what the work is at, as the statusMessage; progress no longer shows
	// there.
	SetMessage(ctx context.Context, message string) error
	// SetPollInterval stores how often the requestor is asked to poll (TTL-4).
	SetPollInterval(ctx context.Context, d time.Duration) error
	// RespondNow says what the model is told for now (CRE-4), if the answer to the request
	// still waits for it. The first call counts.
	RespondNow(text string)
}

// line is the Line of one run.
type line struct {
	engine *Engine
	live   *live
	token  json.RawMessage // the progress token as the requestor wrote it; nil if there is none

	reporting sync.Mutex // held while progress is told, so that it does not go back
}

func (r *line) SetRemote(ctx context.Context, id string) error {
	return r.engine.change(ctx, r.live, func(t *task.Task) (*task.Task, error) { return t.RunAs(id) })
}

func (r *line) Say(message string) { r.live.progress.Store(&message) }

func (r *line) SetMessage(ctx context.Context, message string) error {
	message = bounded(message)
	return r.engine.change(ctx, r.live, func(t *task.Task) (*task.Task, error) {
		r.live.said.Store(&message)
		if t.Status == task.InputRequired { // shown once that is over
			return nil, nil
		}
		return t.To(t.Status, message, r.engine.now())
	})
}

func (r *line) SetPollInterval(ctx context.Context, d time.Duration) error {
	err := r.engine.change(ctx, r.live, func(t *task.Task) (*task.Task, error) { return t.PollEvery(d) })
	if err == nil {
		r.live.pace(d)
	}
	return err
}

func (r *line) Report(progress, total float64, message string) {
	if math.IsNaN(progress) || math.IsInf(progress, 0) {
		return
	}
	report := struct {
		Token    json.RawMessage `json:"progressToken"`
		Progress float64         `json:"progress"`
		Total    *float64        `json:"total,omitempty"`
		Message  string          `json:"message,omitempty"`
	}{r.token, progress, nil, message}
	if total != 0 && !math.IsNaN(total) && !math.IsInf(total, 0) {
		report.Total = &total
	}
	if r.token == nil {
		r.reporting.Lock()
		defer r.reporting.Unlock()
		if r.advances(progress) {
			r.Say(Describe(progress, report.Total, message))
		}
		return
	}
	r.Notify(protocol.MethodProgress, protocol.Marshal(report))
}

func (r *line) RespondNow(text string) {
	select {
	case r.live.immediate <- text:
	default:
	}
}

func (r *line) Ask(method string, params json.RawMessage, reply func(task.Outcome)) (withdraw func(), err error) {
	return r.engine.ask(r.live, method, params, reply)
}

func (r *line) Call(ctx context.Context, method string, params json.RawMessage) (task.Outcome, error) {
	return await(ctx, func(reply func(task.Outcome)) (func(), error) { return r.engine.call(r.live, method, params, reply) })
}

func (r *line) Host(id string) (done func()) { return r.engine.host(r.live, id) }

func (r *line) Notify(method string, params json.RawMessage) {
	switch method {
	case protocol.MethodProgress:
		r.reporting.Lock()
		defer r.reporting.Unlock()
		var ok bool
		if params, ok = r.progress(params); !ok {
			return
		}
	case protocol.MethodCancelled, protocol.MethodInitialized, protocol.MethodTasksStatus:
		return // about the upstream's own requests and tasks
	}
	r.engine.tell(r.live, Event{Task: r.live.ref.ID, Method: method, Params: params})
}

// progress returns what to pass on of the params of a progress notification, if anything.
func (r *line) progress(params json.RawMessage) (json.RawMessage, bool) {
	given := protocol.Get(params, "progressToken")
	if r.token == nil || !SameToken(given, r.token) {
		return nil, false
	}
	var report struct {
		Progress float64
		Total    *float64
		Message  string
	}
	if json.Unmarshal(params, &report) != nil {
		return nil, false
	}
	if !r.advances(report.Progress) {
		return nil, false
	}
	if text := Describe(report.Progress, report.Total, report.Message); text != "" {
		r.Say(text)
	}
	if !bytes.Equal(given, r.token) { // 1 and 1.0 are one token, written differently
		if as, err := protocol.Set(params, "progressToken", r.token); err == nil {
			params = as
		}
	}
	return params, true
}

// advances reports whether progress is to be told: it never goes back (PROG-1).
func (r *line) advances(progress float64) bool {
	a := &r.live.audience
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over || a.spoke && progress < a.told {
		return false
	}
	a.told, a.spoke = progress, true
	return true
}

// SameToken reports whether two progress tokens are one, however they are written.
func SameToken(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	if s, ok := protocol.Unquote(a); ok {
		other, ok := protocol.Unquote(b)
		return ok && s == other
	}
	x, err1 := strconv.ParseFloat(string(a), 64)
	y, err2 := strconv.ParseFloat(string(b), 64)
	return err1 == nil && err2 == nil && x == y
}

// Describe makes progress a text such as "3/8: computing".
func Describe(progress float64, total *float64, message string) string {
	text := strconv.FormatFloat(progress, 'f', -1, 64)
	switch {
	case total != nil:
		text += "/" + strconv.FormatFloat(*total, 'f', -1, 64)
	case message != "": // without a total the number says little
		return bounded(message)
	}
	if message != "" {
		text += ": " + message
	}
	return bounded(text)
}

func progressToken(params json.RawMessage) json.RawMessage {
	return protocol.Get(protocol.Get(params, "_meta"), "progressToken")
}
