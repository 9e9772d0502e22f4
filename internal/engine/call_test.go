package engine

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store/memory"
	"github.com/coatcheck/coatcheck/task"
)

// CAN-2: an answer with a task that comes after its question was withdrawn, while the call goes on, is
// nobody's: the requestor is to cancel that task. One that comes twice is fine.
func TestAnswerAfterWithdrawal(t *testing.T) {
	e, err := New(context.Background(), Options{Store: memory.New(), Runner: make(lines)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shutDown(t, e) })
	p := e.Plain(Listener{
		Principal: "alice", Session: "s",
		Initialize: json.RawMessage(`{"capabilities":{"sampling":{},"tasks":{"cancel":{},"requests":{"sampling":{"createMessage":{}}}}}}`),
	})
	defer p.Close()
	p.Speak()
	ask := func() (id string, answers chan task.Outcome, withdraw func()) {
		answers = make(chan task.Outcome, 1)
		withdraw, err := p.Ask(protocol.MethodCreateMessage, json.RawMessage(`{"messages":[],"maxTokens":1,"task":{}}`), func(o task.Outcome) { answers <- o })
		if err != nil {
			t.Fatal(err)
		}
		ev, err := p.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return ev.Ask, answers, withdraw
	}
	answer := func(id, made string) error {
		_, err := e.Answer(t.Context(), "alice", id, task.Outcome{Result: json.RawMessage(`{"task":{"taskId":"` + made + `","status":"working"}}`)})
		return err
	}
	id, answers, _ := ask()
	for range 2 {
		if err := answer(id, "taken"); err != nil {
			t.Errorf("an answer: %v", err)
		}
	}
	if got := <-answers; created(got) != "taken" {
		t.Errorf("answered with %s", got.Result)
	}
	id, _, withdraw := ask()
	withdraw()
	if err := answer(id, "nobody's"); !errors.Is(err, ErrOver) {
		t.Errorf("an answer that nobody waits for: %v", err)
	}
	if _, err := e.Answer(t.Context(), "alice", id, task.Outcome{Result: json.RawMessage(`{}`)}); err != nil {
		t.Errorf("one without a task: %v", err)
	}
}
