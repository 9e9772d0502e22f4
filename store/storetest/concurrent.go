package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// What 64 writers did to a register: one task, or the place where it would be.
type (
	input struct {
		ref    string
		create bool
		update *state // with create false: nil reads
		light  bool   // it reads without inputs
	}
	state struct {
		revision int64 // 0: there is no task
		message  string
		status   task.Status
		asked    int
		inputs   string
	}
	output struct {
		state   state
		refused bool // a create of what exists, or a conflict
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
	Init: func() any { return state{} },
	Step: func(s, in, out any) (bool, any) {
		cur, i, o := s.(state), in.(input), out.(output)
		if i.update == nil {
			seen := cur
			if i.light {
				seen.inputs = ""
			}
			return o.state == seen, cur
		}
		allowed := i.update.revision == cur.revision+1 && !cur.status.Terminal()
		if i.create != (cur.revision == 0) {
			allowed = false
		}
		if allowed {
			return !o.refused, *i.update
		}
		return o.refused, cur
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v: %+v", in, out) },
}

// history is what happened, in the order of a clock that all writers share.
type history struct {
	clock atomic.Int64
	mu    sync.Mutex
	ops   []porcupine.Operation
}

func (h *history) record(client int, in input, do func() output) {
	call := h.clock.Add(1)
	out := do()
	end := h.clock.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: end})
}

// testConcurrentWriters has 64 writers create, read, change and cancel a few tasks, ask and
// answer, and checks that what they saw is what one after the other would have seen (promise 2, LIFE-3).
func testConcurrentWriters(f *fixture) {
	const writers, steps, tasks = 64, 12, 8
	var made [tasks]*task.Task
	for i := range made {
		made[i] = f.made("p")
	}
	var h history
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for step := range steps {
				message := fmt.Sprintf("%d.%d", w, step)
				t := *made[rand.IntN(tasks)]
				t.StatusMessage = message
				if f.raceToRead(&h, w, &t) {
					continue
				}
				f.raceToCreate(&h, w, &t)
			}
		})
	}
	wg.Wait()
	if result := porcupine.CheckOperationsTimeout(registers, h.ops, time.Minute); result != porcupine.Ok {
		f.Errorf("history of %d operations: %s", len(h.ops), result)
	}
}

func (f *fixture) raceToCreate(h *history, client int, t *task.Task) {
	h.record(client, input{ref: t.ID, create: true, update: seenAs(t)}, func() output {
		existing, err := f.Store.Create(f.Context(), t, store.Quota{})
		if existing != nil {
			f.Errorf("a create without a key returned %+v", existing)
		}
		return output{refused: err != nil}
	})
}

// raceToRead reads the task and, if it is there and was read whole, changes it.
func (f *fixture) raceToRead(h *history, client int, t *task.Task) (found bool) {
	var seen *task.Task
	light := rand.IntN(4) == 0
	read := f.Store.Load
	if light {
		read = f.Store.Get
	}
	h.record(client, input{ref: t.ID, light: light}, func() output {
		got, err := read(f.Context(), t.Ref)
		if errors.Is(err, store.ErrNotFound) {
			return output{}
		}
		if err != nil {
			f.Error(err)
			return output{}
		}
		seen = got
		return output{state: *seenAs(got)}
	})
	if seen == nil || light {
		return seen != nil
	}
	changed, err := randomChange(seen, t.StatusMessage)
	if err != nil {
		return true // it is terminal
	}
	h.record(client, input{ref: t.ID, update: seenAs(withInputs(seen, changed))}, func() output {
		err := f.Store.Update(f.Context(), changed)
		if err != nil && !errors.Is(err, store.ErrConflict) {
			f.Error(err)
		}
		return output{refused: err != nil}
	})
	return true
}

// randomChange asks, answers, changes the message or, seldom, cancels.
func randomChange(t *task.Task, message string) (*task.Task, error) {
	at := epoch.Add(time.Minute)
	keys := open(t)
	switch n := rand.IntN(60); {
	case n == 0:
		return t.To(task.Cancelled, message, at)
	case n < 15:
		return t.Ask(message, nil, message, at)
	case n < 40 && len(keys) > 0:
		return answerTo(t, keys[rand.IntN(len(keys))], result("%q", message))
	}
	return t.To(t.Status, message, at)
}

// seenAs tells all states of a task apart: each input has the message of who made it.
func seenAs(t *task.Task) *state {
	s := &state{revision: t.Revision, message: t.StatusMessage, status: t.Status, asked: t.Asked}
	for _, in := range t.Inputs {
		s.inputs += fmt.Sprintf("%s %s", in.Key, in.Method)
		if in.Answer != nil {
			s.inputs += fmt.Sprintf(": %s", in.Answer.Result)
		}
		s.inputs += "\n"
	}
	return s
}

// What a caller does not wait for happens whole or not at all; what it was told happened, did.
func testGivenUp(f *fixture) {
	var wg sync.WaitGroup
	for i := range 64 {
		t := f.made("p")
		done, err := t.Finish(completed, "done", epoch.Add(time.Minute))
		if i%2 == 0 {
			done, err = t.Ask("a", nil, "asking", epoch.Add(time.Minute))
		}
		if err != nil {
			f.Fatal(err)
		}
		ctx, cancel := context.WithCancel(f.Context())
		wg.Go(func() { // it leaves at some time, or before it came
			for range i * 20 {
				runtime.Gosched()
			}
			cancel()
		})
		wg.Go(func() {
			_, createErr := f.Store.Create(ctx, t, store.Quota{})
			updateErr := createErr
			if createErr == nil {
				updateErr = f.Store.Update(ctx, done)
			}
			if updateErr != nil && !errors.Is(updateErr, context.Canceled) {
				f.Error(updateErr)
			}
			got, err := f.Store.Load(f.Context(), t.Ref)
			switch {
			case errors.Is(err, store.ErrNotFound) && createErr != nil:
			case err != nil:
				f.Errorf("create said %v, load says %v", createErr, err)
			case got.Revision == 1 && updateErr != nil:
				f.equal("created", t, got)
			default:
				f.equal("changed", done, got)
			}
		})
	}
	wg.Wait()
}
