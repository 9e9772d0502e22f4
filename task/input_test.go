package task_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coatcheck/coatcheck/task"
)

// TestAskAnswer asks and answers at random, and keeps the questions as a store does.
func TestAskAnswer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		cur := &task.Task{Revision: 1, Status: task.Working, CreatedAt: now, UpdatedAt: now, Owner: "o"}
		stored := map[string]task.InputRequest{}
		var open []string
		for n := range rapid.IntRange(1, 40).Draw(t, "events") {
			before := *cur
			before.Inputs = slices.Clone(cur.Inputs)
			var next *task.Task
			var err error
			var want task.InputRequest
			if len(open) == 0 || rapid.Bool().Draw(t, "ask") {
				params := json.RawMessage(fmt.Sprintf(`{"n":%d}`, n))
				want = task.InputRequest{Method: "m", Params: params}
				next, err = cur.Ask("m", params, "message", now)
				if err == nil && len(next.Inputs) == 1 {
					want.Key = next.Inputs[0].Key
				}
				if _, taken := stored[want.Key]; taken || want.Key == "" {
					t.Fatalf("key %q is not new", want.Key)
				}
				open = append(open, want.Key)
			} else {
				i := rapid.IntRange(0, len(open)-1).Draw(t, "answered")
				input := stored[open[i]]
				want = input
				want.Answer = &task.Outcome{Result: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n))}
				open = slices.Delete(open, i, i+1)
				next, err = cur.Answer(input, *want.Answer, len(open) > 0, "message", now)
				if input.Answer != nil {
					t.Fatal("the question given was changed")
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			if before.Status != cur.Status || before.Asked != cur.Asked || !slices.EqualFunc(before.Inputs, cur.Inputs, sameInput) {
				t.Fatal("a change changed the task it was made of")
			}
			if !slices.EqualFunc(next.Inputs, []task.InputRequest{want}, sameInput) {
				t.Fatalf("the change has %+v, want %+v alone", next.Inputs, want)
			}
			stored[want.Key] = want
			status := task.Working
			if len(open) > 0 {
				status = task.InputRequired
			}
			if next.Status != status || next.Asked != len(stored) || next.Revision != before.Revision+1 { // INP-1, INP-4
				t.Fatalf("with %d of %d open: %+v", len(open), len(stored), next)
			}
			cur = next
		}
		over, err := cur.To(task.Cancelled, "", now)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := over.Ask("m", nil, "", now); err == nil { // LIFE-3
			t.Fatal("a cancelled task asked")
		}
		if _, err := over.Answer(task.InputRequest{Key: "1"}, task.Outcome{}, false, "", now); err == nil {
			t.Fatal("a cancelled task took an answer")
		}
	})
}

func sameInput(a, b task.InputRequest) bool {
	if (a.Answer == nil) != (b.Answer == nil) || a.Answer != nil && string(a.Answer.Result) != string(b.Answer.Result) {
		return false
	}
	return a.Key == b.Key && a.Method == b.Method && string(a.Params) == string(b.Params)
}
