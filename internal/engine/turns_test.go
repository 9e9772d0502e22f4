package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/store/memory"
	"github.com/coatcheck/coatcheck/task"
)

// gated is work that goes on until it is let go, and counts itself.
type gated struct {
	mu      sync.Mutex
	atWork  map[string]int // by principal
	most    map[string]int
	order   []string // ids, as they began
	open    map[string]chan struct{}
	working chan struct{} // receives as each begins
}

func newGated() *gated {
	return &gated{atWork: map[string]int{}, most: map[string]int{}, open: map[string]chan struct{}{}, working: make(chan struct{}, 10_000)}
}

func (g *gated) gate(id string) chan struct{} {
	if g.open[id] == nil {
		g.open[id] = make(chan struct{})
	}
	return g.open[id]
}

func (g *gated) Run(ctx context.Context, job *Job) (task.Outcome, error) {
	who := string(job.Ref.Principal)
	g.mu.Lock()
	g.atWork[who]++
	g.atWork[""]++
	g.most[who] = max(g.most[who], g.atWork[who])
	g.most[""] = max(g.most[""], g.atWork[""])
	g.order = append(g.order, job.Ref.ID)
	gate := g.gate(job.Ref.ID)
	g.mu.Unlock()
	g.working <- struct{}{}
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.atWork[who]--
		g.atWork[""]--
	}()
	select {
	case <-gate:
		return task.Outcome{Result: json.RawMessage(`{}`)}, nil
	case <-ctx.Done():
		return task.Outcome{}, ctx.Err()
	}
}

func (g *gated) letGo(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.gate(id))
}

func limited(t testing.TB, runner Runner, p *limit.Policy) *Engine {
	e, err := New(context.Background(), Options{Store: memory.New(), Runner: runner, Limits: p})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		if err := e.Shutdown(over); err != nil {
			t.Error(err)
		}
		if err := e.CheckTurns(); err != nil {
			t.Error(err)
		}
		e.turns.mu.Lock()
		defer e.turns.mu.Unlock()
		if len(e.turns.of)+len(e.turns.tools)+len(e.turns.lanes) != 0 {
			t.Errorf("left behind: %+v %v %v", e.turns.of, e.turns.tools, e.turns.lanes)
		}
	})
	return e
}

func creation(principal task.Principal, tool string) Creation {
	return Creation{
		Caller:  &Caller{Principal: principal, Identified: true},
		Request: task.Request{Method: "tools/call", Params: fmt.Appendf(nil, `{"name":%q}`, tool)},
	}
}

// RSC-1: a thousand creates at once never have more at work, and in the queue, than may be.
func TestRacingCreates(t *testing.T) {
	g := newGated()
	e := limited(t, g, &limit.Policy{
		Limits: limit.Limits{Running: 10, Queued: 40}, RunningInAll: 25, QueuedInAll: 100,
	})
	var all sync.WaitGroup
	var made sync.Map
	var refused [4]atomic.Int64
	for i := range 1000 {
		who := i % 4
		all.Go(func() {
			made1, err := e.Create(context.Background(), creation(task.Principal(fmt.Sprint("p", who)), "x"))
			var exceeded *LimitError
			switch {
			case err == nil:
				made.Store(made1.Ref, who)
			case errors.As(err, &exceeded) && exceeded.Limit == "queued" && exceeded.RetryAfter >= time.Second:
				refused[who].Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	n := 0
	made.Range(func(any, any) bool { n++; return true })
	if n != 125 { // 25 at work and 100 waiting, in all
		t.Errorf("%d were made", n)
	}
	for i := range refused {
		if refused[i].Load() < 200 { // of 250: 50 at most are one's own
			t.Errorf("p%d: %d refused", i, refused[i].Load())
		}
	}
	if err := e.CheckTurns(); err != nil {
		t.Error(err)
	}
	made.Range(func(ref, _ any) bool {
		g.letGo(ref.(task.Ref).ID)
		return true
	})
	made.Range(func(ref, _ any) bool {
		if got, err := e.Await(t.Context(), ref.(task.Ref)); err != nil || got.Status != task.Completed {
			t.Errorf("%v, %v", got, err)
		}
		return true
	})
	for who, most := range g.most {
		if who == "" && most > 25 || who != "" && most > 10 {
			t.Errorf("%q had %d at work", who, most)
		}
	}
}

// One requestor's many tasks do not hold up another's few: the requestors take turns.
func TestRequestorsTakeTurns(t *testing.T) {
	g := newGated()
	e := limited(t, g, &limit.Policy{RunningInAll: 1})
	who := map[string]task.Principal{}
	make1 := func(p task.Principal) string {
		made, err := e.Create(context.Background(), creation(p, "x"))
		if err != nil {
			t.Fatal(err)
		}
		who[made.ID] = p
		return made.ID
	}
	first := make1("many")
	for range 5 {
		make1("many")
	}
	make1("few")
	make1("few")
	<-g.working
	g.letGo(first)
	for range 7 {
		<-g.working
		g.mu.Lock()
		last := g.order[len(g.order)-1]
		g.mu.Unlock()
		g.letGo(last)
	}
	var order []task.Principal
	for _, id := range g.order {
		order = append(order, who[id])
	}
	if want := []task.Principal{"many", "many", "few", "many", "few", "many", "many", "many"}; !slices.Equal(order, want) {
		t.Errorf("%v, want %v", order, want)
	}
}

// RSC-1: what is there is counted, however tasks come, wait for input, go on, end and are
// cancelled; nothing that may work waits, and what works stays within the bounds, but for those
// that come back from waiting for input.
func TestTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bound := func(name string) int { return rapid.IntRange(1, 4).Draw(t, name) }
		p := &limit.Policy{
			Limits:       limit.Limits{Running: bound("running"), Queued: bound("queued")},
			RunningInAll: bound("in all"), QueuedInAll: bound("queued in all"),
			Tools: map[string]limit.Tool{"a": {Running: bound("tool")}},
		}
		ts := newTurns(p)
		var all []*live
		back := 0 // may be at work beyond the bounds
		begin := func(ls []*live) {
			for _, l := range ls {
				if l.turn.state != atWork || l.queued.Load() {
					t.Fatalf("%+v begins", l.turn)
				}
			}
		}
		pick := func(state turnState) *live {
			var of []*live
			for _, l := range all {
				if l.turn.state == state && (state != inQueue || l.turn.inLane) {
					of = append(of, l)
				}
			}
			if len(of) == 0 {
				t.Skip("none")
			}
			return rapid.SampledFrom(of).Draw(t, "task")
		}
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				who := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "who")
				l := &live{ref: task.Ref{Principal: task.Principal(who)}, turn: turn{who: who, tool: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "tool")}}
				l.limits = p.For(l.ref.Principal)
				if ts.enter(l, l.limits, time.Now()) != nil {
					return
				}
				if rapid.IntRange(0, 9).Draw(t, "luck") == 0 { // it cannot be stored
					starting, dropped := ts.leave(l, 0)
					if dropped {
						t.Fatal("dropped, but it never waited")
					}
					begin(starting)
					return
				}
				all = append(all, l)
				starting, dropped := ts.stored(l)
				if dropped {
					t.Fatal("dropped")
				}
				begin(starting)
			},
			"ask": func(t *rapid.T) { begin(ts.step(pick(atWork), task.InputRequired)) },
			"go on": func(t *rapid.T) {
				begin(ts.step(pick(aside), task.Working))
				back++
			},
			"end": func(t *rapid.T) {
				l := pick(atWork)
				starting, _ := ts.leave(l, time.Second)
				begin(starting)
			},
			"cancel": func(t *rapid.T) {
				starting, dropped := ts.leave(pick(inQueue), 0)
				if !dropped {
					t.Fatal("not dropped")
				}
				begin(starting)
			},
			"": func(t *rapid.T) {
				if err := ts.check(all); err != nil {
					t.Fatal(err)
				}
				if back == 0 && ts.working > p.RunningInAll || ts.queued > p.QueuedInAll {
					t.Fatalf("%d work, %d wait", ts.working, ts.queued)
				}
				for who, s := range ts.of {
					if back == 0 && s.working > p.Running || s.queued > p.Queued {
						t.Fatalf("%s: %d work, %d wait", who, s.working, s.queued)
					}
				}
				for _, lane := range ts.lanes {
					if ts.room(ts.of[lane.who], p.Limits, lane.tool, p.RunningInAll) {
						t.Fatalf("%s's %s waits, and might work", lane.who, lane.tool)
					}
				}
			},
		})
	})
}

// Tasks that wait for their turn when the server shuts down end as those that work do.
func TestShutdownWithAQueue(t *testing.T) {
	g := newGated()
	e := limited(t, g, &limit.Policy{Limits: limit.Limits{Running: 1}})
	var refs []task.Ref
	for range 5 {
		made, err := e.Create(context.Background(), creation("p", "x"))
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, made.Ref)
	}
	<-g.working
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if err := e.Shutdown(over); err != nil {
		t.Fatal(err)
	}
	for _, ref := range refs {
		if got, err := e.Get(t.Context(), ref); err != nil || got.Status != task.Failed {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if len(g.order) != 1 {
		t.Errorf("%d ran", len(g.order))
	}
}
