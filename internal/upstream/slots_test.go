//go:build unix

package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slots{limit: 1}
		taken := make(chan error, 100)
		take := func(ctx context.Context) {
			go func() { taken <- s.take(ctx) }()
			synctest.Wait()
		}
		expect := func(n int) {
			t.Helper()
			synctest.Wait()
			if len(taken) != n {
				t.Fatalf("%d slots were taken, want %d", len(taken), n)
			}
			for range n {
				if err := <-taken; err != nil {
					t.Error(err)
				}
			}
		}
		take(t.Context())
		expect(1)
		ctx, cancel := context.WithCancel(t.Context())
		take(ctx)
		take(t.Context())
		expect(0)
		cancel() // the one before is not held up by it
		if err := <-taken; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		s.give()
		expect(1)
		take(t.Context())
		s.stepAside()
		expect(1)
		s.stepBack() // two work now
		take(t.Context())
		s.give()
		expect(0)
		s.give()
		expect(1)
		for range asidePerSlot {
			s.stepAside()
			take(t.Context())
			expect(1)
		}
		s.stepAside() // all that may be there are aside
		take(t.Context())
		expect(0)
		s.give()
		expect(1)
	})
}

// occupied has a process run a task until stop is called.
func occupied(t *testing.T, p *Processes) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	job, progress := newJob("wait")
	ended := make(chan error)
	go func() {
		_, err := p.Run(ctx, job)
		ended <- err
	}()
	<-progress
	return func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// slowAnswers is a requestor that takes its time to answer.
type slowAnswers struct {
	engine.Line
	replies chan func(task.Outcome)
}

func (l slowAnswers) Ask(_ string, _ json.RawMessage, reply func(task.Outcome)) (func(), error) {
	l.replies <- reply
	return func() {}, nil
}

// A task that waits for input holds nobody up, and goes on beside others.
func TestWaitingTaskStepsAside(t *testing.T) {
	p := newProcesses(t, 1)
	caller := &engine.Caller{Identified: true, Initialize: []byte(`{"capabilities":{"elicitation":{}}}`)}
	replies := make(chan func(task.Outcome))
	outcomes := make(chan string)
	start := func() func(task.Outcome) {
		job, _ := newJob("elicit")
		job.Caller, job.Line = caller, slowAnswers{job.Line, replies}
		go func() {
			outcome, err := p.Run(t.Context(), job)
			if err != nil {
				t.Error(err)
			}
			outcomes <- textOf(outcome.Result)
		}()
		return <-replies
	}
	first, second := start(), start()
	mustRun(t, p, "echo")

	stop := occupied(t, p)
	for _, reply := range []func(task.Outcome){second, first} {
		reply(task.Outcome{Result: json.RawMessage(`{"action":"decline"}`)})
		if got := <-outcomes; got != "decline" {
			t.Error(got)
		}
	}
	stop()
	mustRun(t, p, "echo")
	eventually(t, "no process beyond the limit, and no slot held", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.all) <= 1 && p.slots.spare() == 1
	})
}

// RSC-4: what the pool is used for, as it changes.
func TestStats(t *testing.T) {
	p := newProcesses(t, 1)
	want := func(what string, s Stats) {
		t.Helper()
		s.Limit = 1
		eventually(t, what, func() bool { return p.Stats() == s })
	}
	want("nothing", Stats{})
	stop := occupied(t, p)
	want("one works", Stats{Busy: 1})
	replies := make(chan func(task.Outcome))
	ended := make(chan error)
	go func() {
		job, _ := newJob("elicit")
		job.Caller = &engine.Caller{Identified: true, Initialize: []byte(`{"capabilities":{"elicitation":{}}}`)}
		job.Line = slowAnswers{job.Line, replies}
		_, err := p.Run(t.Context(), job)
		ended <- err
	}()
	want("and one waits for it", Stats{Busy: 1, Queued: 1})
	stop()
	reply := <-replies
	want("which asks something", Stats{Input: 1})
	reply(task.Outcome{Result: json.RawMessage(`{"action":"decline"}`)})
	if err := <-ended; err != nil {
		t.Error(err)
	}
	want("and its process is kept", Stats{Idle: 1})
}

// What the tools are waits for no task.
func TestToolsWaitForNoTask(t *testing.T) {
	p := newProcesses(t, 1)
	stop := occupied(t, p)
	p.tools.changed()
	for range 2 {
		if _, err := p.Tools(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, ok := p.tools.cached(); !ok {
		t.Error("asked again though nothing changed") // for each, a process is started
	}
	eventually(t, "one process", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.all) == 1 && len(p.idle) == 0
	})
	stop()
}

// An answer that is there before Ask has returned.
func TestSlotLineAnsweredAtOnce(t *testing.T) {
	s := &slots{limit: 1, held: 1}
	l := &slotLine{slots: s, Line: &line{answer: func(string, json.RawMessage) (task.Outcome, error) {
		if s.aside != 0 {
			t.Error("aside before anything is open")
		}
		return task.Outcome{}, nil
	}}}
	withdraw, err := l.Ask(protocol.MethodElicit, nil, func(task.Outcome) {})
	if err != nil {
		t.Fatal(err)
	}
	withdraw()
	if s.aside != 0 || l.open != 0 {
		t.Errorf("%d aside, %d open", s.aside, l.open)
	}
}

func TestSlotLineRefused(t *testing.T) {
	s := &slots{limit: 1, held: 1}
	l := &slotLine{slots: s, Line: &line{}}
	if _, err := l.Ask(protocol.MethodListRoots, nil, nil); err == nil || s.aside != 0 {
		t.Errorf("%d aside, error %v", s.aside, err)
	}
}
