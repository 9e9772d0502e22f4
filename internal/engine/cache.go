package engine

import (
	"sync"

	"github.com/coatcheck/coatcheck/task"
)

// cache keeps the state of finished tasks, which never changes, so that polling does not
// reach the store. When it is full, one that was not asked for lately makes room: the hand
// goes round, and passes over each that was used since it last came by.
type cache struct {
	mu    sync.Mutex
	size  int
	index map[task.Ref]int
	ring  []cached
	hand  int
}

type cached struct {
	task *task.Task // nil: free
	used bool
}

func newCache(size int) *cache {
	return &cache{size: max(1, size), index: map[task.Ref]int{}}
}

func (c *cache) get(ref task.Ref) *task.Task {
	c.mu.Lock()
	defer c.mu.Unlock()
	i, ok := c.index[ref]
	if !ok {
		return nil
	}
	c.ring[i].used = true
	return c.ring[i].task
}

// add remembers a terminal task, without its request and outcome.
func (c *cache) add(t *task.Task) {
	light := *t
	light.Request, light.Outcome = task.Request{}, nil
	c.mu.Lock()
	defer c.mu.Unlock()
	i, ok := c.index[t.Ref]
	if !ok {
		i = c.room()
		c.index[t.Ref] = i
	}
	c.ring[i] = cached{task: &light}
}

// room returns a free place in the ring.
func (c *cache) room() int {
	if len(c.ring) < c.size {
		c.ring = append(c.ring, cached{})
		return len(c.ring) - 1
	}
	for c.ring[c.hand].used {
		c.ring[c.hand].used = false
		c.hand = (c.hand + 1) % c.size
	}
	i := c.hand
	if old := c.ring[i].task; old != nil {
		delete(c.index, old.Ref)
	}
	c.hand = (c.hand + 1) % c.size
	return i
}

func (c *cache) drop(ref task.Ref) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i, ok := c.index[ref]; ok {
		delete(c.index, ref)
		c.ring[i] = cached{}
	}
}
