package task_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coatcheck/coatcheck/task"
)

var statuses = []task.Status{task.Working, task.InputRequired, task.Completed, task.Failed, task.Cancelled}

func TestTransitions(t *testing.T) {
	allowed := map[task.Status][]task.Status{
		task.Working:       {task.InputRequired, task.Completed, task.Failed, task.Cancelled}, // LIFE-1
		task.InputRequired: {task.Working, task.Completed, task.Failed, task.Cancelled},       // LIFE-2
	} // LIFE-3: nothing else
	for _, from := range statuses {
		for _, to := range statuses {
			want := false
			for _, s := range allowed[from] {
				want = want || s == to
			}
			if got := from.CanBecome(to); got != want {
				t.Errorf("%s to %s: %v", from, to, got)
			}
		}
	}
}

// TestRandomEvents sends random events to a task and checks every step against the rules.
func TestRandomEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		cur := &task.Task{
			Ref: task.Ref{Principal: "p", ID: "t"}, Revision: 1, Status: task.Working, // CRE-3
			CreatedAt: now, UpdatedAt: now, Owner: "o",
			TTL: time.Duration(rapid.IntRange(0, 100).Draw(t, "ttl")) * time.Millisecond,
		}
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			now = now.Add(time.Duration(rapid.IntRange(0, 5_000_000).Draw(t, "ns")))
			before := *cur
			var next *task.Task
			var err error
			var want task.Status
			switch rapid.IntRange(0, 6).Draw(t, "event") {
			case 0:
				want = rapid.SampledFrom(statuses).Draw(t, "to")
				next, err = cur.To(want, "m", now)
			case 1:
				outcome := task.Outcome{Result: json.RawMessage(`{}`), IsError: rapid.Bool().Draw(t, "isError")}
				want = task.Completed
				if outcome.IsError {
					want = task.Failed // EXE-2
				}
				next, err = cur.Finish(outcome, "m", now)
			case 2:
				want = task.Failed // EXE-1
				next, err = cur.Finish(task.Outcome{Error: json.RawMessage(`{"code":1,"message":""}`)}, "m", now)
			case 3:
				want = cur.Status
				next, err = cur.OwnedBy("other")
			case 4:
				want = cur.Status
				next, err = cur.RunAs("remote")
			case 5:
				want = task.InputRequired // INP-1
				next, err = cur.Ask("elicitation/create", json.RawMessage(`{}`), "m", now)
			case 6:
				want = task.Working // INP-4
				others := rapid.Bool().Draw(t, "others")
				if others {
					want = task.InputRequired
				}
				next, err = cur.Answer(task.InputRequest{Key: "1"}, task.Outcome{Result: json.RawMessage(`{}`)}, others, "m", now)
			}
			if !reflect.DeepEqual(*cur, before) {
				t.Fatal("an event changed the task it was applied to")
			}
			switch {
			case cur.Status.Terminal(): // LIFE-3
				if !errors.Is(err, task.ErrTerminal) {
					t.Fatalf("a %s task took an event: %v", cur.Status, err)
				}
			case want != cur.Status && !cur.Status.CanBecome(want):
				if err == nil {
					t.Fatalf("%s became %s", cur.Status, want)
				}
			case err != nil:
				t.Fatalf("%s to %s: %v", cur.Status, want, err)
			}
			if err != nil {
				continue
			}
			if next.Status != want || next.Revision != cur.Revision+1 || next.Ref != cur.Ref || !next.CreatedAt.Equal(cur.CreatedAt) {
				t.Fatalf("from %+v to %+v", cur, next)
			}
			if next.UpdatedAt.Before(cur.UpdatedAt) || next.UpdatedAt.Nanosecond()%1e6 != 0 {
				t.Fatalf("updated at %v after %v", next.UpdatedAt, cur.UpdatedAt)
			}
			if next.Status.Terminal() != (next.Owner == "") {
				t.Fatalf("%s task is owned by %q", next.Status, next.Owner)
			}
			cur = next
		}
	})
}

func TestKeepUntil(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct{ ttl, until, limit, want time.Duration }{
		{time.Minute, time.Hour, 0, time.Hour},
		{time.Hour, time.Minute, 0, time.Hour},
		{time.Minute, time.Hour, 2 * time.Minute, 2 * time.Minute},
		{time.Hour, 2 * time.Hour, time.Minute, time.Hour}, // never shorter than promised
		{0, time.Hour, time.Minute, 0},
	} {
		c := &task.Task{CreatedAt: at, TTL: tc.ttl}
		if c.KeepUntil(at.Add(tc.until), tc.limit); c.TTL != tc.want {
			t.Errorf("ttl %v kept until %v (limit %v): %v, want %v", tc.ttl, tc.until, tc.limit, c.TTL, tc.want)
		}
	}
}

func TestExpired(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := &task.Task{CreatedAt: at, TTL: time.Second}
	if c.Expired(at.Add(999*time.Millisecond)) || !c.Expired(at.Add(time.Second)) { // TTL-3
		t.Error("a task expires exactly at its ttl")
	}
	if c.TTL = 0; c.Expired(at.Add(1000 * time.Hour)) {
		t.Error("an unlimited task expired")
	}
}
