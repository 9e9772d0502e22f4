package audit_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/task"
)

// watched is a Watch with a clock of its own, and what came of it.
type watched struct {
	audit.Sink
	mu     sync.Mutex
	now    time.Time
	passed int
	raised []audit.Event
}

func watch(opts audit.WatchOptions) *watched {
	w := &watched{now: noon}
	opts.Now = func() time.Time {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.now
	}
	w.Sink = audit.Watch(audit.SinkFunc(func(_ context.Context, ev audit.Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if ev.Kind == audit.Suspicious {
			w.raised = append(w.raised, ev)
		} else {
			w.passed++
		}
	}), &opts)
	return w
}

func (w *watched) record(t *testing.T, n int, ev audit.Event) {
	for range n {
		w.Record(t.Context(), ev)
	}
}

func (w *watched) wait(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// take returns what was raised since the last time.
func (w *watched) take() []audit.Event {
	raised := w.raised
	w.raised = nil
	return raised
}

func refused(who task.Principal, address, reason, limit string) audit.Event {
	return audit.Event{Time: noon, Kind: audit.Refused, Principal: who, Address: address, Method: "tasks/get", Reason: reason, Limit: limit}
}

// AUD-2
func TestPatterns(t *testing.T) {
	for _, tc := range []struct {
		reason, limit string
		pattern       string // "" is none
	}{
		{audit.NotFound, "", audit.ManyMisses},
		{audit.OverLimit, "misses", audit.ManyMisses},
		{audit.OverLimit, "gets", audit.PollingStorm},
		{audit.OverLimit, "polls", audit.PollingStorm},
		{audit.OverLimit, "creates", audit.CreateStorm},
		{audit.OverLimit, "running", audit.CreateStorm},
		{audit.OverLimit, "queued", audit.CreateStorm},
		{audit.OverLimit, "tasks", audit.CreateStorm},
		{audit.OverLimit, "bytes", audit.CreateStorm},
		{audit.Unauthorized, "", audit.AuthFailures},
		{audit.Origin, "", audit.AuthFailures},
		{audit.Host, "", audit.AuthFailures},
		{audit.OverLimit, "request", ""},
		{audit.OverLimit, "result", ""},
		{audit.OverLimit, "inputs", ""},
		{audit.OverLimit, "waits", ""},
		{audit.OverLimit, "lists", ""},
		{audit.Gone, "", ""},
		{audit.Scope, "", ""},
		{audit.Invalid, "", ""},
		{audit.Internal, "", ""},
	} {
		w := watch(audit.WatchOptions{})
		ev := refused("mallory", "192.0.2.7", tc.reason, tc.limit)
		ev.Task, ev.Session, ev.Trace, ev.Tool = id, "s", "t", "render"
		w.record(t, 19, ev)
		if got := w.take(); got != nil {
			t.Fatalf("%s %s: 19 hits raise %+v", tc.reason, tc.limit, got)
		}
		w.record(t, 1, ev)
		var want []audit.Event
		if tc.pattern != "" {
			want = []audit.Event{{
				Time: noon, Kind: audit.Suspicious, Principal: "mallory", Address: "192.0.2.7", Session: "s", Trace: "t",
				Method: "tasks/get", Reason: tc.pattern, Count: 20,
			}}
		}
		if diff := cmp.Diff(want, w.take()); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", tc.reason, tc.limit, diff)
		}
		w.record(t, 80, ev)
		w.wait(time.Minute)
		w.record(t, 1, audit.Event{Kind: audit.Started})
		if tc.pattern != "" {
			want = []audit.Event{{
				Time: noon.Add(time.Minute), Kind: audit.Suspicious, Principal: "mallory", Address: "192.0.2.7",
				Reason: tc.pattern, Count: 100, Duration: time.Minute,
			}}
		}
		if diff := cmp.Diff(want, w.take()); diff != "" {
			t.Errorf("%s %s at the end (-want +got):\n%s", tc.reason, tc.limit, diff)
		}
		if w.passed != 101 {
			t.Errorf("%d events were passed on, want 101", w.passed)
		}
	}
}

// TestAWindowRaisesOneEvent has 100,000 look-ups of one, in ten windows, among those of others. AUD-2
func TestAWindowRaisesOneEvent(t *testing.T) {
	w := watch(audit.WatchOptions{})
	for i := range 100_000 {
		w.record(t, 1, refused("mallory", "192.0.2.7", audit.NotFound, ""))
		if i%1000 == 0 { // 10 in a window
			w.record(t, 1, refused("alice", "192.0.2.7", audit.NotFound, ""))
			w.record(t, 1, audit.Event{Kind: audit.Retrieved, Principal: "alice"})
		}
		w.wait(6 * time.Millisecond)
	}
	w.record(t, 1, audit.Event{Kind: audit.Retrieved, Principal: "alice"})
	alerts, hits := 0, 0
	for _, ev := range w.take() {
		if ev.Principal != "mallory" || ev.Reason != audit.ManyMisses {
			t.Fatalf("raised: %+v", ev)
		}
		if ev.Duration == 0 {
			alerts++
		} else {
			hits += ev.Count
		}
	}
	if alerts != 10 || hits != 100_000 {
		t.Errorf("%d alerts, windows of %d hits; want 10 of 100,000", alerts, hits)
	}
}

// AUD-2
func TestSlowHitsAreNoPattern(t *testing.T) {
	w := watch(audit.WatchOptions{ManyMisses: 3, Window: time.Second})
	for range 100 {
		w.record(t, 2, refused("alice", "", audit.NotFound, ""))
		w.wait(time.Second)
	}
	if got := w.take(); got != nil {
		t.Errorf("raised: %+v", got)
	}
	w.record(t, 3, refused("alice", "", audit.NotFound, ""))
	w.wait(time.Second)
	w.record(t, 1, audit.Event{Kind: audit.Started})
	if got := w.take(); len(got) != 1 || got[0].Count != 3 { // no more followed: nothing closes it
		t.Errorf("raised: %+v", got)
	}
}

// AUD-2
func TestProbing(t *testing.T) {
	w := watch(audit.WatchOptions{})
	w.record(t, 1, audit.Event{Kind: audit.Created, Principal: "alice", Task: id})
	own := refused("alice", "192.0.2.1", audit.NotFound, "")
	own.Task = id // it has expired
	w.record(t, 2, own)
	unknown := refused("mallory", "192.0.2.7", audit.NotFound, "")
	w.record(t, 1, unknown)
	unknown.Task = "unknown"
	w.record(t, 1, unknown)
	if got := w.take(); got != nil {
		t.Fatalf("raised: %+v", got)
	}
	foreign := unknown
	foreign.Task = id
	w.record(t, 4, foreign)
	foreign.Reason, foreign.Limit = audit.OverLimit, "misses"
	w.record(t, 1, foreign)
	nobody := foreign
	nobody.Principal, nobody.Reason, nobody.Limit = "", audit.NotFound, ""
	other := nobody
	other.Principal, other.Reason = "other", audit.Invalid // no look-up
	w.record(t, 1, other)
	w.record(t, 1, nobody)
	got := w.take()
	if len(got) != 2 || got[0].Principal != "mallory" || got[1].Principal != "" || got[1].Address != "192.0.2.7" {
		t.Fatalf("raised: %+v", got)
	}
	for _, ev := range got {
		if ev.Reason != audit.Probing || ev.Task != id || ev.Count != 1 {
			t.Errorf("raised: %+v", ev)
		}
	}
	w.wait(time.Minute)
	w.record(t, 1, audit.Event{Kind: audit.Started})
	if got := w.take(); len(got) != 1 || got[0].Count != 5 || got[0].Task != "" {
		t.Errorf("at the end: %+v", got)
	}
}

// AUD-2
func TestAddressesAreCountedByPlace(t *testing.T) {
	w := watch(audit.WatchOptions{AuthFailures: 4, ManyMisses: 4})
	for _, address := range []string{
		"2001:db8::1", "2001:db8::2", "[2001:db8::3]:4000", "2001:db8:0:0:ffff::%eth0", // one network
		"2001:db8:0:1::1", "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4",
		"198.51.100.1", "::ffff:198.51.100.1", "198.51.100.1:80", // one host
		"", "x", "y",
	} {
		w.record(t, 1, refused("", address, audit.Unauthorized, ""))
		w.record(t, 1, refused("", address, audit.NotFound, ""))
	}
	w.record(t, 1, refused("claimed", "198.51.100.1", audit.Unauthorized, "")) // what nobody has proved
	var got []string
	for _, ev := range w.take() {
		got = append(got, ev.Reason+" "+ev.Address)
	}
	want := []string{"auth_failures 2001:db8:0:0:ffff::%eth0", "many_misses 2001:db8:0:0:ffff::%eth0", "auth_failures 198.51.100.1"}
	if !slices.Equal(got, want) {
		t.Errorf("raised %q, want %q", got, want)
	}
}

// AUD-2
func TestPatternsMayBeLeftOut(t *testing.T) {
	w := watch(audit.WatchOptions{ManyMisses: -1, PollingStorm: -1, CreateStorm: -1, Probing: -1, AuthFailures: -1})
	w.record(t, 1, audit.Event{Kind: audit.Created, Principal: "alice", Task: id})
	for _, ev := range []audit.Event{
		refused("m", "", audit.NotFound, ""), refused("m", "", audit.OverLimit, "gets"),
		refused("m", "", audit.OverLimit, "creates"), refused("m", "", audit.Unauthorized, ""),
	} {
		ev.Task = id
		w.record(t, 100, ev)
	}
	if got := w.take(); got != nil || w.passed != 401 {
		t.Errorf("%d passed on, raised: %+v", w.passed, got)
	}
}

// TestThin has a look-up that is a hit of two patterns, of which one is raised.
func TestThin(t *testing.T) {
	w := watch(audit.WatchOptions{Thin: true, ManyMisses: 3})
	w.record(t, 1, audit.Event{Kind: audit.Created, Principal: "alice", Task: id})
	w.record(t, 10, refused("mallory", "", audit.NotFound, ""))
	w.record(t, 10, refused("mallory", "", audit.Invalid, ""))
	w.record(t, 2, refused("alice", "", audit.NotFound, ""))
	if w.passed != 1+3+10+2 {
		t.Errorf("%d passed on", w.passed)
	}
	probe := refused("mallory", "", audit.NotFound, "")
	probe.Task = id
	w.record(t, 10, probe) // the first is new
	if w.passed != 1+3+10+2+1 {
		t.Errorf("%d passed on", w.passed)
	}
	w.wait(time.Minute)
	w.record(t, 1, audit.Event{Kind: audit.Started})
	var counts []int
	for _, ev := range w.take() {
		counts = append(counts, ev.Count)
	}
	if !slices.Equal(counts, []int{3, 1, 20, 10}) {
		t.Errorf("counts %v", counts)
	}
}

// TestWatchIsBounded has more principals, addresses and tasks than it remembers. AUD-2
func TestWatchIsBounded(t *testing.T) {
	w := watch(audit.WatchOptions{ManyMisses: 2})
	long := strings.Repeat("x", 10_000)
	for i := range 101_000 {
		w.record(t, 1, audit.Event{Kind: audit.Created, Principal: "alice", Task: fmt.Sprint("task", i)})
	}
	w.record(t, 3, refused("first", long, audit.NotFound, ""))
	for i := range 30_000 {
		ev := refused(task.Principal(fmt.Sprint(i, long)), fmt.Sprintf("2001:db8:%x:%x::1", i>>16, i&0xffff), audit.NotFound, "")
		w.record(t, 1, ev)
		ev.Principal = ""
		w.record(t, 1, ev)
		ev.Reason = audit.Unauthorized
		w.record(t, 1, ev)
	}
	windows, known := audit.Sizes(w.Sink)
	if windows[audit.ManyMisses] != 10_000 || windows[audit.AuthFailures] != 10_000 || known != 100_000 {
		t.Errorf("%v windows and %d tasks are remembered", windows, known)
	}
	// The window that had to go was closed as it should be.
	got := w.take()
	if len(got) != 2 || got[0].Count != 2 || got[1].Count != 3 || got[1].Principal != "first" {
		t.Errorf("raised: %d, %.300v", len(got), got)
	}
	if n := len(got[1].Address); n > 256 {
		t.Errorf("%d bytes of an address are remembered", n)
	}
	// The oldest tasks are forgotten, the others not.
	for i, probes := range map[int]int{0: 0, 999: 0, 1000: 1, 100_999: 1} {
		probe := refused(task.Principal(fmt.Sprint("prober", i)), "", audit.NotFound, "")
		probe.Task = fmt.Sprint("task", i)
		w.record(t, 1, probe)
		if got := w.take(); len(got) != probes {
			t.Errorf("task %d raised %d", i, len(got))
		}
	}
	w.wait(time.Minute)
	w.record(t, 1, refused("last", "", audit.NotFound, ""))
	if windows, _ := audit.Sizes(w.Sink); windows[audit.ManyMisses] != 1 || windows[audit.AuthFailures] != 0 {
		t.Errorf("%v windows are left", windows)
	}
}

// TestWatchAtOnce counts right under concurrency. AUD-2
func TestWatchAtOnce(t *testing.T) {
	w := watch(audit.WatchOptions{})
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for j := range 500 {
				w.record(t, 1, refused(task.Principal(fmt.Sprint("p", i%4)), "", audit.NotFound, ""))
				w.record(t, 1, audit.Event{Kind: audit.Created, Task: fmt.Sprint(i, j)})
			}
		})
	}
	all.Wait()
	w.wait(time.Minute)
	w.record(t, 1, audit.Event{Kind: audit.Started})
	counts := map[int]int{}
	for _, ev := range w.take() {
		counts[ev.Count]++
	}
	if diff := cmp.Diff(map[int]int{20: 4, 2000: 4}, counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	if w.passed != 16*500*2+1 {
		t.Errorf("%d were passed on", w.passed)
	}
}
