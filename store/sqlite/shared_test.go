package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/store/sqlite"
	"github.com/coatcheck/coatcheck/task"
)

// deadline is how long a test waits for what must come.
const deadline = 30 * time.Second

func awaitChange(t *testing.T, s *sqlite.Store) {
	t.Helper()
	select {
	case <-s.Changed():
	case <-time.After(deadline):
		t.Fatal("another's change was not signalled")
	}
}

// Two stores on one file, as two processes have them: each sees, and is told of, what the
// other did, and they do not undo each other's changes (requirements C.11).
func TestTwoStores(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tasks.db")
	a, b := open(t, file), open(t, file)
	defer a.Close()
	defer b.Close()
	now := time.Now()
	if err := a.Renew(t.Context(), "child", now.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	first := working("first")
	first.Key = "k"
	if _, err := a.Create(t.Context(), first, store.Quota{}); err != nil {
		t.Fatal(err)
	}
	awaitChange(t, b)
	if got, err := b.Get(t.Context(), first.Ref); err != nil || got.Revision != 1 {
		t.Fatalf("got %+v, %v", got, err)
	}
	again := working("again")
	again.Key = "k"
	if existing, err := b.Create(t.Context(), again, store.Quota{}); err != nil || existing == nil || existing.Ref != first.Ref { // C.8
		t.Errorf("the same key in the other store: %+v, %v", existing, err)
	}
	if orphans, err := b.Orphans(t.Context(), now, 9); err != nil || len(orphans) != 0 {
		t.Errorf("a living owner's task is an orphan to the other: %v, %v", orphans, err)
	}
	if orphans, err := b.Orphans(t.Context(), now.Add(2*time.Minute), 9); err != nil || len(orphans) != 1 {
		t.Errorf("a dead owner's task is no orphan to the other: %v, %v", orphans, err)
	}
	taken, err := first.OwnedBy("other")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Update(t.Context(), taken); err != nil {
		t.Fatal(err)
	}
	awaitChange(t, a)
	late, err := first.Finish(task.Outcome{Result: []byte(`{}`)}, "", now)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Update(t.Context(), late); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a change from what the other replaced: %v", err)
	}
}

// Two stores write to one file at once: each change waits for its turn and none fails.
func TestTwoWriters(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tasks.db")
	stores := [2]*sqlite.Store{open(t, file), open(t, file)}
	var mu sync.Mutex
	made := map[string]int{} // by key
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range 10 {
				s := stores[w%2]
				tk := working(fmt.Sprintf("%d-%d", w, i))
				tk.Key = fmt.Sprint(i)
				existing, err := s.Create(t.Context(), tk, store.Quota{})
				if err != nil {
					t.Error(err)
					return
				}
				if existing != nil {
					continue
				}
				mu.Lock()
				made[tk.Key]++
				mu.Unlock()
				done, err := tk.Finish(task.Outcome{Result: []byte(`{}`)}, "", time.Now())
				if err != nil {
					t.Error(err)
					return
				}
				if err := s.Update(t.Context(), done); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i := range 10 {
		if n := made[fmt.Sprint(i)]; n != 1 { // C.8
			t.Errorf("key %d made %d tasks", i, n)
		}
	}
	for _, s := range stores {
		if err := errors.Join(s.Check(t.Context()), s.Close()); err != nil {
			t.Error(err)
		}
	}
}

// locked returns a store on a file that another connection has locked, and what unlocks it.
func locked(t *testing.T, file string) (*sqlite.Store, func()) {
	t.Helper()
	s, err := sqlite.Open(t.Context(), file, &sqlite.Options{BusyTimeout: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rawDB(t, file).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	return s, func() {
		if _, err := conn.ExecContext(context.Background(), "ROLLBACK"); err != nil {
			t.Error(err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Changes outlast another process's transaction, however long it takes; those whose caller
// left meanwhile are not made.
func TestLocked(t *testing.T) {
	s, unlock := locked(t, filepath.Join(t.TempDir(), "tasks.db"))
	defer s.Close()
	const writers = 16
	results := make(chan error, writers)
	for i := range writers {
		go func() {
			_, err := s.Create(context.Background(), working(fmt.Sprint(i)), store.Quota{})
			results <- err
		}()
	}
	// A hundred busy timeouts pass while this one waits.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	left := working("left")
	if _, err := s.Create(ctx, left, store.Quota{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a create whose caller left: %v", err)
	}
	select {
	case err := <-results:
		t.Errorf("a change did not wait: %v", err)
	default:
	}
	unlock()
	for range writers {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if err := s.Renew(t.Context(), "o", time.Now()); err != nil { // made after all before it
		t.Error(err)
	}
	if _, err := s.Get(t.Context(), left.Ref); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the task whose creator left: %v", err)
	}
}

// Close does not wait for another process for ever: what could not be made fails.
func TestCloseWhileLocked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tasks.db")
	s, unlock := locked(t, file)
	results := make(chan error, 4)
	for i := range cap(results) {
		go func() {
			_, err := s.Create(context.Background(), working(fmt.Sprint(i)), store.Quota{})
			results <- err
		}()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.Create(ctx, working("left"), store.Quota{}); !errors.Is(err, context.DeadlineExceeded) { // the writer is at one of them
		t.Errorf("a create whose caller left: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for range cap(results) {
		if err := <-results; err == nil {
			t.Error("a change was acknowledged that cannot have been made")
		}
	}
	unlock()
	s = open(t, file)
	defer s.Close()
	if got, err := s.List(t.Context(), "p", store.Position{}, 9); err != nil || len(got) != 0 {
		t.Errorf("tasks that were refused: %v, %v", got, err)
	}
}
