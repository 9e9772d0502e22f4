package engine

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/coatcheck/coatcheck/task"
)

// The cache never has another task than the one asked for, nor more than it may, and what
// is asked for all the time stays.
func TestCache(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 8
		c := newCache(size)
		model := map[string]int64{}
		hot := &task.Task{Ref: task.Ref{Principal: "p", ID: "hot"}}
		c.add(hot)
		for i := range rapid.IntRange(1, 200).Draw(t, "steps") {
			id := fmt.Sprint(rapid.IntRange(0, 30).Draw(t, "id"))
			ref := task.Ref{Principal: "p", ID: id}
			switch rapid.IntRange(0, 2).Draw(t, "op") {
			case 0:
				model[id] = int64(i)
				c.add(&task.Task{Ref: ref, Revision: int64(i)})
			case 1:
				delete(model, id)
				c.drop(ref)
			case 2:
				if got := c.get(ref); got != nil && (got.Ref != ref || got.Revision != model[id]) {
					t.Fatalf("asked for %s at %d, got %+v", id, model[id], got)
				} else if _, ok := model[id]; got != nil && !ok {
					t.Fatalf("got %s, which was dropped", id)
				}
			}
			if c.get(hot.Ref) == nil {
				t.Fatal("what is asked for all the time is gone")
			}
			if len(c.index) > size || len(c.ring) > size {
				t.Fatalf("%d entries", len(c.index))
			}
		}
		if got := c.get(task.Ref{Principal: "q", ID: "hot"}); got != nil {
			t.Fatal("another principal's task")
		}
	})
}
