package engine_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

func log(job *engine.Job, n int) {
	job.Notify(protocol.MethodLogMessage, fmt.Appendf(nil, `{"level":"info","data":%d}`, n))
}

// createIn creates a task in a session.
func createIn(t *testing.T, e *engine.Engine, session string) task.Ref {
	t.Helper()
	made, err := e.Create(t.Context(), engine.Creation{
		Caller:  &engine.Caller{Principal: "p", Session: session},
		Request: task.Request{Method: protocol.MethodToolsCall},
	})
	if err != nil {
		t.Fatal(err)
	}
	return made.Ref
}

// PROG-1, C.7: what a task said on its session's stream before a tasks/result call of that
// session came is written before what it says on the call's, and nothing is lost between.
func TestHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		on, said := make(chan struct{}), make(chan struct{})
		e := start(t, engine.Options{NoStatusNotifications: true, Runner: work(func(ctx context.Context, job *engine.Job) (task.Outcome, error) {
			for n := range 4 {
				log(job, n)
			}
			said <- struct{}{}
			<-on
			log(job, 4)
			return done, nil
		})})
		from := engine.Listener{Principal: "p", Session: "s"}
		outlet := e.Outlet(from)
		defer outlet.Close()
		ref := createIn(t, e, "s")
		<-said

		var order []string // as written to the connection
		write := func(ev engine.Event) { order = append(order, string(protocol.Get(ev.Params, "data"))) }
		first, err := outlet.Next(t.Context()) // taken, and not written yet
		if err != nil {
			t.Fatal(err)
		}
		a := e.Attend(ref.ID, from)
		defer a.Close()
		soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if ev, _, err := a.Next(soon); err == nil {
			t.Errorf("%s came while an earlier message was on its way", ev.Params)
		}
		write(first)
		more, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _, _ = outlet.Next(more) }()
		close(on)
		for {
			ev, final, err := a.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if final != nil {
				break
			}
			write(ev)
		}
		if !slices.Equal(order, []string{"0", "1", "2", "3", "4"}) {
			t.Errorf("written in the order %v", order)
		}
		stop()
		synctest.Wait()
	})
}

// A stream that is stuck holds the next one up for a moment only.
func TestHandOverFromAStuckStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, engine.Options{NoStatusNotifications: true, Runner: work(func(ctx context.Context, job *engine.Job) (task.Outcome, error) {
			log(job, 0)
			log(job, 1)
			return lasting(time.Hour)(ctx, job)
		})})
		from := engine.Listener{Principal: "p", Session: "s"}
		outlet := e.Outlet(from)
		defer outlet.Close()
		ref := createIn(t, e, "s")
		synctest.Wait()
		if _, err := outlet.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		a := e.Attend(ref.ID, from)
		defer a.Close()
		if ev, _, err := a.Next(t.Context()); err != nil || string(protocol.Get(ev.Params, "data")) != "1" {
			t.Errorf("got %s, %v", ev.Params, err)
		}
	})
}
