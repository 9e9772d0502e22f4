package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/store/memory"
	"github.com/coatcheck/coatcheck/task"
)

// slowToExpire is a store that takes its time to remove tasks.
type slowToExpire struct{ store.Store }

func (s slowToExpire) Expire(ctx context.Context, now time.Time, refs []task.Ref, remember time.Time) error {
	time.Sleep(10 * time.Millisecond) //nolint:forbidigo // the bubble has its own clock
	return s.Store.Expire(ctx, now, refs, remember)
}

// RSC-3, C.4: a task whose lifetime ends while others are removed is removed right after.
func TestExpiryDuringExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, engine.Options{Store: slowToExpire{memory.New()}, MinRetention: -1, Runner: lasting(time.Hour)})
		create(t, e, 1000*time.Millisecond)
		second := create(t, e, 1005*time.Millisecond)
		begin := time.Now()
		if _, err := e.Await(t.Context(), second); !errors.Is(err, store.ErrExpired) {
			t.Errorf("the waiter got %v", err)
		}
		if d := time.Since(begin); d > 1100*time.Millisecond {
			t.Errorf("expired after %v", d)
		}
	})
}

// ongoing is work that was under way before it became a task's, and ends within an hour of that.
type ongoing struct{}

func (ongoing) Start(ctx context.Context, _ *engine.Job, ended func(task.Outcome, error)) {
	go func() { ended(lasting(59*time.Minute)(ctx, nil)) }()
}

// TTL-3: the lifetime of a task whose work began before it does not count from then.
func TestLifetimeOfOngoing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, engine.Options{Runner: lasting(0)})
		made, err := e.Create(t.Context(), engine.Creation{
			Caller: &engine.Caller{Principal: "p"}, Ongoing: ongoing{}, Began: time.Now().Add(-2 * time.Hour),
			Request: task.Request{Method: "tools/call", Params: []byte(`{"name":"x"}`)},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := e.Await(t.Context(), made.Ref); err != nil || got.Status != task.Completed {
			t.Errorf("ended with %v %v", got, err)
		}
	})
}
