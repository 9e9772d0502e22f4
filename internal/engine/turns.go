package engine

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/task"
)

// LimitError says that a requestor has or does as much as it may (RSC-1).
type LimitError struct {
	Limit      string        // its name, as in package limit
	RetryAfter time.Duration // when to try again; 0: waiting does not help; negative: nobody knows when
	Message    string        // for the requestor
}

func (e *LimitError) Error() string { return e.Message }

// turns says which tasks work, and which wait for their turn. A requestor's tasks of one tool
// wait in a lane, first come, first served; the lanes take turns.
type turns struct {
	policy *limit.Policy

	mu      sync.Mutex
	of      map[string]*share // by who
	tools   map[string]int    // tasks that work, by tool
	working int
	queued  int
	lanes   []*lane // that have tasks, the one that is next first
	average time.Duration
	closed  bool
}

// share is what one requestor has of the turns.
type share struct{ working, queued int }

type lane struct {
	who       string
	principal task.Principal
	tool      string
	waiting   []*live
}

// turn is a live task's place in the turns, whose mu guards it.
type turn struct {
	who, tool string
	state     turnState
	waited    bool // it had to wait
	inLane    bool // it is stored, and waits in its lane
	entered   time.Time
}

type turnState int

const (
	uncounted turnState = iota // adopted, or over
	atWork
	inQueue
	aside // it waits for input
)

func newTurns(policy *limit.Policy) *turns {
	return &turns{policy: policy, of: map[string]*share{}, tools: map[string]int{}}
}

// enter gives a task that is about to be stored a place at work or in the queue.
func (ts *turns) enter(l *live, limits limit.Limits, now time.Time) *LimitError {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	l.turn.entered = now
	s := ts.of[l.turn.who]
	if s == nil {
		s = &share{}
	}
	running, queued := ts.policy.InAll()
	switch {
	case ts.room(s, limits, l.turn.tool, running) && ts.lane(l) == nil:
		l.turn.state = atWork
		ts.count(s, l.turn.tool, 1)
	case limits.NoQueue:
		return ts.busy("running", "as many tasks as may run at once are running")
	case limit.Exceeds(s.queued+1, limits.Queued), limit.Exceeds(ts.queued+1, queued):
		return ts.busy("queued", "as many tasks as may wait for their turn are waiting")
	default:
		l.turn.state = inQueue
		l.queued.Store(true)
		l.turn.waited = true
		s.queued++
		ts.queued++
	}
	ts.of[l.turn.who] = s
	return nil
}

// busy is a refusal that says to come back when a task is likely to have ended.
func (ts *turns) busy(name, what string) *LimitError {
	return &LimitError{Limit: name, RetryAfter: min(max(ts.average, time.Second), time.Minute), Message: "Too many tasks: " + what}
}

// room reports whether one more task of a tool may work.
func (ts *turns) room(s *share, limits limit.Limits, tool string, running int) bool {
	return !limit.Exceeds(ts.working+1, running) && !limit.Exceeds(s.working+1, limits.Running) &&
		!limit.Exceeds(ts.tools[tool]+1, cmp.Or(ts.policy.Tool(tool).Running, limit.None))
}

func (ts *turns) count(s *share, tool string, n int) {
	s.working += n
	ts.working += n
	if ts.tools[tool] += n; ts.tools[tool] == 0 {
		delete(ts.tools, tool)
	}
}

func (ts *turns) lane(l *live) *lane {
	for _, lane := range ts.lanes {
		if lane.who == l.turn.who && lane.tool == l.turn.tool {
			return lane
		}
	}
	return nil
}

// stored says that a task that entered is stored. It returns the tasks that begin to work now;
// dropped says that this one is over already and never will.
func (ts *turns) stored(l *live) (starting []*live, dropped bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if l.turn.state != inQueue {
		if l.queued.Load() { // it was to wait, and is over
			return nil, true
		}
		return []*live{l}, false
	}
	in := ts.lane(l)
	if in == nil {
		in = &lane{who: l.turn.who, principal: l.ref.Principal, tool: l.turn.tool}
		ts.lanes = append(ts.lanes, in)
	}
	in.waiting = append(in.waiting, l)
	l.turn.inLane = true
	return ts.next(), false
}

// step counts a task that waits for input out, and one that goes on in: at once, whatever the
// limits say. It returns the tasks that begin to work now.
func (ts *turns) step(l *live, now task.Status) []*live {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	switch {
	case now == task.InputRequired && l.turn.state == atWork:
		ts.release(l)
		l.turn.state = aside
		return ts.next()
	case now == task.Working && l.turn.state == aside:
		if ts.of[l.turn.who] == nil {
			ts.of[l.turn.who] = &share{}
		}
		ts.count(ts.of[l.turn.who], l.turn.tool, 1)
		l.turn.state = atWork
	}
	return nil
}

// leave gives up the place of a task that is over. It returns the tasks that begin to work
// now; dropped says that this one waited in its lane, and never will.
func (ts *turns) leave(l *live, ran time.Duration) (starting []*live, dropped bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	before := l.turn.state
	l.turn.state = uncounted
	switch before {
	case atWork:
		ts.release(l)
		fallthrough
	case aside:
		ts.average = (7*ts.average + ran) / 8
	case inQueue:
		s := ts.of[l.turn.who]
		s.queued--
		ts.queued--
		ts.tidy(l.turn.who, s)
		if l.turn.inLane {
			ts.drop(l)
			dropped = true
		}
	case uncounted:
	}
	return ts.next(), dropped
}

func (ts *turns) release(l *live) {
	s := ts.of[l.turn.who]
	ts.count(s, l.turn.tool, -1)
	ts.tidy(l.turn.who, s)
}

func (ts *turns) tidy(who string, s *share) {
	if s.working == 0 && s.queued == 0 {
		delete(ts.of, who)
	}
}

// drop takes a task out of its lane.
func (ts *turns) drop(l *live) {
	in := ts.lane(l)
	in.waiting = slices.DeleteFunc(in.waiting, func(w *live) bool { return w == l })
	if len(in.waiting) == 0 {
		ts.lanes = slices.DeleteFunc(ts.lanes, func(other *lane) bool { return other == in })
	}
}

// next takes the tasks whose turn it is out of their lanes.
func (ts *turns) next() (starting []*live) {
	running, _ := ts.policy.InAll()
	for i := 0; i < len(ts.lanes) && !ts.closed && !limit.Exceeds(ts.working+1, running); {
		in := ts.lanes[i]
		s := ts.of[in.who]
		if !ts.room(s, ts.policy.For(in.principal), in.tool, running) {
			i++
			continue
		}
		l := in.waiting[0]
		in.waiting = in.waiting[1:]
		s.queued--
		ts.queued--
		ts.count(s, in.tool, 1)
		l.turn.state, l.turn.inLane = atWork, false
		l.queued.Store(false)
		starting = append(starting, l)
		ts.lanes = slices.Delete(ts.lanes, i, i+1)
		if len(in.waiting) > 0 {
			ts.lanes = append(ts.lanes, in)
		}
		// All of this requestor's lanes go behind those of others: many tools give no more turns.
		slices.SortStableFunc(ts.lanes, func(a, b *lane) int {
			return cmp.Compare(btoi(a.who == in.who), btoi(b.who == in.who))
		})
		i = 0
	}
	return starting
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// close has no more tasks begin to work.
func (ts *turns) close() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.closed = true
}

// check verifies the counts against the tasks that are there (for tests).
func (ts *turns) check(all []*live) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	working, queued := 0, 0
	for _, l := range all {
		switch l.turn.state {
		case atWork:
			working++
		case inQueue:
			queued++
		case uncounted, aside:
		}
	}
	inLanes, byWho := 0, share{}
	for _, lane := range ts.lanes {
		inLanes += len(lane.waiting)
	}
	for _, s := range ts.of {
		byWho.working += s.working
		byWho.queued += s.queued
	}
	if working != ts.working || queued != ts.queued || byWho.working != working || byWho.queued != queued || inLanes != queued {
		return fmt.Errorf("%d tasks work and %d wait, but %d and %d are counted, %d and %d by requestor, %d in lanes",
			working, queued, ts.working, ts.queued, byWho.working, byWho.queued, inLanes)
	}
	return nil
}
