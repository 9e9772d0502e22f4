// Package requestor is the requestor's half of the protocol for servers: it has the client
// run a request as a task of its own, and sees it through.
package requestor

import (
	"context"
	cryptorand "crypto/rand"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

const (
	defaultPoll = time.Second
	minPoll     = 100 * time.Millisecond
	maxPoll     = 30 * time.Second
	// patience bounds requests whose answer is due at once.
	patience = 30 * time.Second
	// maxNonsense is how often in a row the other side may answer with nonsense.
	maxNonsense = 5
)

// Line carries requests to the other side; see engine.Line.
type Line interface {
	Ask(method string, params json.RawMessage, reply func(task.Outcome)) (withdraw func(), err error)
	Call(ctx context.Context, method string, params json.RawMessage) (task.Outcome, error)
	Host(id string) (done func())
}

// Do makes a request as a task of the other side and returns what it ends with (FLOW-3).
// ttl 0 leaves its lifetime to the other side. An idempotency key keeps it one task, where the
// other side heeds that, however often it is asked for. When ctx is done the task is cancelled there.
// The error is ctx's, or a *protocol.Error of the line.
func Do(ctx context.Context, line Line, method string, params json.RawMessage, ttl time.Duration) (task.Outcome, error) {
	augmentation := struct {
		TTL int64 `json:"ttl,omitempty"`
	}{ttl.Milliseconds()}
	params, err := protocol.Set(params, "task", protocol.Marshal(augmentation))
	if err != nil {
		return task.Outcome{}, err
	}
	// A question is asked again on each new stream until it is answered.
	key := protocol.AppendString(nil, cryptorand.Text())
	if params, err = protocol.SetMeta(params, protocol.MetaIdempotencyKey, key); err != nil {
		return task.Outcome{}, err
	}
	created, err := ask(ctx, line, method, params)
	if err != nil || created.Error != nil {
		return created, err
	}
	raw := protocol.Get(created.Result, "task")
	if raw == nil { // it may run it plainly (CAP-5)
		return created, nil
	}
	state, err := readState(raw)
	if err != nil {
		return task.Outcome{}, protocol.Errorf(protocol.CodeInternalError, "The client answered with a malformed task: %v", err)
	}
	h := &hosted{line: line, id: state.TaskID, about: protocol.Marshal(map[string]string{"taskId": state.TaskID})}
	return h.follow(ctx, state)
}

// hosted is a task that the other side runs.
type hosted struct {
	line     Line
	id       string
	about    json.RawMessage // params of requests about it
	nonsense int             // answers in a row that make no sense
	quiet    time.Time       // until when it is not asked about: it was refused for a limit
	ended    time.Time       // since when it is said to have ended, without a break
}

// follow waits for the task's outcome: tasks/result is out all the time, and survives what
// the line survives; tasks/get is asked beside it (GET-2, GET-3).
func (h *hosted) follow(ctx context.Context, state *protocol.Task) (task.Outcome, error) {
	done := h.line.Host(h.id)
	defer done()
	results := make(chan task.Outcome, 1)
	collect := func() (withdraw func(), err error) {
		return h.line.Ask(protocol.MethodTasksResult, h.about, func(o task.Outcome) { results <- o })
	}
	withdraw, err := collect()
	if err != nil {
		h.cancel(ctx)
		return task.Outcome{}, err
	}
	var again <-chan time.Time // when tasks/result, which was refused for a limit, is to be asked again
	for {
		poll := time.NewTimer(max(interval(state.PollInterval), time.Until(h.quiet)))
		select {
		case outcome := <-results:
			poll.Stop()
			wait, limited := busy(outcome)
			if !limited {
				return outcome, nil
			}
			again = time.After(wait)
		case <-again:
			poll.Stop()
			again = nil
			if withdraw, err = collect(); err != nil {
				h.cancel(ctx)
				return task.Outcome{}, err
			}
		case <-ctx.Done():
			poll.Stop()
			withdraw()
			h.cancel(ctx)
			return task.Outcome{}, ctx.Err()
		case <-poll.C:
			next, end := h.poll(ctx)
			if end != nil {
				withdraw()
				return *end, nil
			}
			if next != nil {
				state = next
			}
		}
	}
}

// poll asks where the task stands. end is set if there is nothing more to wait for.
func (h *hosted) poll(ctx context.Context) (state *protocol.Task, end *task.Outcome) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := h.line.Call(ctx, protocol.MethodTasksGet, h.about)
	if err != nil {
		h.ended = time.Time{}
		return nil, nil // nobody listens now; what the task ends with comes once someone does
	}
	if answer.Error == nil {
		if state, err = readState(answer.Result); err == nil && state.TaskID == h.id {
			h.nonsense = 0
			return state, h.overdue(state)
		}
	} else if wait, limited := busy(answer); limited {
		h.quiet = time.Now().Add(wait)
		return nil, nil
	} else if code := protocol.Get(answer.Error, "code"); string(code) == "-32602" { // ERR-1: unknown, or expired
		return nil, &answer
	}
	if h.nonsense++; h.nonsense < maxNonsense {
		return nil, nil
	}
	if answer.Error != nil {
		return nil, &answer
	}
	o := refuse("The client's answers about its task make no sense")
	return nil, &o
}

// overdue ends the waiting for a result that does not come.
func (h *hosted) overdue(state *protocol.Task) (end *task.Outcome) {
	if !task.Status(state.Status).Terminal() {
		return nil
	}
	if h.ended.IsZero() {
		h.ended = time.Now()
	}
	if time.Since(h.ended) < patience {
		return nil
	}
	o := refuse("The client's task is %s, but its result does not come", state.Status)
	return &o
}

// cancel has the other side stop (CAN-2), as far as it can be told.
func (h *hosted) cancel(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_, _ = h.line.Call(ctx, protocol.MethodTasksCancel, h.about)
}

func refuse(format string, args ...any) task.Outcome {
	return task.Outcome{Error: protocol.Errorf(protocol.CodeInternalError, format, args...).JSON()}
}

func readState(raw json.RawMessage) (*protocol.Task, error) {
	state := &protocol.Task{}
	if err := json.Unmarshal(raw, state); err != nil {
		return nil, err
	}
	switch task.Status(state.Status) {
	case task.Working, task.InputRequired, task.Completed, task.Failed, task.Cancelled:
		return state, nil
	}
	return nil, errors.New("its status is unknown")
}

// interval is what the other side suggests, within bounds, and never exactly.
func interval(ms *int64) time.Duration {
	wait := defaultPoll
	if ms != nil && *ms > 0 {
		wait = time.Duration(min(*ms, maxPoll.Milliseconds())) * time.Millisecond
	}
	return max(wait, minPoll)*9/10 + rand.N(max(wait, minPoll)/5)
}

func ask(ctx context.Context, line Line, method string, params json.RawMessage) (task.Outcome, error) {
	answers := make(chan task.Outcome, 1)
	withdraw, err := line.Ask(method, params, func(answer task.Outcome) { answers <- answer })
	if err != nil {
		return task.Outcome{}, err
	}
	select {
	case answer := <-answers:
		return answer, nil
	case <-ctx.Done():
		withdraw()
		select {
		case answer := <-answers: // of a task that is to be cancelled, perhaps
			return answer, nil
		default:
			return task.Outcome{}, ctx.Err()
		}
	}
}
