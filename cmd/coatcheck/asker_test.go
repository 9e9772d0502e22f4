package main

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/coatcheck/coatcheck/protocol"
)

// asked has an asker requested, and returns what it answers once the request has ended.
func asked(ctx context.Context, t *testing.T, a *asker, message string) <-chan string {
	t.Helper()
	replies := make(chan string, 1)
	entered := make(chan struct{})
	go func() {
		q, refused := parseQuestion(json.RawMessage(`{"message":"` + message + `"}`))
		if refused != nil {
			t.Error(refused)
		}
		q = a.enter(q)
		close(entered)
		reply := "withdrawn"
		select {
		case <-q.answered:
			reply = string(q.reply.result)
		case <-ctx.Done():
		}
		a.exit(q)
		replies <- reply
	}()
	<-entered
	return replies
}

// TestAskedAgain: what is open when its stream drops and is asked again on the next is one
// question, which both requests answer. Two that are asked on one stream are two.
func TestAskedAgain(t *testing.T) {
	show, _ := onScreen(t)
	a := newAsker(show, newStatus(show))
	a.opened()
	dropped, drop := context.WithCancel(t.Context())
	first := asked(dropped, t, a, "Delete?")
	twin := asked(t.Context(), t, a, "Delete?")
	q, q2 := a.next(), a.next()
	if q == nil || q2 == nil || q == q2 || a.next() != nil {
		t.Fatalf("asked at once: %v and %v", q, q2)
	}
	a.answer(q2, declined)
	if got := <-twin; got != `{"action":"decline"}` {
		t.Errorf("the twin is answered %s", got)
	}

	a.opened()
	again := asked(t.Context(), t, a, "Delete?")
	other := asked(t.Context(), t, a, "Keep?")
	drop()
	if got := <-first; got != "withdrawn" {
		t.Errorf("the dropped request is answered %s", got)
	}
	select {
	case <-q.gone:
		t.Error("the question is gone though it is asked again")
	default:
	}
	if next := a.next(); next == nil || next.message != "Keep?" {
		t.Fatalf("asked next: %+v", next)
	} else {
		a.answer(next, accepted)
	}
	a.answer(q, acceptedWith(json.RawMessage(`{}`)))
	if got, want := <-again, `{"action":"accept","content":{}}`; got != want {
		t.Errorf("the repeated request is answered %s, want %s", got, want)
	}
	<-other

	// What was answered and is asked again, because it was refused, is a question anew.
	a.opened()
	ctx, withdraw := context.WithCancel(t.Context())
	refused := asked(ctx, t, a, "Delete?")
	third := a.next()
	if third == nil || third == q {
		t.Fatalf("asked after the answer: %+v", third)
	}
	withdraw()
	<-refused
	<-third.gone
	if a.next() != nil || len(a.open) != 0 {
		t.Errorf("%d questions are left", len(a.open))
	}
}

// TestRefused: what cannot be asked is an error of the request; what is not asked at all too.
func TestRefused(t *testing.T) {
	show, _ := onScreen(t)
	a := newAsker(show, newStatus(show))
	for _, c := range []struct {
		method, params string
		code           int64
	}{
		{protocol.MethodElicit, `[]`, protocol.CodeInvalidParams},
		{protocol.MethodElicit, `{"mode":"voice"}`, protocol.CodeInvalidParams},
		{protocol.MethodElicit, `{"mode":"url","url":"javascript:alert(1)"}`, protocol.CodeInvalidParams},
		{protocol.MethodElicit, `{"mode":"url","url":"https://a.example/\u202e"}`, protocol.CodeInvalidParams},
		{protocol.MethodElicit, `{"requestedSchema":{"properties":{"a":{"type":"null"}}}}`, protocol.CodeInvalidParams},
		{protocol.MethodCreateMessage, `{}`, protocol.CodeMethodNotFound},
		{protocol.MethodListRoots, `{}`, protocol.CodeMethodNotFound},
	} {
		_, err := a.requested(t.Context(), c.method, json.RawMessage(c.params))()
		if err == nil || err.Code != c.code {
			t.Errorf("%s %s: %v, want code %d", c.method, c.params, err, c.code)
		}
	}
	if result, err := a.requested(t.Context(), protocol.MethodPing, nil)(); err != nil || string(result) != "{}" {
		t.Errorf("ping: %s, %v", result, err)
	}
}

// Two equal questions that are open when the stream drops are two when they are asked again.
func TestTwinsAskedAgain(t *testing.T) {
	show, _ := onScreen(t)
	a := newAsker(show, newStatus(show))
	a.opened()
	dropped, drop := context.WithCancel(t.Context())
	asked(dropped, t, a, "Delete?")
	asked(dropped, t, a, "Delete?")
	q1, q2 := a.next(), a.next()
	a.opened()
	first, second := asked(t.Context(), t, a, "Delete?"), asked(t.Context(), t, a, "Delete?")
	drop()
	if q := a.next(); q != nil {
		t.Errorf("%s is asked a third time", q.params)
	}
	a.answer(q1, accepted)
	if got := <-first; got != string(accepted.result) {
		t.Errorf("the first is answered %s", got)
	}
	a.answer(q2, declined)
	if got := <-second; got != string(declined.result) {
		t.Errorf("the second is answered %s", got)
	}
}
