package engine

import (
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

const (
	// maxQueue and maxBytes are how many events, and bytes of them, a stream may lag behind; then
	// its oldest notifications go.
	maxQueue = 1024
	maxBytes = 16 << 20
	// progressEvery is how often a stream is told of one task's progress, at most.
	progressEvery = 50 * time.Millisecond
	// maxTries is how often one stream is asked a question that it answers wrongly.
	maxTries = 3
)

// Event is one thing that a requestor is to be told about a task.
type Event struct {
	Task   string // its id
	Method string
	Params json.RawMessage // as the server wrote them; nil for a change of status
	Ask    string          // of a question: the id to ask it under, never used before
	State  *task.Task      // of a change of status
}

// Listener is a stream on which a requestor can be told things.
type Listener struct {
	Principal  task.Principal
	Session    string          // that the stream belongs to; "" if there is none
	Identified bool            // the principal tells this requestor from all others
	Connection bool            // all streams of the session are one connection, as over stdio
	Initialize json.RawMessage // params of the session's initialize request, if seen
}

// Feed is what one stream is still to be told, in order. Putting something in never blocks.
type Feed struct {
	listener Listener
	wake     chan struct{} // receives when there may be something to take

	mu    sync.Mutex
	queue []item
	bytes int                   // of params, in the queue
	taken string                // the task of what was taken last and may be on its way still
	last  map[string]time.Time  // when each task's progress was taken last
	asked map[question]*inquiry // what was asked here and not been answered yet
	idle  []idleWait
}

type item struct {
	Event
	progress bool
	due      time.Time // not to be taken before, unless something of the same task follows
}

// question names an input request.
type question struct{ task, key string }

// inquiry is a question as it was asked on one stream.
type inquiry struct {
	id    string // of the JSON-RPC request
	tries int
}

type idleWait struct {
	task string
	done chan struct{}
}

func newFeed(l Listener) *Feed { return &Feed{listener: l, wake: make(chan struct{}, 1)} }

// push puts an event into the queue. Progress takes the place of what its task reported
// before, if that was not taken yet and nothing else came since.
func (f *Feed) push(ev Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	it := item{Event: ev, progress: ev.Method == protocol.MethodProgress}
	if it.progress {
		it.due = f.last[ev.Task].Add(progressEvery)
	}
	for i, earlier := range slices.Backward(f.queue) {
		if earlier.Task != ev.Task {
			continue
		}
		if it.progress && earlier.progress {
			f.bytes += len(it.Params) - len(earlier.Params)
			f.queue[i] = it
			f.signal()
			return
		}
		f.queue[i].due = time.Time{} // order matters more than pace
		break
	}
	f.makeRoom(len(ev.Params))
	f.queue = append(f.queue, it)
	f.bytes += len(ev.Params)
	f.signal()
}

// makeRoom drops what can be missed: log messages and changes of status first, then progress.
func (f *Feed) makeRoom(bytes int) {
	for len(f.queue) > 0 && (len(f.queue) >= maxQueue || f.bytes+bytes > maxBytes) {
		i := slices.IndexFunc(f.queue, func(it item) bool { return it.told() && !it.progress })
		if i < 0 {
			i = slices.IndexFunc(f.queue, item.told)
		}
		if i < 0 {
			return
		}
		f.remove(i)
	}
}

// told reports whether an item only tells something: nothing is asked or taken back.
func (it item) told() bool { return it.Ask == "" && it.Method != protocol.MethodCancelled }

// said reports whether an item is what a task says of itself: progress, a log message.
func (it item) said() bool { return it.told() && it.State == nil }

func (f *Feed) remove(i int) {
	f.bytes -= len(f.queue[i].Params)
	f.queue = slices.Delete(f.queue, i, i+1)
}

// end returns what tasks said and was not taken, of a stream that takes no more.
func (f *Feed) end() (unsaid []Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, it := range f.queue {
		if it.said() {
			unsaid = append(unsaid, it.Event)
		}
	}
	f.queue, f.bytes, f.taken = nil, 0, ""
	f.wakeIdle()
	return unsaid
}

func (f *Feed) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// take returns the next event. If there is none now, wait says after what time there is one;
// 0 is not known. It also says that what was taken before is on its way.
func (f *Feed) take(now time.Time) (ev Event, ok bool, wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.taken = ""
	defer f.wakeIdle()
	for i, it := range f.queue {
		if left := it.due.Sub(now); left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
			continue
		}
		f.remove(i)
		f.taken = it.Task
		if it.progress {
			if f.last == nil {
				f.last = map[string]time.Time{}
			}
			f.last[it.Task] = now
		}
		return it.Event, true, 0
	}
	return Event{}, false, wait
}

// hurry has a task's progress taken at once, and returns a channel that is closed when there
// is none left to take or on its way.
func (f *Feed) hurry(id string) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := idleWait{id, make(chan struct{})}
	for i := range f.queue {
		if f.queue[i].Task == id {
			f.queue[i].due = time.Time{}
		}
	}
	f.idle = append(f.idle, w)
	f.wakeIdle()
	f.signal()
	return w.done
}

// handOver moves what a task says and was not taken yet to a stream that nobody takes from
// yet. The channel is closed when what was taken is on its way; nil if nothing was.
func (f *Feed) handOver(id string, to *Feed) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue = slices.DeleteFunc(f.queue, func(it item) bool {
		moves := it.Task == id && it.said()
		if moves {
			f.bytes -= len(it.Params)
			to.queue, to.bytes = append(to.queue, it), to.bytes+len(it.Params)
		}
		return moves
	})
	if f.taken != id {
		f.wakeIdle()
		return nil
	}
	w := idleWait{id, make(chan struct{})}
	f.idle = append(f.idle, w)
	return w.done
}

func (f *Feed) wakeIdle() {
	f.idle = slices.DeleteFunc(f.idle, func(w idleWait) bool {
		if f.taken == w.task || slices.ContainsFunc(f.queue, func(it item) bool { return it.progress && it.Task == w.task }) {
			return false
		}
		close(w.done)
		return true
	})
}

// over drops a task's progress, which must not come after its end (PROG-1).
func (f *Feed) over(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue = slices.DeleteFunc(f.queue, func(it item) bool {
		drop := it.progress && it.Task == id
		if drop {
			f.bytes -= len(it.Params)
		}
		return drop
	})
	delete(f.last, id)
	f.wakeIdle()
}

// ask puts a question in, under an id of its own. It reports false if it was asked here before
// and not answered, or not rightly maxTries times.
func (f *Feed) ask(q *openQuestion) bool {
	f.mu.Lock()
	asked := f.asked[q.name]
	if asked != nil && (asked.id != "" || asked.tries >= maxTries) {
		f.mu.Unlock()
		return asked.id != ""
	}
	if asked == nil {
		if f.asked == nil {
			f.asked = map[question]*inquiry{}
		}
		asked = &inquiry{}
		f.asked[q.name] = asked
	}
	asked.id = newAskID(q.name)
	asked.tries++
	ev := Event{Task: q.name.task, Method: q.input.Method, Params: q.input.Params, Ask: asked.id}
	f.mu.Unlock()
	f.push(ev)
	return true
}

// askOnce is ask for a question that is looked at again and again: it reports whether it put
// it in.
func (f *Feed) askOnce(q *openQuestion) bool {
	f.mu.Lock()
	asked := f.asked[q.name] != nil
	f.mu.Unlock()
	return !asked && f.ask(q)
}

// refused notes that the answer to a question asked here was no good, and reports whether
// it was asked here.
func (f *Feed) refused(name question, id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked[name]
	if asked == nil || asked.id != id {
		return false
	}
	asked.id = ""
	return true
}

// closed takes back a question that needs no answer any more; if it was answered here, under
// the id given, there is nothing to take back. It reports whether it put something in.
func (f *Feed) closed(name question, answeredAs string) bool {
	f.mu.Lock()
	asked := f.asked[name]
	delete(f.asked, name)
	sent := true
	if asked != nil && asked.id != "" {
		if i := slices.IndexFunc(f.queue, func(it item) bool { return it.Ask == asked.id }); i >= 0 {
			f.remove(i)
			sent = false
		}
	}
	f.mu.Unlock()
	if asked == nil || asked.id == "" || asked.id == answeredAs || !sent {
		return false
	}
	f.push(Event{Task: name.task, Method: protocol.MethodCancelled, Params: protocol.Marshal(struct {
		RequestID string `json:"requestId"`
		Reason    string `json:"reason"`
	}{asked.id, "The question needs no answer any more."})})
	return true
}
