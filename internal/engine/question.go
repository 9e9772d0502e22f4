package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// maxOpen bounds the questions that one task may have open.
const maxOpen = 100

// askPrefix begins the id of each question that a requestor is asked. The rest says what it
// is about, so that an answer finds its task on any stream, and after a restart.
const askPrefix = "coatcheck/"

func newAskID(q question) string {
	return askPrefix + q.task + "/" + q.key + "/" + rand.Text()[:8]
}

// IsAsk reports whether a JSON-RPC id is one of ours, so that the response is for Answer.
func IsAsk(id string) bool {
	_, ok := parseAskID(id)
	return ok
}

// AskedBy returns the id of the task that asked a question under the JSON-RPC id given, or ""
// if none did.
func AskedBy(id string) string {
	q, _ := parseAskID(id)
	if strings.HasPrefix(q.task, plainPrefix) {
		return ""
	}
	return q.task
}

func parseAskID(id string) (q question, ok bool) {
	rest, ok := strings.CutPrefix(id, askPrefix)
	if !ok {
		return q, false
	}
	end := strings.LastIndexByte(rest, '/')
	if end < 0 {
		return q, false
	}
	slash := strings.LastIndexByte(rest[:end], '/')
	if slash <= 0 {
		return q, false
	}
	return question{task: rest[:slash], key: rest[slash+1 : end]}, true
}

// withdrawn is recorded as the answer to a question that its asker gave up.
var withdrawn = task.Outcome{Error: protocol.Errorf(protocol.CodeRequestCancelled, "The server withdrew its request").JSON()}

// ask stores a question of the work and puts it to the requestor.
func (e *Engine) ask(l *live, method string, params []byte, reply func(task.Outcome)) (withdraw func(), err error) {
	if refused := refusal(l.initialize, method, params); refused != nil {
		return nil, refused
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	q := &openQuestion{reply: reply}
	err = e.changeLocked(context.Background(), l, func(t *task.Task) (*task.Task, error) {
		if l.openCount() >= maxOpen {
			return nil, protocol.Errorf(protocol.CodeInternalError, "too many requests are open")
		}
		if limit.Exceeds(t.Asked+1, l.limits.Inputs) {
			return nil, protocol.Errorf(protocol.CodeInternalError, "the task has made as many requests as it may: %d", l.limits.Inputs)
		}
		input := task.InputRequest{Method: method, Params: params}
		next, err := t.Ask(method, params, waitingFor(input), e.now())
		if err == nil {
			q.input = next.Inputs[0]
		}
		return next, err
	})
	switch {
	case errors.Is(err, errLost), errors.Is(err, task.ErrTerminal):
		return nil, errTaskOver
	case err != nil:
		return nil, err
	}
	q.name, q.at = question{l.ref.ID, q.input.Key}, e.opts.Now()
	e.recordLive(l, audit.Event{Kind: audit.Asked, Reason: method})
	e.tracing.ask(l, q)
	l.audience.mu.Lock()
	l.audience.open = append(l.audience.open, q)
	e.offer(l, q)
	l.audience.mu.Unlock()
	return func() { e.withdraw(l, q) }, nil
}

func (l *live) openCount() int {
	l.audience.mu.Lock()
	defer l.audience.mu.Unlock()
	return len(l.audience.open)
}

// find returns an open question and whether others are.
func (l *live) find(key string) (q *openQuestion, others bool) {
	l.audience.mu.Lock()
	defer l.audience.mu.Unlock()
	i := slices.IndexFunc(l.audience.open, func(q *openQuestion) bool { return q.name.key == key })
	if i < 0 {
		return nil, len(l.audience.open) > 0
	}
	return l.audience.open[i], len(l.audience.open) > 1
}

// withdraw closes a question whose asker gave it up.
func (e *Engine) withdraw(l *live, q *openQuestion) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if found, _ := l.find(q.name.key); found != q {
		return
	}
	err := e.answerLocked(context.Background(), l, q, withdrawn)
	if err != nil && !errors.Is(err, errLost) && !errors.Is(err, errAnswered) {
		e.opts.Logger.Error("recording that a request was withdrawn failed", "task", audit.Hash(l.ref.ID), "error", err)
	}
	e.closeQuestion(l, q, "")
	q.dropped()
}

// answerLocked stores an answer to an open question.
func (e *Engine) answerLocked(ctx context.Context, l *live, q *openQuestion, answer task.Outcome) error {
	return e.changeLocked(ctx, l, func(t *task.Task) (*task.Task, error) {
		found, others := l.find(q.name.key)
		if found != q {
			return nil, errAnswered // by way of another process, as it turned out
		}
		return t.Answer(q.input, answer, others, l.afterAnswer(q, others), e.now())
	})
}

// afterAnswer returns the statusMessage once a question is answered.
func (l *live) afterAnswer(answered *openQuestion, others bool) string {
	if !others {
		return l.message()
	}
	l.audience.mu.Lock()
	defer l.audience.mu.Unlock()
	for _, q := range l.audience.open {
		if q != answered {
			return waitingFor(q.input)
		}
	}
	return ""
}

var (
	errTaskOver = protocol.Errorf(protocol.CodeInternalError, "the task is over")
	errAnswered = errors.New("the question is answered")
)

// Answer takes what a requestor answered to a question under the id it was asked, and gives
// it to the work once it is stored. An answer to a question that is answered already changes
// nothing and is no error.
//
// Errors: store.ErrNotFound (also for another's), store.ErrExpired, task.ErrTerminal with the
// task as it ended, or a *protocol.Error that says what is wrong with the answer: then the
// question stays open, and is asked again on the stream on which it was.
func (e *Engine) Answer(ctx context.Context, p task.Principal, id string, answer task.Outcome) (*task.Task, error) {
	name, ok := parseAskID(id)
	if !ok {
		return nil, store.ErrNotFound
	}
	ref := task.Ref{Principal: p, ID: name.task}
	if name.isCall() {
		return nil, e.answerCall(ref, name, id, answer)
	}
	for {
		l := e.liveTask(ref)
		if l == nil {
			t, err := e.answerElsewhere(ctx, ref, name, id, answer)
			switch {
			case errors.Is(err, store.ErrConflict):
				continue
			case errors.Is(err, errAnswered):
				return nil, e.tooLate(ctx, ref, name, answer)
			}
			return t, err
		}
		if _, err := unexpired(l.state.Load(), nil, e.now()); err != nil {
			return nil, err
		}
		switch err := e.answerLive(ctx, l, name, id, answer); {
		case errors.Is(err, errAnswered):
			return nil, e.tooLate(ctx, ref, name, answer)
		case !errors.Is(err, errLost):
			return nil, err
		}
	}
}

func (e *Engine) answerLive(ctx context.Context, l *live, name question, id string, answer task.Outcome) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return errLost
	}
	q, _ := l.find(name.key)
	if q == nil {
		return errAnswered
	}
	if err := misshapen(q.input, answer); err != nil {
		e.askAgain(l, q, id)
		return protocol.Errorf(protocol.CodeInvalidParams, "Invalid answer to %s: %v", q.input.Method, err)
	}
	if err := e.answerLocked(ctx, l, q, answer); err != nil {
		return err
	}
	e.closeQuestion(l, q, id)
	q.answered(answer)
	e.recordOf(ctx, l.state.Load(), audit.Event{Kind: audit.Answered, Tool: l.tool, Reason: q.input.Method, Duration: e.opts.Now().Sub(q.at)})
	q.reply(answer)
	return nil
}

// askAgain puts a question again to who answered it wrongly.
func (e *Engine) askAgain(l *live, q *openQuestion, id string) {
	l.audience.mu.Lock()
	defer l.audience.mu.Unlock()
	streams := l.audience.feeds
	if f := e.outlets.at(l.home); f != nil {
		streams = append(slices.Clone(streams), f)
	}
	for _, f := range streams {
		if f.refused(q.name, id) {
			if !e.askOn(q, f) && q.on == f {
				q.on = nil
			}
			return
		}
	}
}

// askWatchersAgain is askAgain for a task that another process runs.
func (e *Engine) askWatchersAgain(ref task.Ref, q *openQuestion, id string) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for w := range e.watchers[ref] {
		if w.feed.refused(q.name, id) {
			w.feed.ask(q)
		}
	}
}

// answerElsewhere stores an answer for a task that another process runs, which finds it there.
func (e *Engine) answerElsewhere(ctx context.Context, ref task.Ref, name question, id string, answer task.Outcome) (*task.Task, error) {
	t, err := unexpiredFrom(e.store.Load(ctx, ref))(e.now())
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(t.Inputs, func(in task.InputRequest) bool { return in.Key == name.key })
	switch {
	case t.Status.Terminal():
		if i >= 0 && t.Inputs[i].Answer != nil {
			return nil, errAnswered
		}
		return t, task.ErrTerminal
	case i < 0 || t.Inputs[i].Answer != nil:
		return nil, errAnswered
	}
	input := t.Inputs[i]
	if err := misshapen(input, answer); err != nil {
		e.askWatchersAgain(ref, &openQuestion{name: name, input: input}, id)
		return nil, protocol.Errorf(protocol.CodeInvalidParams, "Invalid answer to %s: %v", input.Method, err)
	}
	message, others := runningMessage, false
	for _, other := range t.Inputs {
		if other.Answer == nil && other.Key != name.key {
			message, others = waitingFor(other), true
			break
		}
	}
	next, err := t.Answer(input, answer, others, message, e.now())
	if err != nil {
		return t, err
	}
	if err := e.store.Update(context.WithoutCancel(ctx), next); err != nil {
		return nil, err
	}
	e.recordOf(ctx, next, audit.Event{Kind: audit.Answered, Reason: input.Method})
	return nil, nil
}

// resumeAnswered gives the work the answers that came by way of another process. l.mu is
// held, and t is the task as stored.
func (e *Engine) resumeAnswered(l *live, t *task.Task) {
	for _, input := range t.Inputs {
		if input.Answer == nil {
			continue
		}
		if q, _ := l.find(input.Key); q != nil {
			e.closeQuestion(l, q, "")
			q.answered(*input.Answer)
			q.reply(*input.Answer)
		}
	}
}
