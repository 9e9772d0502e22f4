package limit_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/task"
)

// SEC-5
func TestABucketLetsItsBurstPassAndThenItsRate(t *testing.T) {
	b := limit.NewBuckets(limit.Rate{PerSecond: 4, Burst: 3})
	now := time.Unix(1_000_000, 0)
	for range 3 {
		if wait := b.Take("a", now); wait != 0 {
			t.Fatal("within the burst:", wait)
		}
	}
	if wait := b.Empty("a", limit.Rate{PerSecond: 4, Burst: 3}, now); wait != 250*time.Millisecond {
		t.Error("to the next one:", wait)
	}
	if wait := b.Take("a", now); wait != 250*time.Millisecond {
		t.Error("beyond the burst:", wait)
	}
	if wait := b.Take("b", now); wait != 0 {
		t.Error("another's bucket:", wait)
	}
	if wait := b.Take("a", now.Add(250*time.Millisecond)); wait != 0 {
		t.Error("after the wait that was told:", wait)
	}
	if wait := b.Take("a", now.Add(250*time.Millisecond)); wait != 250*time.Millisecond {
		t.Error("a refused one counted:", wait)
	}
}

// SEC-5
func TestBucketsHoldUnderConcurrency(t *testing.T) {
	b := limit.NewBuckets(limit.Rate{PerSecond: 1, Burst: 100})
	now := time.Unix(1_000_000, 0)
	var passed atomic.Int64
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			for range 100 {
				if b.Take("a", now) == 0 {
					passed.Add(1)
				}
			}
		})
	}
	all.Wait()
	if passed.Load() != 100 {
		t.Errorf("%d passed, want 100", passed.Load())
	}
}

// SEC-5
func TestBucketsAreBounded(t *testing.T) {
	b := limit.NewBuckets(limit.Rate{PerSecond: 1, Burst: 2})
	now := time.Unix(1_000_000, 0)
	for i := range 200_000 {
		b.Take(fmt.Sprint(i), now)
	}
	if n := b.Len(); n > 1<<16 {
		t.Errorf("%d buckets are kept", n)
	}
	b.Take("busy", now)
	b.Take("busy", now)
	for i := range 1 << 16 { // later, all but the busy one are full, and make room
		b.Take(fmt.Sprint("later", i), now.Add(time.Duration(i)*time.Microsecond+1200*time.Millisecond))
	}
	if wait := b.Take("busy", now.Add(1200*time.Millisecond)); wait != 0 {
		t.Error("one was there again:", wait)
	}
}

func TestARateWithoutLimitIsNone(t *testing.T) {
	b := limit.NewBuckets(limit.Rate{PerSecond: limit.None})
	for range 1000 {
		if b.Take("a", time.Now()) != 0 {
			t.Fatal("refused")
		}
	}
	if b.Len() != 0 {
		t.Error("counted for nothing")
	}
}

func TestPlaceCountsAnIPv6NetworkAsOne(t *testing.T) {
	for in, want := range map[string]string{
		"":                       "",
		"192.0.2.7":              "192.0.2.7",
		"::ffff:192.0.2.7":       "::ffff:192.0.2.7",
		"2001:db8:1:2:3:4:5:6":   "2001:db8:1:2::/64",
		"2001:db8:1:2:ffff::1":   "2001:db8:1:2::/64",
		"fe80::1%eth0":           "fe80::/64",
		"what the proxy made up": "what the proxy made up",
	} {
		if got := limit.Place(in); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

// RSC-1, RSC-2
func TestOverridesReplaceOneFieldEach(t *testing.T) {
	var none *limit.Policy
	if got := none.For("a"); got.Running != 64 || got.Creates.Burst != 200 || got.MaxTTL != 0 {
		t.Errorf("without a policy: %+v", got)
	}
	p := &limit.Policy{
		Limits:     limit.Limits{Running: 5, MaxTTL: time.Hour},
		Principals: map[task.Principal]limit.Limits{"a": {Running: limit.None}, "b": {Tasks: 7, MaxTTL: 2 * time.Hour}},
		Of:         func(task.Principal) limit.Limits { return limit.Limits{Inputs: 3} },
		Tools:      map[string]limit.Tool{"t": {MaxTTL: 90 * time.Minute, Inputs: 4, Result: 10}},
	}
	for _, tc := range []struct {
		who  task.Principal
		tool string
		want func(*limit.Limits)
	}{
		{"a", "", func(l *limit.Limits) { l.Running = limit.None }},
		{"b", "", func(l *limit.Limits) { l.Tasks, l.MaxTTL = 7, 2*time.Hour }},
		{"c", "", func(l *limit.Limits) { l.Inputs = 3 }},
		{"a", "t", func(l *limit.Limits) { l.Running, l.Inputs, l.Result = limit.None, 4, 10 }},
		{"b", "t", func(l *limit.Limits) { l.Tasks, l.Inputs, l.Result, l.MaxTTL = 7, 4, 10, 90*time.Minute }},
	} {
		want := none.For("")
		want.Running, want.MaxTTL = 5, time.Hour
		tc.want(&want)
		if got := p.Call(tc.who, tc.tool); got != want {
			t.Errorf("%s calls %q: %+v, want %+v", tc.who, tc.tool, got, want)
		}
	}
}
