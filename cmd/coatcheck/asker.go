package main

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/coatcheck/coatcheck/internal/session"
	"github.com/coatcheck/coatcheck/protocol"
)

// canAnswer is the capabilities of a command that answers questions.
const canAnswer = `{"elicitation":{"form":{},"url":{}}}`

// asker takes the server's questions, on whatever stream they come (INP-5), and hands them on
// one at a time, in their order.
type asker struct {
	show   *display
	status *status
	wake   chan struct{} // receives when there may be a question to hand on

	mu      sync.Mutex
	streams int             // how many tasks/result were opened
	waiting []*question     // not handed on yet
	open    []*question     // not answered yet
	visited map[string]bool // ids of elicitations in URL mode that were accepted
}

func newAsker(show *display, s *status) *asker {
	return &asker{show: show, status: s, wake: make(chan struct{}, 1), visited: map[string]bool{}}
}

// peer is the client's side of a command that answers.
func (a *asker) peer() peer {
	p := peer{capabilities: json.RawMessage(canAnswer), notified: a.notified, requested: a.requested}
	if !a.status.quiet {
		p.level = "info"
	}
	return p
}

// requested takes a request of the server, which is answered once somebody has.
func (a *asker) requested(ctx context.Context, method string, params json.RawMessage) session.Answer {
	if method != protocol.MethodElicit {
		return session.Refuse(ctx, method, params)
	}
	q, refused := parseQuestion(params)
	if refused != nil {
		a.show.line("The server asks for something that cannot be asked here: %s", brief(refused.Message))
		return session.Answered(nil, refused)
	}
	q = a.enter(q)
	return func() (json.RawMessage, *protocol.Error) {
		defer a.exit(q)
		select {
		case <-q.answered:
			return q.reply.result, nil
		case <-ctx.Done():
			return nil, protocol.Errorf(protocol.CodeRequestCancelled, "the question was withdrawn")
		}
	}
}

// enter takes a question. One that was open when its stream dropped and is asked again on the
// next is one question: whoever is answering it must not begin again.
func (a *asker) enter(q *question) *question {
	a.mu.Lock()
	defer a.mu.Unlock()
	q.streams = a.streams
	for _, before := range a.open {
		if before.streams < q.streams && bytes.Equal(before.params, q.params) {
			before.asks++
			before.streams = q.streams // the next that is equal is another one
			return before
		}
	}
	q.asks = 1
	a.open = append(a.open, q)
	a.waiting = append(a.waiting, q)
	select {
	case a.wake <- struct{}{}:
	default:
	}
	return q
}

// exit is the end of a request for a question.
func (a *asker) exit(q *question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q.asks--; q.asks == 0 {
		a.close(q)
		close(q.gone)
	}
}

func (a *asker) close(q *question) {
	same := func(other *question) bool { return other == q }
	a.open = slices.DeleteFunc(a.open, same)
	a.waiting = slices.DeleteFunc(a.waiting, same)
}

// next returns the question that is to be asked next, nil if there is none.
func (a *asker) next() *question {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.waiting) == 0 {
		return nil
	}
	q := a.waiting[0]
	a.waiting = a.waiting[1:]
	return q
}

// answer answers a question. It is called once.
func (a *asker) answer(q *question, with answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.close(q)
	if q.id != "" && bytes.Equal(with.result, accepted.result) {
		a.visited[q.id] = true
	}
	q.reply = with
	close(q.answered)
}

// opened says that a stream is opened on which open questions are asked again.
func (a *asker) opened() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams++
}

// notified takes a notification of the server.
func (a *asker) notified(method string, params json.RawMessage) {
	if method != protocol.MethodElicitComplete {
		a.status.notified(method, params)
		return
	}
	id, _ := protocol.Unquote(protocol.Get(params, "elicitationId"))
	a.mu.Lock()
	known := a.visited[id]
	delete(a.visited, id)
	a.mu.Unlock()
	if known {
		a.show.line("Done in the browser, says the server.")
	}
}
