package main

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// TestQueue: questions are handed on one at a time, in their order, those that are equal too.
// One that is withdrawn is gone, and is not asked any more.
func TestQueue(t *testing.T) {
	show, _ := onScreen(t)
	a := newAsker(show, newStatus(show))
	elicit := func(message string) (answer client.Answer, withdraw func()) {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		return a.elicit(ctx, json.RawMessage(`{"message":"`+message+`"}`)), cancel
	}
	first, _ := elicit("Delete?")
	twin, withdraw := elicit("Delete?")
	never, withdrawNever := elicit("Never?")
	last, _ := elicit("Keep?")

	withdrawNever()
	if _, err := never(); !errors.Is(err, context.Canceled) {
		t.Errorf("what was withdrawn is answered: %v", err)
	}
	q1, q2, q3 := a.next(), a.next(), a.next()
	if q1 == nil || q2 == nil || q3 == nil || q1 == q2 || a.next() != nil {
		t.Fatalf("asked %v, %v, %v", q1, q2, q3)
	}
	if q1.message != "Delete?" || q2.message != "Delete?" || q3.message != "Keep?" {
		t.Errorf("asked %s, %s, %s", q1.message, q2.message, q3.message)
	}
	a.answer(q3, accepted)
	a.answer(q1, declined)
	withdraw()
	if _, err := twin(); !errors.Is(err, context.Canceled) {
		t.Errorf("the twin is answered: %v", err)
	}
	<-q2.gone
	for want, answer := range map[string]client.Answer{string(declined.result): first, string(accepted.result): last} {
		if got, err := answer(); err != nil || string(got) != want {
			t.Errorf("answered %s, %v, want %s", got, err, want)
		}
	}
}

// TestRefused: what cannot be asked is an error of the request.
func TestRefused(t *testing.T) {
	show, _ := onScreen(t)
	a := newAsker(show, newStatus(show))
	for _, c := range []struct {
		params string
		code   int64
	}{
		{`[]`, protocol.CodeInvalidParams},
		{`{"mode":"voice"}`, protocol.CodeInvalidParams},
		{`{"mode":"url","url":"javascript:alert(1)"}`, protocol.CodeInvalidParams},
		{`{"mode":"url","url":"https://a.example/\u202e"}`, protocol.CodeInvalidParams},
		{`{"requestedSchema":{"properties":{"a":{"type":"null"}}}}`, protocol.CodeInvalidParams},
	} {
		_, err := a.elicit(t.Context(), json.RawMessage(c.params))()
		if wire, ok := errors.AsType[*jsonrpc.Error](err); !ok || wire.Code != c.code {
			t.Errorf("%s: %v, want code %d", c.params, err, c.code)
		}
	}
}
