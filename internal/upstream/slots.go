package upstream

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/task"
)

// asidePerSlot bounds how many processes wait for input beside those that work, for each slot.
const asidePerSlot = 16

// slots bounds how many processes run tasks at a time. A task holds a slot; one that waits for
// input steps aside, since that may take days. Slots go first come, first served.
type slots struct {
	limit int

	mu    sync.Mutex
	held  int             // also by the tasks aside
	aside int             // of them
	queue []chan struct{} // closed when the slot is taken for whoever waits
}

// take takes a slot, once there is one. The error is ctx's.
func (s *slots) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	turn := make(chan struct{})
	s.mu.Lock()
	s.queue = append(s.queue, turn)
	s.admit()
	s.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.queue, turn); i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
	} else { // it was its turn meanwhile
		s.held--
		s.admit()
	}
	return ctx.Err()
}

// give gives a slot back.
func (s *slots) give() { s.change(-1, 0) }

// stepAside says that the task in a slot waits for input.
func (s *slots) stepAside() { s.change(0, 1) }

// stepBack says that it goes on: at once, though that be beyond the limit for a while.
func (s *slots) stepBack() { s.change(0, -1) }

func (s *slots) change(held, aside int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held += held
	s.aside += aside
	s.admit()
}

// admit gives slots to those whose turn it is.
func (s *slots) admit() {
	for len(s.queue) > 0 && s.held-s.aside < s.limit && s.held < s.limit*(1+asidePerSlot) {
		s.held++
		close(s.queue[0])
		s.queue = s.queue[1:]
	}
}

// spare returns how many more tasks could work; less than 0 if some came back beyond the limit.
func (s *slots) spare() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limit - (s.held - s.aside)
}

// use returns how many tasks work, wait for input, and wait for a slot.
func (s *slots) use() (busy, aside, queued int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held - s.aside, s.aside, len(s.queue)
}

// slotLine is the line of a task that holds a slot. The task steps aside while it waits for
// answers.
type slotLine struct {
	engine.Line
	slots *slots

	mu   sync.Mutex
	open int // questions; less than 0 while one is answered before Ask has returned
}

// Ask implements engine.Line.
func (l *slotLine) Ask(method string, params json.RawMessage, reply func(task.Outcome)) (withdraw func(), err error) {
	var once sync.Once
	closed := func() { once.Do(func() { l.count(-1) }) }
	back, err := l.Line.Ask(method, params, func(answer task.Outcome) {
		closed()
		reply(answer)
	})
	if err != nil {
		return nil, err
	}
	l.count(1)
	return func() {
		back()
		closed()
	}, nil
}

func (l *slotLine) count(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	waited := l.open > 0
	l.open += n
	switch waits := l.open > 0; {
	case waits && !waited:
		l.slots.stepAside()
	case waited && !waits:
		l.slots.stepBack()
	}
}
