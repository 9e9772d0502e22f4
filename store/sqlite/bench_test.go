package sqlite_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/store/sqlite"
	"github.com/coatcheck/coatcheck/task"
)

func benchStore(b *testing.B) *sqlite.Store {
	b.Helper()
	s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "tasks.db"), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s
}

// BenchmarkCreateFinish is the life of a task in the store, by 32 clients at once.
func BenchmarkCreateFinish(b *testing.B) {
	s := benchStore(b)
	procs := runtime.GOMAXPROCS(0)
	var n atomic.Int64
	b.SetParallelism((32 + procs - 1) / procs) // times GOMAXPROCS
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			t := working(fmt.Sprint("task-", n.Add(1)))
			if _, err := s.Create(b.Context(), t, store.Quota{}); err != nil {
				b.Fatal(err)
			}
			done, err := t.Finish(task.Outcome{Result: []byte(`{"content":[]}`)}, "done", time.Now())
			if err != nil {
				b.Fatal(err)
			}
			if err := s.Update(b.Context(), done); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkGet(b *testing.B) {
	s := benchStore(b)
	for i := range 1000 {
		if _, err := s.Create(b.Context(), working(fmt.Sprint(i)), store.Quota{}); err != nil {
			b.Fatal(err)
		}
	}
	var n atomic.Int64
	b.ReportAllocs()
	b.ResetTimer() // each of the creates above was synced alone
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.Get(b.Context(), task.Ref{Principal: "p", ID: fmt.Sprint(n.Add(1) % 1000)}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkUpdate is a change that names no input requests, by 32 clients at once, each of a
// task of its own.
func BenchmarkUpdate(b *testing.B) {
	s := benchStore(b)
	procs := runtime.GOMAXPROCS(0)
	var n atomic.Int64
	b.SetParallelism((32 + procs - 1) / procs) // times GOMAXPROCS
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		t := working(fmt.Sprint("task-", n.Add(1)))
		if _, err := s.Create(b.Context(), t, store.Quota{}); err != nil {
			b.Fatal(err)
		}
		for pb.Next() {
			next, err := t.To(task.Working, "still at it", time.Now())
			if err != nil {
				b.Fatal(err)
			}
			if err := s.Update(b.Context(), next); err != nil {
				b.Fatal(err)
			}
			t = next
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	s := benchStore(b)
	t := working("silent")
	if _, err := s.Create(b.Context(), t, store.Quota{}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.Load(b.Context(), t.Ref); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkAskAnswer is a question, its answer, and the look between them, by 32 clients at
// once; each task asks a hundred times.
func BenchmarkAskAnswer(b *testing.B) {
	s := benchStore(b)
	procs := runtime.GOMAXPROCS(0)
	var n atomic.Int64
	b.SetParallelism((32 + procs - 1) / procs) // times GOMAXPROCS
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var t *task.Task
		for pb.Next() {
			if t == nil || t.Asked == 100 {
				t = working(fmt.Sprint("task-", n.Add(1)))
				if _, err := s.Create(b.Context(), t, store.Quota{}); err != nil {
					b.Fatal(err)
				}
			}
			asking, err := t.Ask("elicitation/create", []byte(`{"message":"?"}`), "", time.Now())
			if err != nil {
				b.Fatal(err)
			}
			if err := s.Update(b.Context(), asking); err != nil {
				b.Fatal(err)
			}
			whole, err := s.Load(b.Context(), t.Ref)
			if err != nil {
				b.Fatal(err)
			}
			t, err = whole.Answer(whole.Inputs[whole.Asked-1], task.Outcome{Result: []byte(`{}`)}, false, "", time.Now())
			if err != nil {
				b.Fatal(err)
			}
			if err := s.Update(b.Context(), t); err != nil {
				b.Fatal(err)
			}
		}
	})
}
