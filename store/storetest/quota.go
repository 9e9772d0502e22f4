package storetest

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pgregory.net/rapid"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// sized returns a new working task whose request has n bytes of params.
func (f *fixture) sized(p task.Principal, n int) *task.Task {
	t := f.made(p)
	t.Request.Params = json.RawMessage(strings.Repeat("é", n/2) + strings.Repeat("x", n%2)) // bytes, not characters
	return t
}

// accepts tries to create a task, which is stored.
func (f *fixture) accepts(t *task.Task, q store.Quota, what string) *task.Task {
	f.Helper()
	if existing, err := f.Store.Create(f.Context(), t, q); err != nil || existing != nil {
		f.Errorf("%s: %+v, %v", what, existing, err)
	}
	return t
}

// refuses tries to create a task, which a limit forbids: nothing of it is stored.
func (f *fixture) refuses(t *task.Task, q store.Quota, limit, what string) {
	f.Helper()
	existing, err := f.Store.Create(f.Context(), t, q)
	quota, ok := errors.AsType[*store.QuotaError](err)
	if existing != nil || !ok || quota.Limit != limit || !errors.Is(err, store.ErrQuota) {
		f.Errorf("%s: %+v, %v; want the quota of %s", what, existing, err, limit)
	}
	_, err = f.Store.Get(f.Context(), t.Ref)
	f.wants(err, store.ErrNotFound, what+": get")
	if err := f.Store.Check(f.Context()); err != nil {
		f.Errorf("%s: %v", what, err)
	}
}

// SEC-5: the bounds are exact, and each principal has his own.
func testQuotaBounds(f *fixture) {
	q := store.Quota{Tasks: 2, Bytes: 100}
	f.refuses(f.sized("p", 101), q, store.QuotaBytes, "a first task larger than all")
	f.accepts(f.sized("p", 100), q, "a first task as large as all")
	f.accepts(f.sized("p", 0), q, "a task without bytes when no byte is left")
	f.refuses(f.sized("p", 0), q, store.QuotaTasks, "one task too many")
	f.refuses(f.sized("p", 1), store.Quota{Bytes: 100}, store.QuotaBytes, "one byte too many")
	f.refuses(f.sized("p", 1), q, store.QuotaTasks, "one task and one byte too many")
	f.accepts(f.sized("q", 100), q, "another principal's")
	f.accepts(f.sized("", 100), q, "the nameless principal's")
	f.refuses(f.sized("", 1), q, store.QuotaBytes, "the nameless principal's beyond")
	f.accepts(f.sized("p", 1), store.Quota{Tasks: 3, Bytes: 101}, "the same within a larger quota")
	f.accepts(f.sized("p", 1000), store.Quota{}, "without bounds")
	f.accepts(f.sized("p", 1000), store.Quota{Tasks: -1, Bytes: -1}, "with bounds below zero")
	f.refuses(f.sized("p", 0), store.Quota{Tasks: 1}, store.QuotaTasks, "with less quota than is stored")
}

// An outcome, an input request and an answer are stored beyond the quota, and count.
func testQuotaOfWhatIsAdded(f *fixture) {
	quota := func(bytes int64) store.Quota { return store.Quota{Bytes: bytes} }
	first := f.accepts(f.sized("p", 10), quota(20), "a task")
	first = f.asked(first, "a", strings.Repeat("x", 10))
	f.refuses(f.sized("p", 1), quota(20), store.QuotaBytes, "beyond an input request")
	f.accepts(f.sized("p", 1), quota(21), "beside an input request")
	first = f.asked(first, "b", "12345") // 26
	first = f.answered(first, "1", result(`{"n":%d}`, 1))
	f.refuses(f.sized("p", 1), quota(33), store.QuotaBytes, "beyond an answer") // 33
	f.accepts(f.sized("p", 1), quota(34), "beside an answer")
	changed := f.updated(first.To(first.Status, "what an update does not add is not counted again", epoch.Add(time.Minute)))
	f.accepts(f.sized("p", 1), quota(35), "after a change of the message")
	changed = f.answered(changed, "2", task.Outcome{Error: json.RawMessage(`{}`)}) // 37
	done := f.updated(changed.Finish(task.Outcome{Result: json.RawMessage(strings.Repeat("x", 63))}, "", epoch.Add(time.Minute)))
	f.same(done)
	f.refuses(f.sized("p", 1), quota(100), store.QuotaBytes, "beyond an outcome")
	f.accepts(f.sized("p", 1), quota(101), "beside an outcome")
	f.wants(f.Store.Update(f.Context(), done), store.ErrConflict, "a refused update")
	f.accepts(f.sized("p", 1), quota(102), "after a refused update")

	made := f.sized("q", 10) // a task may come with its outcome
	made.Status, made.Owner, made.Outcome = task.Failed, "", &task.Outcome{Error: json.RawMessage(`{"e":1}`)}
	f.refuses(made, quota(16), store.QuotaBytes, "a task with an outcome")
	f.accepts(made, quota(17), "a task with an outcome")
}

// What expires is free again, with all that belongs to it.
func testQuotaFreed(f *fixture) {
	q := store.Quota{Tasks: 2, Bytes: 30}
	at, late := epoch.Add(time.Minute), epoch.Add(2*time.Hour)
	first := f.accepts(f.sized("p", 10), q, "a task")
	first = f.answered(f.asked(first, "a", "12345"), "1", result("12345"))
	first = f.updated(first.Finish(task.Outcome{Result: json.RawMessage(strings.Repeat("x", 1000))}, "", at))
	second := f.accepts(f.sized("p", 10), store.Quota{Tasks: 2}, "a task")
	expire := func(now time.Time, refs ...task.Ref) {
		f.Helper()
		if err := f.Store.Expire(f.Context(), now, refs, late.Add(time.Hour)); err != nil {
			f.Fatal(err)
		}
	}
	expire(at, first.Ref)
	expire(late, task.Ref{Principal: "p", ID: "unknown"}, task.Ref{Principal: "q", ID: first.ID})
	f.refuses(f.sized("p", 0), q, store.QuotaTasks, "after nothing expired")
	expire(late, first.Ref)
	expire(late, first.Ref) // of several that expire tasks, all but one come late
	f.refuses(f.sized("p", 21), q, store.QuotaBytes, "beyond what was freed")
	third := f.accepts(f.sized("p", 20), q, "as much as was freed")
	f.refuses(f.sized("p", 0), q, store.QuotaTasks, "when all is used again")
	expire(late, second.Ref, third.Ref)
	f.refuses(f.sized("p", 31), q, store.QuotaBytes, "more than all, when nothing is stored")
	f.accepts(f.sized("p", 30), q, "all, when nothing is stored")
	if f.Reopen != nil {
		f.Store = f.Reopen()
		f.refuses(f.sized("p", 1), q, store.QuotaBytes, "after reopening")
	}
}

// C.8: who repeats a key gets his task, whatever his quota; a refused task keeps no key.
func testQuotaAndKeys(f *fixture) {
	q := store.Quota{Tasks: 1, Bytes: 10}
	first := f.sized("p", 10)
	first.Key = "k"
	f.accepts(first, q, "a task with a key")
	again := f.sized("p", 10)
	again.Key = "k"
	if existing, err := f.Store.Create(f.Context(), again, q); err != nil || existing == nil || existing.ID != first.ID {
		f.Errorf("the key again: %+v, %v", existing, err)
	}
	other := f.sized("p", 1)
	other.Key = "other"
	f.refuses(other, q, store.QuotaTasks, "another key")
	f.accepts(other, store.Quota{}, "the same key when there is room")
}

// SEC-5: of creates at once, exactly as many are stored as the quota allows, beside those of
// a principal who has no bounds.
func testQuotaRaces(f *fixture) {
	const creates, tasks, size = 200, 50, 10
	for _, race := range []struct {
		principal task.Principal
		quota     store.Quota
		limit     string
	}{
		{"by tasks", store.Quota{Tasks: tasks}, store.QuotaTasks},
		{"by bytes", store.Quota{Bytes: tasks*size + size - 1}, store.QuotaBytes},
	} {
		var stored atomic.Int64
		var wg sync.WaitGroup
		for range creates {
			t, free := f.sized(race.principal, size), f.made("free")
			wg.Go(func() {
				_, err := f.Store.Create(f.Context(), t, race.quota)
				quota, refused := errors.AsType[*store.QuotaError](err)
				switch {
				case err == nil:
					stored.Add(1)
				case !refused || quota.Limit != race.limit:
					f.Errorf("%s: %v", race.principal, err)
				}
			})
			wg.Go(func() { // a refusal does not undo what is stored with it
				if _, err := f.Store.Create(f.Context(), free, store.Quota{}); err != nil {
					f.Error(err)
					return
				}
				if _, err := f.Store.Get(f.Context(), free.Ref); err != nil {
					f.Errorf("stored beside refusals: %v", err)
				}
			})
		}
		wg.Wait()
		list, err := f.Store.List(f.Context(), race.principal, store.Position{}, creates)
		if err != nil || stored.Load() != tasks || len(list) != tasks {
			f.Errorf("%s: %d creates succeeded, %d tasks are stored, %v; want %d", race.principal, stored.Load(), len(list), err, tasks)
		}
	}
}

// testQuotaModel does random things under a quota and compares what is refused with a count
// kept beside; the check after it compares what is counted with what is stored.
func testQuotaModel(f *fixture) {
	rapid.Check(f.T, func(rt *rapid.T) {
		p := f.made("p").Ref // a new principal each time
		principal := task.Principal(p.ID)
		late := epoch.Add(100 * time.Hour)
		size := map[task.Ref]int64{}
		live := map[task.Ref]*task.Task{}
		var refs []task.Ref
		total := func() (n int64) {
			for _, s := range size {
				n += s
			}
			return n
		}
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			n := rapid.IntRange(0, 20).Draw(rt, "bytes")
			step := rapid.IntRange(0, 3).Draw(rt, "step")
			if step == 0 || len(refs) == 0 {
				q := store.Quota{Tasks: rapid.IntRange(0, 4).Draw(rt, "tasks"), Bytes: int64(rapid.IntRange(0, 60).Draw(rt, "quota"))}
				t := f.sized(principal, n)
				want := q.Tasks > 0 && len(size) >= q.Tasks || q.Bytes > 0 && total()+int64(n) > q.Bytes
				switch _, err := f.Store.Create(f.Context(), t, q); {
				case want != errors.Is(err, store.ErrQuota) || !want && err != nil:
					rt.Fatalf("%d tasks of %d bytes stored, %d more within %+v: %v", len(size), total(), n, q, err)
				case err == nil:
					refs, live[t.Ref], size[t.Ref] = append(refs, t.Ref), t, int64(n)
				}
				continue
			}
			ref := rapid.SampledFrom(refs).Draw(rt, "task")
			t := live[ref]
			if step == 3 {
				if err := f.Store.Expire(f.Context(), late, []task.Ref{ref}, late); err != nil {
					rt.Fatal(err)
				}
				delete(live, ref)
				delete(size, ref)
				continue
			}
			if t == nil || t.Status.Terminal() {
				continue
			}
			text := json.RawMessage(strings.Repeat("x", n))
			var next *task.Task
			var err error
			switch keys := open(t); {
			case step == 1 && len(keys) > 0:
				next, err = answerTo(t, keys[0], task.Outcome{Result: append(text, 'x')})
				n++
			case step == 1:
				next, err = t.Ask("a", text, "", epoch.Add(time.Minute))
			default:
				next, err = t.Finish(task.Outcome{Result: append(text, 'x')}, "", epoch.Add(time.Minute))
				n++
			}
			if err != nil {
				rt.Fatal(err)
			}
			if err := f.Store.Update(f.Context(), next); err != nil {
				rt.Fatal(err)
			}
			live[ref] = withInputs(t, next)
			size[ref] += int64(n)
		}
	})
}
