package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

func testRoundTrip(f *fixture) {
	at := epoch.Add(time.Minute)
	for _, end := range []func(*task.Task) (*task.Task, error){
		func(t *task.Task) (*task.Task, error) { return t.Finish(completed, "done", at) },
		func(t *task.Task) (*task.Task, error) {
			return t.Finish(task.Outcome{Result: json.RawMessage(`{"isError":true}`), IsError: true}, "failed", at)
		},
		func(t *task.Task) (*task.Task, error) {
			return t.Finish(task.Outcome{Error: json.RawMessage(`{"code":-1,"message":"m","data":1.0}`)}, "failed", at)
		},
		func(t *task.Task) (*task.Task, error) { return t.To(task.Cancelled, "cancelled", at) },
	} {
		t := f.made("p")
		t.Key = t.ID
		f.same(f.created(t))
		t = f.updated(t.To(task.InputRequired, "what now?", epoch.Add(time.Second)))
		f.same(t)
		t = f.updated(t.To(task.Working, "", epoch.Add(2*time.Second)))
		t = f.updated(t.RunAs("remote"))
		t = f.updated(t.OwnedBy("other"))
		f.same(t)
		t = f.updated(end(t))
		f.same(t)
	}
	forever := f.made("p")
	forever.TTL, forever.PollInterval = 0, 0
	f.same(f.created(forever))
	kept, err := forever.Finish(completed, "", at)
	f.same(f.updated(kept, err))
}

func testOddBytes(f *fixture) {
	for _, text := range []string{"", "ü 世界 \u2028", "a'b\"c\\d;--", "line\nbreak", "\x00nul", strings.Repeat("x", 100_000)} {
		t := f.made(task.Principal("p" + text))
		t.ID += text
		t.Key, t.StatusMessage, t.Owner = "k"+text, text, "o"+text
		t.Request.Params = json.RawMessage(`{"x": 1.0e+2,  "ü":"\u00fc\/"}`)
		f.same(f.created(t))
		f.same(f.updated(t.Finish(task.Outcome{Result: json.RawMessage(" {\"a\" :\t[1e400]} \r\n")}, text, epoch.Add(time.Minute))))
	}
	big := f.created(f.made("p"))
	f.same(f.updated(big.Finish(task.Outcome{Result: json.RawMessage(`{"x":"` + strings.Repeat("é", 5<<19) + `"}`)}, "", epoch.Add(time.Minute))))
	none := f.made("p")
	none.Request.Params = nil
	f.same(f.created(none))
}

func testReopen(f *fixture) {
	running := f.asked(f.asked(f.created(f.made("p")), "a", `{}`), "b", `{}`)
	running = f.answered(running, "1", result(`{}`))
	done := f.created(f.made("p"))
	done = f.updated(done.Finish(completed, "done", epoch.Add(time.Minute)))
	gone := f.created(f.made("p"))
	if err := f.Store.Expire(f.Context(), epoch.Add(2*time.Hour), []task.Ref{gone.Ref}, epoch.Add(3*time.Hour)); err != nil {
		f.Fatal(err)
	}
	if f.Reopen == nil {
		return // the store keeps nothing
	}
	f.Store = f.Reopen()
	f.same(running)
	f.same(done)
	_, err := f.Store.Get(f.Context(), gone.Ref)
	f.wants(err, store.ErrExpired, "get of an expired task after reopening")
}

func testCompareAndSet(f *fixture) {
	first := f.created(f.made("p"))
	one, err := first.To(task.Working, "one", epoch.Add(time.Second))
	if err != nil {
		f.Fatal(err)
	}
	other, err := first.To(task.Cancelled, "other", epoch.Add(time.Second))
	if err != nil {
		f.Fatal(err)
	}
	f.updated(one, nil)
	f.wants(f.Store.Update(f.Context(), other), store.ErrConflict, "update from an old revision")
	f.wants(f.Store.Update(f.Context(), one), store.ErrConflict, "the same update again")
	ahead := *other
	ahead.Revision = 9
	f.wants(f.Store.Update(f.Context(), &ahead), store.ErrConflict, "update from a revision to come")
	f.same(one)
	missing := f.made("p")
	missing.Revision = 2
	f.wants(f.Store.Update(f.Context(), missing), store.ErrNotFound, "update of what is not there")
	if _, err := f.Store.Create(f.Context(), one, store.Quota{}); err == nil {
		f.Error("a task was created twice")
	}
	f.same(one)
}

// LIFE-3, in the store as well.
func testTerminalIsFinal(f *fixture) {
	for _, status := range []task.Status{task.Completed, task.Failed, task.Cancelled} {
		t := f.created(f.made("p"))
		done, err := t.To(status, "", epoch.Add(time.Second))
		if err != nil {
			f.Fatal(err)
		}
		if status != task.Cancelled {
			done.Outcome = &completed
			if status == task.Failed {
				done.Outcome = &task.Outcome{Error: json.RawMessage(`{}`)}
			}
		}
		f.updated(done, nil)
		for _, next := range []task.Status{task.Working, task.InputRequired, task.Completed, task.Failed, task.Cancelled} {
			forced := *done
			forced.Revision++
			forced.Status = next
			f.wants(f.Store.Update(f.Context(), &forced), store.ErrConflict, string(status)+" to "+string(next))
		}
		f.same(done)
	}
}

// testRandomEvents applies random events to a few tasks and compares the store with a model:
// the whole tasks.
func testRandomEvents(f *fixture) {
	rapid.Check(f.T, func(rt *rapid.T) {
		model := []*task.Task{f.created(f.made("p")), f.created(f.made("p")), f.created(f.made("q"))}
		for n := range rapid.IntRange(1, 20).Draw(rt, "events") {
			i := rapid.IntRange(0, len(model)-1).Draw(rt, "task")
			cur := model[i]
			stale := rapid.IntRange(0, 4).Draw(rt, "stale") == 0
			if stale { // somebody acts on what he saw earlier
				old := *cur
				old.Revision = max(0, old.Revision-1)
				cur = &old
			}
			before := cur
			at := epoch.Add(time.Duration(rapid.IntRange(0, 1e6).Draw(rt, "ms")) * time.Millisecond)
			if rapid.Bool().Draw(rt, "lean") { // a change need not name the inputs that it leaves alone
				lean := *cur
				lean.Inputs = nil
				cur = &lean
			}
			var next *task.Task
			var err error
			switch rapid.IntRange(0, 9).Draw(rt, "event") {
			case 0:
				if before.Asked > 0 && len(open(before)) == 0 {
					continue // it waits for nothing
				}
				next, err = cur.To(task.InputRequired, "?", at)
			case 1:
				if len(open(before)) > 0 {
					continue // INP-4
				}
				next, err = cur.To(task.Working, "w", at)
			case 2:
				next, err = cur.To(task.Cancelled, "c", at)
			case 3:
				next, err = cur.Finish(completed, "d", at)
			case 4:
				next, err = cur.Finish(task.Outcome{Error: json.RawMessage(`{"code":1}`)}, "f", at)
			case 5:
				next, err = cur.OwnedBy("other")
			case 6, 7:
				next, err = cur.Ask("elicitation/create", json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)), "ask", at)
			case 8, 9:
				if len(open(before)) == 0 {
					continue
				}
				key := rapid.SampledFrom(open(before)).Draw(rt, "key")
				next, err = answerTo(before, key, result(`{"n":%d}`, n))
			}
			if err != nil {
				continue // LIFE-1..3: not allowed, never reaches the store
			}
			err = f.Store.Update(f.Context(), next)
			switch {
			case stale && !errors.Is(err, store.ErrConflict):
				rt.Fatalf("a stale update: %v", err)
			case !stale && err != nil:
				rt.Fatalf("an update: %v", err)
			case !stale:
				model[i] = withInputs(before, next)
			}
		}
		for _, want := range model {
			f.same(want)
		}
	})
}

// SEC-1: to another principal a task does not exist, whatever is asked of it.
func testPrincipals(f *fixture) {
	mine := f.created(f.made("alice"))
	foreign := task.Ref{Principal: "bob", ID: mine.ID}
	_, err := f.Store.Get(f.Context(), foreign)
	f.wants(err, store.ErrNotFound, "get")
	_, err = f.Store.Load(f.Context(), foreign)
	f.wants(err, store.ErrNotFound, "load")
	stolen, err := mine.To(task.Cancelled, "", epoch.Add(time.Second))
	if err != nil {
		f.Fatal(err)
	}
	stolen.Ref = foreign
	f.wants(f.Store.Update(f.Context(), stolen), store.ErrNotFound, "update")
	late := epoch.Add(2 * time.Hour)
	if err := f.Store.Expire(f.Context(), late, []task.Ref{foreign}, late.Add(time.Hour)); err != nil {
		f.Error(err)
	}
	f.same(mine)
	_, err = f.Store.Get(f.Context(), foreign)
	f.wants(err, store.ErrNotFound, "get after expiring it as another")
	same := f.made("bob")
	same.ID = mine.ID // ids are the receiver's to make unique; the store does not mix them up
	f.created(same)
	f.same(mine)
	f.same(same)
}

func testClosed(f *fixture) {
	t := f.created(f.made("p"))
	if err := f.Store.Close(); err != nil {
		f.Fatal(err)
	}
	f.closed = true
	_, err := f.Store.Create(f.Context(), f.made("p"), store.Quota{})
	f.wants(err, store.ErrClosed, "create")
	_, err = f.Store.Get(f.Context(), t.Ref)
	f.wants(err, store.ErrClosed, "get")
	_, err = f.Store.List(f.Context(), "p", store.Position{}, 1)
	f.wants(err, store.ErrClosed, "list")
	_, err = f.Store.Due(f.Context(), epoch, "o", 1)
	f.wants(err, store.ErrClosed, "due")
	_, _, err = f.Store.NextDue(f.Context(), epoch)
	f.wants(err, store.ErrClosed, "next due")
	_, err = f.Store.Orphans(f.Context(), epoch, 1)
	f.wants(err, store.ErrClosed, "orphans")
	f.wants(f.Store.Renew(f.Context(), "o", epoch), store.ErrClosed, "renew")
	f.wants(f.Store.Check(f.Context()), store.ErrClosed, "check")
	if err := f.Store.Close(); err != nil {
		f.Errorf("closing again: %v", err)
	}
}
