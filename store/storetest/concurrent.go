package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// What 64 writers did to a register: one task, seen as its revision and message.
type (
	input struct {
		ref    string
		update *state // nil reads
	}
	state struct {
		revision int64
		message  string
		terminal bool
	}
	output struct {
		state    state
		conflict bool
	}
)

// registers is what each task does, as if there were only one writer.
var registers = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byRef := map[string][]porcupine.Operation{}
		for _, op := range history {
			ref := op.Input.(input).ref
			byRef[ref] = append(byRef[ref], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byRef {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return state{revision: 1} },
	Step: func(s, in, out any) (bool, any) {
		cur, i, o := s.(state), in.(input), out.(output)
		if i.update == nil {
			return o.state == cur, cur
		}
		allowed := i.update.revision == cur.revision+1 && !cur.terminal
		if allowed {
			return !o.conflict, *i.update
		}
		return o.conflict, cur
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v: %+v", in, out) },
}

// testConcurrentWriters has 64 writers change a few tasks and read them, and checks that
// what they saw is what one after the other would have seen (promise 2).
func testConcurrentWriters(f *fixture) {
	const writers, steps, tasks = 64, 8, 32
	var made [tasks]*task.Task
	for i := range made {
		made[i] = f.made("p")
		made[i].StatusMessage = ""
		f.created(made[i])
	}
	var clock atomic.Int64
	var mu sync.Mutex
	var history []porcupine.Operation
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for step := range steps {
				ref := made[rand.IntN(tasks)].Ref
				record := func(in input, do func() output) {
					call := clock.Add(1)
					out := do()
					end := clock.Add(1)
					mu.Lock()
					defer mu.Unlock()
					history = append(history, porcupine.Operation{ClientId: w, Input: in, Call: call, Output: out, Return: end})
				}
				var seen *task.Task
				record(input{ref: ref.ID}, func() output {
					var err error
					if seen, err = f.Store.Get(f.Context(), ref); err != nil {
						f.Error(err)
						seen = made[0]
					}
					return output{state: state{seen.Revision, seen.StatusMessage, seen.Status.Terminal()}}
				})
				next := task.Working
				if rand.IntN(100) == 0 {
					next = task.Cancelled
				}
				changed, err := seen.To(next, fmt.Sprintf("%d.%d", w, step), epoch.Add(time.Minute))
				if err != nil {
					continue // it was terminal
				}
				update := state{changed.Revision, changed.StatusMessage, changed.Status.Terminal()}
				record(input{ref: ref.ID, update: &update}, func() output {
					err := f.Store.Update(f.Context(), changed)
					if err != nil && !errors.Is(err, store.ErrConflict) {
						f.Error(err)
					}
					return output{conflict: err != nil}
				})
			}
		})
	}
	wg.Wait()
	switch result := porcupine.CheckOperationsTimeout(registers, history, time.Minute); result {
	case porcupine.Ok:
	default:
		f.Errorf("history of %d operations: %s", len(history), result)
	}
	if err := f.Store.Check(context.Background()); err != nil {
		f.Error(err)
	}
}
