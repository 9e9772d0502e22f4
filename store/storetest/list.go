package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"pgregory.net/rapid"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// listed returns the ids of all pages.
func (f *fixture) listed(p task.Principal, limit int) []string {
	f.Helper()
	var ids []string
	var after store.Position
	for {
		if len(ids) > 1000 { // more than any test makes
			f.Fatalf("a listing without end: it is at %v", after)
		}
		page, err := f.Store.List(f.Context(), p, after, limit)
		if err != nil {
			f.Fatal(err)
		}
		if len(page) > limit {
			f.Fatalf("a page of %d for a limit of %d", len(page), limit)
		}
		for _, t := range page {
			if t.Principal != p { // SEC-2
				f.Fatalf("%s's listing has a task of %s", p, t.Principal)
			}
			ids = append(ids, t.ID)
			after = store.Position{CreatedAt: t.CreatedAt, ID: t.ID}
		}
		if len(page) < limit {
			return ids
		}
	}
}

func testList(f *fixture) {
	var want []string
	for i := range 25 {
		t := f.made("p")
		t.CreatedAt = epoch.Add(time.Duration(i/10) * time.Millisecond) // many at one time
		t.UpdatedAt = t.CreatedAt
		f.created(t)
		want = append(want, t.ID)
		f.created(f.made("other"))
	}
	slices.Reverse(want) // newest first, ties by id
	for _, limit := range []int{1, 2, 7, 24, 25, 26, 100} {
		if got := f.listed("p", limit); !slices.Equal(got, want) {
			f.Errorf("in pages of %d: %v", limit, got)
		}
	}
	if got := f.listed("nobody", 10); len(got) != 0 {
		f.Errorf("nobody has %v", got)
	}
}

func testListProperty(f *fixture) {
	rapid.Check(f.T, func(rt *rapid.T) {
		p := task.Principal(fmt.Sprintf("p%d", f.n))
		var all []*task.Task
		for range rapid.IntRange(0, 30).Draw(rt, "tasks") {
			t := f.made(p)
			t.ID = fmt.Sprintf("%s-%05d", rapid.StringMatching(`[a-zA-Z0-9ü]{0,3}`).Draw(rt, "id"), f.n)
			t.CreatedAt = epoch.Add(time.Duration(rapid.IntRange(0, 5).Draw(rt, "ms")) * time.Millisecond)
			t.UpdatedAt = t.CreatedAt
			all = append(all, f.created(t))
		}
		slices.SortFunc(all, func(a, b *task.Task) int {
			if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
				return c
			}
			if a.ID > b.ID {
				return -1
			}
			return 1
		})
		var want []string
		for _, t := range all {
			want = append(want, t.ID)
		}
		if got := f.listed(p, rapid.IntRange(1, 10).Draw(rt, "limit")); !slices.Equal(got, want) {
			rt.Fatalf("listed %v, want %v", got, want)
		}
	})
}

// What was there when a listing began is listed once, whatever is added meanwhile.
func testListWhileInserting(f *fixture) {
	old := map[string]int{}
	for range 50 {
		old[f.created(f.made("p")).ID] = 0
	}
	added := make([]*task.Task, 100)
	for i := range added {
		added[i] = f.made("p")
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for _, t := range added {
			if _, err := f.Store.Create(f.Context(), t, store.Quota{}); err != nil {
				f.Error(err)
			}
		}
	})
	for _, id := range f.listed("p", 3) {
		if _, ok := old[id]; ok {
			old[id]++
		}
	}
	for id, times := range old {
		if times != 1 {
			f.Errorf("task %s was listed %d times", id, times)
		}
	}
}

// requirements C.8
func testKeys(f *fixture) {
	first := f.made("p")
	first.Key = "k"
	f.created(first)
	again := f.made("p")
	again.Key = "k"
	existing, err := f.Store.Create(f.Context(), again, store.Quota{})
	if err != nil || existing == nil || existing.Ref != first.Ref || string(existing.Request.Params) != string(first.Request.Params) {
		f.Fatalf("a repeated key: %+v, %v", existing, err)
	}
	_, err = f.Store.Get(f.Context(), again.Ref)
	f.wants(err, store.ErrNotFound, "get of the task that was not made")
	other := f.made("q")
	other.Key = "k"
	f.created(other)
	f.created(f.made("p")) // no key
	f.created(f.made("p")) // no key, again
	late := epoch.Add(2 * time.Hour)
	if err := f.Store.Expire(f.Context(), late, []task.Ref{first.Ref}, late.Add(time.Hour)); err != nil {
		f.Fatal(err)
	}
	f.created(again) // the key is free
	f.same(again)
}

func testRekey(f *fixture) {
	first := f.made("p")
	first.Key = "k"
	f.created(first)
	foreign := task.Ref{Principal: "q", ID: first.ID}
	f.wants(f.Store.Rekey(f.Context(), foreign, ""), store.ErrNotFound, "rekey of another's task")
	ended, err := first.Finish(task.Outcome{Result: []byte("{}")}, "", epoch)
	if err != nil {
		f.Fatal(err)
	}
	if err := f.Store.Update(f.Context(), ended); err != nil {
		f.Fatal(err)
	}
	for range 2 { // the second time there is no key
		if err := f.Store.Rekey(f.Context(), first.Ref, ""); err != nil {
			f.Fatal(err)
		}
	}
	ended.Key = ""
	f.same(ended)
	again := f.made("p")
	again.Key = "k"
	f.created(again)
	f.same(again)
	f.wants(f.Store.Rekey(f.Context(), first.Ref, "k"), store.ErrConflict, "rekey to another's key")
	f.same(ended)
	for range 2 { // the second time it has it already
		if err := f.Store.Rekey(f.Context(), again.Ref, "l"); err != nil {
			f.Fatal(err)
		}
	}
	if err := f.Store.Rekey(f.Context(), first.Ref, "k"); err != nil { // nobody's by now
		f.Fatal(err)
	}
	if err := f.Store.Rekey(f.Context(), first.Ref, "m"); err != nil {
		f.Fatal(err)
	}
	if err := f.Store.Rekey(f.Context(), again.Ref, "k"); err != nil {
		f.Fatal(err)
	}
	ended.Key = "m"
	f.same(ended)
	f.same(again)
	late := epoch.Add(2 * time.Hour)
	if err := f.Store.Expire(f.Context(), late, []task.Ref{first.Ref}, late.Add(time.Hour)); err != nil {
		f.Fatal(err)
	}
	f.wants(f.Store.Rekey(f.Context(), first.Ref, ""), store.ErrExpired, "rekey of an expired task")
	third := f.made("p")
	third.Key = "k"
	existing, err := f.Store.Create(f.Context(), third, store.Quota{})
	if err != nil || existing == nil || existing.Ref != again.Ref {
		f.Fatalf("a repeated key, after the first that had it went: %+v, %v", existing, err)
	}
}

func testConcurrentKeys(f *fixture) {
	var mu sync.Mutex
	made := map[string]int{}
	winners := map[string]bool{}
	var wg sync.WaitGroup
	tasks := make([]*task.Task, 64)
	for i := range tasks {
		tasks[i] = f.made("p")
		tasks[i].Key = fmt.Sprintf("k%d", i%4)
	}
	for _, t := range tasks {
		wg.Go(func() {
			existing, err := f.Store.Create(f.Context(), t, store.Quota{})
			if err != nil {
				f.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if existing == nil {
				made[t.Key]++
				existing = t
			}
			winners[t.Key+existing.ID] = true
		})
	}
	wg.Wait()
	if len(winners) != 4 {
		f.Errorf("four keys led to %d tasks", len(winners))
	}
	for key, n := range made {
		if n != 1 {
			f.Errorf("key %s made %d tasks", key, n)
		}
	}
}

func testExpiry(f *fixture) {
	finish := func(ttl time.Duration) *task.Task {
		t := f.made("p")
		t.CreatedAt, t.UpdatedAt, t.TTL = epoch, epoch, ttl
		f.created(t)
		return f.updated(t.Finish(completed, "", epoch))
	}
	soon, later, never := finish(time.Second), finish(time.Minute), finish(0)
	if at, ok, err := f.Store.NextDue(f.Context(), epoch); err != nil || !ok || !at.Equal(epoch.Add(time.Second)) {
		f.Errorf("next due %v, %v, %v", at, ok, err)
	}
	if at, ok, err := f.Store.NextDue(f.Context(), epoch.Add(time.Second)); err != nil || !ok || !at.Equal(epoch.Add(time.Minute)) {
		f.Errorf("next due after that %v, %v, %v", at, ok, err)
	}
	if _, ok, err := f.Store.NextDue(f.Context(), epoch.Add(time.Minute)); err != nil || ok {
		f.Errorf("next due after all %v, %v", ok, err)
	}
	due := func(at time.Duration, limit int) (ids []string) {
		tasks, err := f.Store.Due(f.Context(), epoch.Add(at), "me", limit)
		if err != nil {
			f.Fatal(err)
		}
		for _, t := range tasks {
			ids = append(ids, t.ID)
		}
		return ids
	}
	if got := due(time.Second-time.Millisecond, 9); len(got) != 0 {
		f.Errorf("due too soon: %v", got)
	}
	if got := due(time.Second, 9); !slices.Equal(got, []string{soon.ID}) {
		f.Errorf("due: %v", got)
	}
	if got := due(time.Hour, 9); !slices.Equal(got, []string{soon.ID, later.ID}) {
		f.Errorf("due: %v", got)
	}
	if got := due(time.Hour, 1); !slices.Equal(got, []string{soon.ID}) {
		f.Errorf("due, at most one: %v", got)
	}
	// later is not over yet at that time: it stays.
	now, remember := epoch.Add(2*time.Second), epoch.Add(10*time.Second)
	if err := f.Store.Expire(f.Context(), now, []task.Ref{soon.Ref, later.Ref, never.Ref, {Principal: "p", ID: "missing"}}, remember); err != nil {
		f.Fatal(err)
	}
	f.same(later)
	f.same(never)
	for range 2 {
		_, err := f.Store.Get(f.Context(), soon.Ref)
		f.wants(err, store.ErrExpired, "get")
		_, err = f.Store.Load(f.Context(), soon.Ref)
		f.wants(err, store.ErrExpired, "load")
		// remembered until then
		if err := f.Store.Expire(f.Context(), remember.Add(-time.Millisecond), nil, remember); err != nil {
			f.Fatal(err)
		}
	}
	next := *soon
	next.Revision++
	f.wants(f.Store.Update(f.Context(), &next), store.ErrExpired, "update")
	if err := f.Store.Expire(f.Context(), remember, nil, remember); err != nil {
		f.Fatal(err)
	}
	_, err := f.Store.Get(f.Context(), soon.Ref)
	f.wants(err, store.ErrNotFound, "get of a forgotten task")
	if got := f.listed("p", 10); len(got) != 2 {
		f.Errorf("listed %v", got)
	}
}

// A running task of a living process is its owner's to expire.
func testExpiryOfRunning(f *fixture) {
	t := f.created(f.made("p"))
	now := epoch.Add(2 * time.Hour)
	has := func(owner string) bool {
		tasks, err := f.Store.Due(f.Context(), now, owner, 9)
		if err != nil {
			f.Fatal(err)
		}
		return len(tasks) == 1 && tasks[0].ID == t.ID
	}
	if err := f.Store.Renew(f.Context(), "owner", now.Add(time.Second)); err != nil {
		f.Fatal(err)
	}
	if has("other") || !has("owner") {
		f.Error("due while its owner is alive: only for the owner")
	}
	if err := f.Store.Release(f.Context(), "owner"); err != nil {
		f.Fatal(err)
	}
	if !has("other") {
		f.Error("not due for anybody though its owner is gone")
	}
}

func testOwners(f *fixture) {
	ctx := f.Context()
	running := f.created(f.made("p"))
	done := f.created(f.made("p"))
	f.updated(done.Finish(completed, "", epoch.Add(time.Minute)))
	orphans := func(at time.Duration) int {
		tasks, err := f.Store.Orphans(ctx, epoch.Add(at), 9)
		if err != nil {
			f.Fatal(err)
		}
		for _, t := range tasks {
			if t.ID != running.ID || string(t.Request.Params) != string(running.Request.Params) {
				f.Errorf("orphan %+v", t)
			}
		}
		return len(tasks)
	}
	if orphans(0) != 1 {
		f.Error("an owner that never renewed counts as alive")
	}
	for _, err := range []error{
		f.Store.Renew(ctx, "owner", epoch.Add(time.Second)),
		f.Store.Renew(ctx, "owner", epoch.Add(3*time.Second)),
		f.Store.Renew(ctx, "another", epoch.Add(time.Hour)),
	} {
		if err != nil {
			f.Fatal(err)
		}
	}
	if orphans(3*time.Second-time.Millisecond) != 0 {
		f.Error("a living owner's task is an orphan")
	}
	if orphans(3*time.Second) != 1 {
		f.Error("a dead owner's task is no orphan")
	}
	taken := f.updated(running.OwnedBy("another"))
	if orphans(3*time.Second) != 0 {
		f.Error("a task taken over is an orphan")
	}
	// The old owner wakes up: its change is too late.
	late, err := running.Finish(completed, "", epoch.Add(4*time.Second))
	if err != nil {
		f.Fatal(err)
	}
	if err := f.Store.Update(ctx, late); !errors.Is(err, store.ErrConflict) {
		f.Errorf("the former owner's change: %v", err)
	}
	f.same(taken)
	if err := f.Store.Release(ctx, "another"); err != nil {
		f.Fatal(err)
	}
	if orphans(0) != 1 {
		f.Error("a released owner's task is no orphan")
	}
}
