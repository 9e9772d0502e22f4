package engine

import (
	"sync"

	"github.com/coatcheck/coatcheck/task"
)

// cache keeps the state of finished tasks, which never changes, so that polling does not
// reach the store. It forgets roughly the least recently used: when the young generation
// is full it becomes the old one, and the former old one goes.
type cache struct {
	mu         sync.Mutex
	size       int // of a generation
	young, old map[task.Ref]*task.Task
}

func newCache(size int) *cache {
	return &cache{size: max(1, size/2), young: map[task.Ref]*task.Task{}}
}

func (c *cache) get(ref task.Ref) *task.Task {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.young[ref]
	if t == nil {
		if t = c.old[ref]; t != nil {
			c.put(ref, t)
		}
	}
	return t
}

// add remembers a terminal task, without its request and outcome.
func (c *cache) add(t *task.Task) {
	light := *t
	light.Request, light.Outcome = task.Request{}, nil
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(light.Ref, &light)
}

func (c *cache) put(ref task.Ref, t *task.Task) {
	if len(c.young) >= c.size {
		c.old, c.young = c.young, make(map[task.Ref]*task.Task, c.size)
	}
	c.young[ref] = t
}

func (c *cache) drop(ref task.Ref) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.young, ref)
	delete(c.old, ref)
}
