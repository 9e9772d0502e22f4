package main

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// asker takes the server's questions, on whatever stream they come (INP-5), and hands them on
// one at a time, in their order.
type asker struct {
	show   *display
	status *status
	wake   chan struct{} // receives when there may be a question to hand on

	mu      sync.Mutex
	waiting []*question     // not handed on yet
	visited map[string]bool // ids of elicitations in URL mode that were accepted
}

func newAsker(show *display, s *status) *asker {
	return &asker{show: show, status: s, wake: make(chan struct{}, 1), visited: map[string]bool{}}
}

// peer is the client's side of a command that answers.
func (a *asker) peer() peer {
	p := peer{
		capabilities: mcp.ClientCapabilities{Elicitation: &mcp.ElicitationCapabilities{
			Form: &mcp.FormElicitationCapabilities{}, URL: &mcp.URLElicitationCapabilities{},
		}},
		notified: a.notified,
		handlers: map[string]client.Handler{protocol.MethodElicit: a.elicit},
	}
	if !a.status.quiet {
		p.level = "info"
	}
	return p
}

// elicit takes a question of the server, which is answered once somebody has.
func (a *asker) elicit(ctx context.Context, params json.RawMessage) client.Answer {
	q, refused := parseQuestion(params)
	if refused != nil {
		a.show.line("The server asks for something that cannot be asked here: %s", brief(refused.Message))
		return client.Answered(nil, refused)
	}
	a.enter(q)
	return func() (json.RawMessage, error) {
		defer a.exit(q)
		select {
		case <-q.answered:
			return q.reply.result, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// enter takes a question.
func (a *asker) enter(q *question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting = append(a.waiting, q)
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// exit is the end of a question.
func (a *asker) exit(q *question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.close(q)
	close(q.gone)
}

func (a *asker) close(q *question) {
	a.waiting = slices.DeleteFunc(a.waiting, func(other *question) bool { return other == q })
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
