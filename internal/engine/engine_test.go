package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/store/memory"
	"github.com/coatcheck/coatcheck/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// work is a runner made of a function.
type work func(ctx context.Context, job *engine.Job) (task.Outcome, error)

func (w work) Run(ctx context.Context, job *engine.Job) (task.Outcome, error) { return w(ctx, job) }

var done = task.Outcome{Result: json.RawMessage(`{"content":[]}`)}

// lasting is work that takes d, unless it is stopped.
func lasting(d time.Duration) work {
	return func(ctx context.Context, _ *engine.Job) (task.Outcome, error) {
		select {
		case <-time.After(d):
			return done, nil
		case <-ctx.Done():
			return task.Outcome{}, ctx.Err()
		}
	}
}

func start(t *testing.T, opts engine.Options) *engine.Engine {
	t.Helper()
	if opts.Store == nil {
		opts.Store = memory.New()
	}
	e, err := engine.New(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, e) })
	return e
}

// stop ends an engine without grace.
func stop(t *testing.T, e *engine.Engine) {
	t.Helper()
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if err := e.Shutdown(over); err != nil {
		t.Error(err)
	}
	if err := e.CheckTurns(); err != nil {
		t.Error(err)
	}
}

func create(t *testing.T, e *engine.Engine, ttl time.Duration) task.Ref {
	t.Helper()
	made, err := e.Create(context.Background(), engine.Creation{
		Caller:   &engine.Caller{Principal: "p"},
		Request:  task.Request{Method: "tools/call", Params: json.RawMessage(`{"name":"x"}`)},
		Lifetime: engine.Lifetime{Asked: ttl != 0, TTL: ttl},
	})
	if err != nil {
		t.Fatal(err)
	}
	return made.Ref
}

func TestExpiryOfWorkAndResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopped := make(chan error, 1)
		e := start(t, engine.Options{
			MinRetention: -1,
			Remember:     time.Minute,
			Runner: work(func(ctx context.Context, job *engine.Job) (task.Outcome, error) {
				o, err := lasting(5*time.Second)(ctx, job)
				if err != nil {
					stopped <- context.Cause(ctx)
				}
				return o, err
			}),
		})
		ctx := t.Context()
		short, long := create(t, e, 3*time.Second), create(t, e, 10*time.Second)
		begin := time.Now()
		if _, err := e.Await(ctx, short); !errors.Is(err, store.ErrExpired) { // C.4
			t.Errorf("waiter got %v", err)
		}
		if d := time.Since(begin); d != 3*time.Second {
			t.Errorf("expired after %v", d)
		}
		if cause := <-stopped; cause == nil {
			t.Error("the work was not stopped")
		}
		if got, err := e.Await(ctx, long); err != nil || got.Status != task.Completed {
			t.Errorf("got %v, %v", got, err)
		}
		time.Sleep(5*time.Second - time.Millisecond) //nolint:forbidigo // the bubble has its own clock
		if got, err := e.Get(ctx, long); err != nil || got.Status != task.Completed {
			t.Errorf("just before its end: %v, %v", got, err)
		}
		time.Sleep(time.Millisecond)                                       //nolint:forbidigo // the bubble has its own clock
		if _, err := e.Get(ctx, long); !errors.Is(err, store.ErrExpired) { // TTL-3
			t.Errorf("at its end: %v", err)
		}
		time.Sleep(3 * time.Minute) //nolint:forbidigo // the bubble has its own clock
		if _, err := e.Get(ctx, long); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("long after: %v", err)
		}
	})
}

func TestRetentionAtMostMaxTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct{ ttl, max, want time.Duration }{ // C.5
			{2 * time.Second, time.Hour, time.Second + 10*time.Minute},
			{2 * time.Second, time.Minute, time.Minute},
			{30 * time.Minute, time.Hour, 30 * time.Minute},
			{2 * time.Second, engine.Unlimited, time.Second + 10*time.Minute},
			{0, engine.Unlimited, time.Hour}, // not asked: the default
		} {
			e := start(t, engine.Options{MaxTTL: tc.max, Runner: lasting(time.Second)})
			got, err := e.Await(t.Context(), create(t, e, tc.ttl))
			if err != nil || got.TTL != tc.want {
				t.Errorf("ttl %v, maximum %v: %v, %v; want %v", tc.ttl, tc.max, got.TTL, err, tc.want)
			}
		}
	})
}

// A thousand waiters on one task and one on each of a thousand tasks are all answered, at
// the moment of the end (RES-2, RES-4).
func TestWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, engine.Options{Runner: lasting(time.Hour), MaxTTL: engine.Unlimited, DefaultTTL: 24 * time.Hour, Limits: limit.Off()})
		begin := time.Now()
		one := create(t, e, 0)
		var wg sync.WaitGroup
		for range 1000 {
			other := create(t, e, 0)
			for _, ref := range []task.Ref{one, other} {
				wg.Go(func() {
					got, err := e.Await(t.Context(), ref)
					if err != nil || got.Status != task.Completed || string(got.Outcome.Result) != string(done.Result) {
						t.Errorf("got %v, %v", got, err)
					}
				})
			}
		}
		wg.Wait()
		if d := time.Since(begin); d != time.Hour {
			t.Errorf("answered after %v", d)
		}
	})
}

func TestCancelRacesWithTheEnd(t *testing.T) {
	for range 200 {
		e := start(t, engine.Options{Runner: lasting(0)})
		ref := create(t, e, 0)
		_, cancelErr := e.Cancel(t.Context(), ref)
		got, err := e.Await(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		if cancelled := got.Status == task.Cancelled; cancelled != (cancelErr == nil) || !cancelled && !errors.Is(cancelErr, task.ErrTerminal) { // CAN-1, CAN-3
			t.Fatalf("cancel: %v, then %s", cancelErr, got.Status)
		}
	}
}

func TestPanicAndErrors(t *testing.T) {
	for _, tc := range []struct {
		name    string
		run     work
		status  task.Status
		message string
		outcome string
	}{
		{"panic", func(context.Context, *engine.Job) (task.Outcome, error) { panic("secret") },
			task.Failed, "Internal error", `{"code":-32603,"message":"Internal error"}`}, // ERR-2
		{"error", func(context.Context, *engine.Job) (task.Outcome, error) {
			return task.Outcome{}, errors.New("secret")
		},
			task.Failed, "Internal error", `{"code":-32603,"message":"Internal error"}`},
		{"wire error", func(context.Context, *engine.Job) (task.Outcome, error) {
			return task.Outcome{}, fmt.Errorf("wrapped: %w", protocol.Errorf(-32603, "The server process ended"))
		}, task.Failed, "The server process ended", `{"code":-32603,"message":"The server process ended"}`},
		{"JSON-RPC error", func(context.Context, *engine.Job) (task.Outcome, error) {
			return task.Outcome{Error: json.RawMessage(`{"code":7,"message":"ü", "data":1.0}`)}, nil
		}, task.Failed, "ü", `{"code":7,"message":"ü", "data":1.0}`}, // EXE-1
		{"long message", func(context.Context, *engine.Job) (task.Outcome, error) {
			return task.Outcome{Result: json.RawMessage(`{"isError":true,"content":[{"type":"text","text":"` + strings.Repeat("ü", 400) + `"}]}`), IsError: true}, nil
		}, task.Failed, strings.Repeat("ü", 250) + "…", ""}, // EXE-2, EXE-3
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := start(t, engine.Options{Runner: tc.run})
			got, err := e.Await(t.Context(), create(t, e, 0))
			if err != nil || got.Status != tc.status || got.StatusMessage != tc.message || string(got.Outcome.Error) != tc.outcome {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		durations := []time.Duration{time.Second, time.Hour, time.Hour}
		var n atomic.Int32
		e, err := engine.New(t.Context(), engine.Options{Store: s, MaxTTL: engine.Unlimited, Runner: work(func(ctx context.Context, job *engine.Job) (task.Outcome, error) {
			i := n.Add(1) - 1
			if i == 2 {
				if err := job.SetRemote(ctx, "remote-1"); err != nil {
					t.Error(err)
				}
			}
			return lasting(durations[i])(ctx, job)
		})})
		if err != nil {
			t.Fatal(err)
		}
		var refs []task.Ref
		for range durations {
			refs = append(refs, create(t, e, 24*time.Hour))
			synctest.Wait()
		}
		waiting := make(chan *task.Task)
		go func() {
			got, _ := e.Await(context.Background(), refs[1])
			waiting <- got
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		over := make(chan error)
		go func() { over <- e.Shutdown(ctx) }()
		synctest.Wait()
		if _, err := e.Create(t.Context(), engine.Creation{Caller: &engine.Caller{}}); !errors.Is(err, engine.ErrShutdown) {
			t.Errorf("create during shutdown: %v", err)
		}
		if got := <-waiting; got == nil || got.Status != task.Failed {
			t.Errorf("the waiter got %+v", got)
		}
		if err := <-over; err != nil {
			t.Error(err)
		}
		for i, want := range []task.Status{task.Completed, task.Failed, task.Working} {
			if got, err := s.Get(t.Context(), refs[i]); err != nil || got.Status != want {
				t.Errorf("task %d: %+v, %v; want %s", i, got, err, want)
			}
		}

		// The next process goes on with the one that runs as a task of the upstream, at once.
		next := start(t, engine.Options{Store: s, MaxTTL: engine.Unlimited, Runner: work(func(_ context.Context, job *engine.Job) (task.Outcome, error) {
			if job.Remote != "remote-1" || job.Ref != refs[2] || string(job.Request.Params) != `{"name":"x"}` {
				t.Errorf("adopted %+v", job)
			}
			return done, nil
		})})
		if got, err := next.Await(t.Context(), refs[2]); err != nil || got.Status != task.Completed {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

// A task whose process is silent for longer than its lease ends as failed and says so; until
// then it is left alone (C.9, C.11).
func TestDeadOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		now := task.Instant(time.Now())
		lost := &task.Task{
			Ref: task.Ref{Principal: "p", ID: "lost"}, Revision: 1, Status: task.Working,
			CreatedAt: now, UpdatedAt: now, TTL: time.Hour, Owner: "dead",
			Request: task.Request{Method: "tools/call", Params: json.RawMessage(`{}`)},
		}
		if err := s.Renew(t.Context(), "dead", now.Add(8*time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Create(t.Context(), lost, store.Quota{}); err != nil {
			t.Fatal(err)
		}
		e := start(t, engine.Options{Store: s, Runner: lasting(0)})
		time.Sleep(7 * time.Second) //nolint:forbidigo // the bubble has its own clock
		if got, err := e.Get(t.Context(), lost.Ref); err != nil || got.Status != task.Working {
			t.Errorf("within the lease: %+v, %v", got, err)
		}
		begin := time.Now()
		got, err := e.Await(t.Context(), lost.Ref)
		if err != nil || got.Status != task.Failed || !strings.Contains(got.StatusMessage, "server stopped") || got.Outcome.Error == nil {
			t.Errorf("got %+v, %v", got, err)
		}
		if d := time.Since(begin); d > 5*time.Second {
			t.Errorf("taken over %v after the lease ran out", d)
		}
	})
}

// One who waits for a task of another process is answered when that process dies and this
// one goes on with the task.
func TestWaiterOfAdoptedTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		now := task.Instant(time.Now())
		theirs := &task.Task{
			Ref: task.Ref{Principal: "p", ID: "theirs"}, Revision: 1, Status: task.Working, CreatedAt: now, UpdatedAt: now,
			TTL: time.Hour, Owner: "dying", Remote: "remote-1",
		}
		if err := s.Renew(t.Context(), "dying", now.Add(5*time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Create(t.Context(), theirs, store.Quota{}); err != nil {
			t.Fatal(err)
		}
		e := start(t, engine.Options{Store: s, Runner: lasting(3 * time.Second)})
		begin := time.Now()
		got, err := e.Await(t.Context(), theirs.Ref)
		if err != nil || got.Status != task.Completed {
			t.Errorf("got %+v, %v", got, err)
		}
		if d := time.Since(begin); d > 12*time.Second {
			t.Errorf("answered after %v", d)
		}
	})
}

// siblings is a store in which another process commits all the time.
type siblings struct {
	*memory.Store
	changed chan struct{}
}

func (s siblings) Changed() <-chan struct{} { return s.changed }

func (s siblings) Create(ctx context.Context, t *task.Task, q store.Quota) (*task.Task, error) {
	for range 2 { // it looks for tasks that were lost before this one is stored
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
	return s.Store.Create(ctx, t, q)
}

// A task is not taken for lost because another process commits while it is being stored.
func TestCommitsElsewhereDuringCreate(t *testing.T) {
	s := siblings{memory.New(), make(chan struct{}, 2)}
	e := start(t, engine.Options{Store: s, Runner: lasting(time.Millisecond)})
	for range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if got, err := e.Await(ctx, create(t, e, 0)); err != nil || got.Status != task.Completed {
			t.Fatalf("got %+v, %v", got, err)
		}
		cancel()
	}
}

// failing is a store whose updates fail for a while.
type failing struct {
	store.Store
	failures atomic.Int32
}

func (f *failing) Update(ctx context.Context, t *task.Task) error {
	if f.failures.Add(-1) >= 0 {
		return errors.New("disk full")
	}
	return f.Store.Update(ctx, t)
}

func TestOutcomeOutlivesAFailingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &failing{Store: memory.New()}
		s.failures.Store(5)
		e := start(t, engine.Options{Store: s, Runner: lasting(time.Second)})
		if got, err := e.Await(t.Context(), create(t, e, 0)); err != nil || got.Status != task.Completed {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

// What the work says of itself is the statusMessage while it runs.
func TestProgressIsShown(t *testing.T) {
	shown := make(chan struct{})
	e := start(t, engine.Options{Runner: work(func(ctx context.Context, job *engine.Job) (task.Outcome, error) {
		job.Say("3/8: computing")
		close(shown)
		return lasting(time.Hour)(ctx, job)
	})})
	ref := create(t, e, 0)
	<-shown
	got, err := e.Get(t.Context(), ref)
	if err != nil || got.StatusMessage != "3/8: computing" {
		t.Errorf("got %+v, %v", got, err)
	}
	list, _, err := e.List(t.Context(), "p", store.Position{}, 10)
	if err != nil || len(list) != 1 || list[0].StatusMessage != got.StatusMessage {
		t.Errorf("listed %+v, %v", list, err)
	}
}

func TestOptions(t *testing.T) {
	for _, bad := range []engine.Options{
		{},
		{Store: memory.New()},
		{Store: memory.New(), Runner: lasting(0), DefaultTTL: -1},
		{Store: memory.New(), Runner: lasting(0), MaxTTL: -5},
		{Store: memory.New(), Runner: lasting(0), Lease: -1},
	} {
		if _, err := engine.New(t.Context(), bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}
