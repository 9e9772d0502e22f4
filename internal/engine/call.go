package engine

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// callPrefix begins the key of a request that is put to a requestor and not stored.
const callPrefix = "c"

func (q question) isCall() bool { return strings.HasPrefix(q.key, callPrefix) }

// calls are the requests about a requestor's own tasks that wait for its answer. Nobody
// misses them after a restart: they can be made again.
type calls struct {
	made   int
	open   []*openQuestion
	hosted []string // the requestor's tasks that are for this one alone, by id
	given  []string // those that answers named which somebody waited for
}

// call puts a request about a requestor's own task to it, on any stream of its session.
func (e *Engine) call(l *live, method string, params json.RawMessage, reply func(task.Outcome)) (withdraw func(), err error) {
	if refused := refusal(l.initialize, method, params); refused != nil {
		return nil, refused
	}
	l.audience.mu.Lock()
	defer l.audience.mu.Unlock()
	if l.audience.over {
		return nil, errTaskOver
	}
	if len(l.audience.calls.open) >= maxOpen {
		return nil, protocol.Errorf(protocol.CodeInternalError, "too many requests are open")
	}
	l.audience.calls.made++
	key := callPrefix + strconv.Itoa(l.audience.calls.made)
	q := &openQuestion{
		name:  question{l.ref.ID, key},
		input: task.InputRequest{Key: key, Method: method, Params: params},
		reply: reply,
	}
	l.audience.calls.open = append(l.audience.calls.open, q)
	e.offerCall(l, q)
	return func() {
		l.audience.mu.Lock()
		defer l.audience.mu.Unlock()
		if l.takeCall(q.name.key) != nil {
			e.takeBack(l, q, "")
		}
	}, nil
}

// offerCall puts a request that waits on one of the streams there are.
func (e *Engine) offerCall(l *live, q *openQuestion) {
	for _, f := range e.streams(l) {
		if e.askOn(q, f) {
			return
		}
	}
}

// streams returns those on which a task's requestor listens, the best first.
func (e *Engine) streams(l *live) []*Feed {
	all := slices.Clone(l.audience.feeds)
	slices.Reverse(all)
	if f := e.outlets.at(l.home); f != nil {
		all = append(all, f)
	}
	return all
}

// takeCall takes a request from those that are open; nil if it is not.
func (l *live) takeCall(key string) *openQuestion {
	open := l.audience.calls.open
	i := slices.IndexFunc(open, func(q *openQuestion) bool { return q.name.key == key })
	if i < 0 {
		return nil
	}
	q := open[i]
	l.audience.calls.open = slices.Delete(open, i, i+1)
	return q
}

// ErrOver is returned for an answer that nobody waits for any more: to a request of a call
// that is over, or with a task to a question that was withdrawn or has another answer.
var ErrOver = errors.New("nobody waits for the answer")

// answerCall gives the asker what a requestor answered, once.
func (e *Engine) answerCall(ref task.Ref, name question, id string, answer task.Outcome) error {
	l := e.liveTask(ref)
	if l == nil {
		if l = e.plainCall(ref); l == nil {
			return ErrOver
		}
	}
	l.audience.mu.Lock()
	defer l.audience.mu.Unlock()
	made := created(answer)
	if q := l.takeCall(name.key); q != nil {
		e.takeBack(l, q, id)
		if made != "" {
			l.audience.calls.given = append(l.audience.calls.given, made)
		}
		q.reply(answer) // not later: who withdraws it must know
		return nil
	}
	if made != "" && !slices.Contains(l.audience.calls.given, made) { // it was withdrawn
		return ErrOver
	}
	return nil
}

// Disown has a requestor that listens cancel the task that it created in answer to a question
// which came too late (CAN-2): nobody else knows of it.
func (e *Engine) Disown(l Listener, answer task.Outcome) {
	if f := e.outlets.at(place{l.Principal, l.Session}); f != nil {
		if id := created(answer); id != "" {
			e.cancelOn(f, plainPrefix, id)
		}
	}
}

// created returns the id of the task that a question is answered with, or "".
func created(answer task.Outcome) string {
	id, _ := protocol.Unquote(protocol.Get(protocol.Get(answer.Result, "task"), "taskId"))
	return id
}

// tooLate returns ErrOver if a question that is answered with a task was withdrawn, or has
// another answer.
func (e *Engine) tooLate(ctx context.Context, ref task.Ref, name question, answer task.Outcome) error {
	id := created(answer)
	if id == "" {
		return nil
	}
	t, err := e.store.Load(ctx, ref)
	if err != nil {
		return err
	}
	for _, input := range t.Inputs {
		if input.Key == name.key && input.Answer != nil && created(*input.Answer) != id {
			return ErrOver
		}
	}
	return nil
}

// cancelOn has a requestor cancel its own task, if it does. Nobody waits for the answer.
func (e *Engine) cancelOn(f *Feed, asker, id string) {
	if refusal(f.listener.Initialize, protocol.MethodTasksCancel, nil) != nil {
		return
	}
	f.push(Event{
		Task: asker, Method: protocol.MethodTasksCancel, Params: protocol.Marshal(map[string]string{"taskId": id}),
		Ask: newAskID(question{asker, callPrefix}),
	})
}

// host notes that the requestor runs a task of its own for this one, to be cancelled there if
// this one ends first.
func (e *Engine) host(l *live, id string) (done func()) {
	l.audience.mu.Lock()
	defer l.audience.mu.Unlock()
	if l.audience.over {
		e.cancelHosted(l, id)
		return func() {}
	}
	l.audience.calls.hosted = append(l.audience.calls.hosted, id)
	return func() {
		l.audience.mu.Lock()
		defer l.audience.mu.Unlock()
		if i := slices.Index(l.audience.calls.hosted, id); i >= 0 {
			l.audience.calls.hosted = slices.Delete(l.audience.calls.hosted, i, i+1)
		}
	}
}

// silenceCalls takes back the requests of a task that is over, and has the requestor cancel
// the tasks that it ran for it (CAN-2). Nobody waits for the answers.
func (e *Engine) silenceCalls(l *live) {
	all := &l.audience.calls
	for _, q := range all.open {
		e.takeBack(l, q, "")
	}
	for _, id := range all.hosted {
		e.cancelHosted(l, id)
	}
	all.open, all.hosted, all.given = nil, nil, nil
}

// cancelHosted has a requestor cancel what it ran for a task that is over: on its session's
// own stream if there is one, since those of the task's calls are about to end.
func (e *Engine) cancelHosted(l *live, id string) {
	if streams := e.streams(l); len(streams) > 0 {
		e.cancelOn(streams[len(streams)-1], l.ref.ID, id)
	}
}

// await makes a call and waits for its answer.
func await(ctx context.Context, call func(reply func(task.Outcome)) (withdraw func(), err error)) (task.Outcome, error) {
	answers := make(chan task.Outcome, 1)
	withdraw, err := call(func(answer task.Outcome) { answers <- answer })
	if err != nil {
		return task.Outcome{}, err
	}
	select {
	case answer := <-answers:
		return answer, nil
	case <-ctx.Done():
		withdraw()
		return task.Outcome{}, ctx.Err()
	}
}
