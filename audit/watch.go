package audit

import (
	"context"
	"hash/maphash"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coatcheck/coatcheck/task"
)

// The patterns that Watch sees: Reasons of Suspicious. A hit is a Refused event.
const (
	ManyMisses   = "many_misses"   // look-ups of tasks that are not there: NotFound, and limit "misses"
	PollingStorm = "polling_storm" // limits "gets" and "polls"
	CreateStorm  = "create_storm"  // limits "creates", "running", "queued", "tasks" and "bytes"
	Probing      = "probing"       // such a look-up, of another principal's task; Task is its id
	AuthFailures = "auth_failures" // Unauthorized, Origin and Host, by address
)

// WatchOptions configures Watch. A nil *WatchOptions means all defaults. The numbers are how
// many hits within a window make the pattern; a negative one leaves it out.
type WatchOptions struct {
	Window time.Duration // default 1 min

	ManyMisses   int // default 20
	PollingStorm int // default 20
	CreateStorm  int // default 20
	Probing      int // default 1
	AuthFailures int // default 20

	// Thin leaves out the hits of a pattern that was raised, for the rest of its window: they
	// are counted, but do not go to the next Sink, so that they do not fill a log. Default:
	// all do.
	Thin bool

	Now func() time.Time // default time.Now
}

const (
	// maxWindows bounds the windows of a pattern. Beyond it the oldest is closed.
	maxWindows = 10_000
	// maxOwners bounds the tasks whose principal is known. Beyond it the oldest is forgotten.
	maxOwners = 100_000
)

// Watch returns a Sink that hands all events on, and raises a Suspicious event when it sees a
// pattern in them (AUD-2): once for each pattern, window, and principal, or address where the
// principal is "". IPv6 addresses count by their network of 64 bits.
//
// A window begins with its first hit. The event is raised by the hit that reaches the number
// in the options, which is its Count; principal, address, session, method and trace are those
// of that hit. If more hits followed, one more event closes the window, with all their number as Count
// and the window as Duration. It comes with the first event of any kind after the window, and not
// at all if the process ends before.
//
// Whose a task is it knows of the last 100,000 that were created since the process began.
// Its memory is bounded, whatever the number of principals and addresses: a pattern has 10,000
// windows at a time, and beyond that the oldest is closed early.
func Watch(next Sink, opts *WatchOptions) Sink {
	var o WatchOptions
	if opts != nil {
		o = *opts
	}
	if o.Window <= 0 {
		o.Window = time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	w := &watch{next: next, thin: o.Thin, window: o.Window, now: o.Now, seed: maphash.MakeSeed(), places: maphash.MakeSeed()}
	w.due.Store(never)
	for _, p := range []struct {
		to            **pattern
		name          string
		most, usually int
	}{
		{&w.misses, ManyMisses, o.ManyMisses, 20},
		{&w.polls, PollingStorm, o.PollingStorm, 20},
		{&w.creates, CreateStorm, o.CreateStorm, 20},
		{&w.probes, Probing, o.Probing, 1},
		{&w.logins, AuthFailures, o.AuthFailures, 20},
	} {
		if p.most == 0 {
			p.most = p.usually
		}
		*p.to = &pattern{name: p.name, most: p.most, window: o.Window, of: map[uint64]*window{}}
	}
	return w
}

type watch struct {
	next   Sink
	thin   bool
	window time.Duration
	now    func() time.Time
	seed   maphash.Seed // of tasks and principals
	places maphash.Seed // of addresses
	owners owners

	due atomic.Int64 // when the next window is over that is to be closed with an event; Unix time in ns

	mu                                     sync.Mutex
	misses, polls, creates, probes, logins *pattern
}

// never is later than anything.
const never = 1<<63 - 1

// Record implements Sink.
func (w *watch) Record(ctx context.Context, ev Event) {
	var hits [2]*pattern
	switch ev.Kind {
	case Created:
		w.owners.put(w.hash(ev.Task), w.hash(string(ev.Principal)))
	case Refused:
		hits = w.match(&ev)
	}
	if hits == [2]*pattern{} && w.due.Load() == never {
		w.next.Record(ctx, ev)
		return
	}
	now := w.now()
	if hits == [2]*pattern{} && now.UnixNano() < w.due.Load() {
		w.next.Record(ctx, ev)
		return
	}
	raised, known := w.count(hits, &ev, now)
	if !w.thin || !known {
		w.next.Record(ctx, ev)
	}
	for _, r := range raised {
		w.next.Record(ctx, r)
	}
}

// match returns the patterns that a refusal is a hit of.
func (w *watch) match(ev *Event) (hits [2]*pattern) {
	switch ev.Reason {
	case NotFound:
		hits[0] = w.misses
	case Unauthorized, Origin, Host:
		hits[0] = w.logins
	case OverLimit:
		switch ev.Limit {
		case "misses":
			hits[0] = w.misses
		case "gets", "polls":
			hits[0] = w.polls
		case "creates", "running", "queued", "tasks", "bytes":
			hits[0] = w.creates
		}
	}
	if hits[0] == w.misses && ev.Task != "" {
		if owner, ok := w.owners.get(w.hash(ev.Task)); ok && owner != w.hash(string(ev.Principal)) {
			hits[1] = w.probes
		}
	}
	for i, p := range hits {
		if p != nil && p.most < 0 {
			hits[i] = nil
		}
	}
	return hits
}

// count counts a hit and returns the events to raise; known says that it adds nothing to what
// was raised before.
func (w *watch) count(hits [2]*pattern, ev *Event, now time.Time) (raised []Event, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.patterns() {
		raised = p.close(raised, now)
	}
	known = hits != [2]*pattern{}
	for _, p := range hits {
		if p == nil {
			continue
		}
		key := w.hash(string(ev.Principal))
		if ev.Principal == "" || p == w.logins {
			key = maphash.String(w.places, place(ev.Address))
		}
		var before bool
		raised, before = p.hit(raised, key, ev, now)
		known = known && before
	}
	due := int64(never)
	for _, p := range w.patterns() {
		due = min(due, p.due())
	}
	w.due.Store(due)
	return raised, known
}

func (w *watch) patterns() [5]*pattern {
	return [...]*pattern{w.misses, w.polls, w.creates, w.probes, w.logins}
}

func (w *watch) hash(s string) uint64 { return maphash.String(w.seed, s) }

// place is an address as it is counted: an IPv6 one by its network of 64 bits, which is what
// one customer has.
func place(address string) string {
	at, err := netip.ParseAddr(address)
	if err != nil {
		with, err := netip.ParseAddrPort(address)
		if err != nil {
			return address
		}
		at = with.Addr()
	}
	at = at.Unmap().WithZone("")
	if at.Is4() {
		return at.String()
	}
	network, err := at.Prefix(64)
	if err != nil {
		return address
	}
	return network.String()
}

// owners has whose a task is, as hashes.
type owners struct {
	mu   sync.RWMutex
	of   map[uint64]uint64 // by task
	ring []uint64          // the tasks, in the order they came
	next int               // in the ring, once it is full
}

func (o *owners) put(id, principal uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil {
		o.of = map[uint64]uint64{}
	}
	if _, known := o.of[id]; known {
		return
	}
	if len(o.ring) < maxOwners {
		o.ring = append(o.ring, id)
	} else {
		delete(o.of, o.ring[o.next])
		o.ring[o.next] = id
		o.next = (o.next + 1) % maxOwners
	}
	o.of[id] = principal
}

func (o *owners) get(id uint64) (principal uint64, ok bool) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	principal, ok = o.of[id]
	return principal, ok
}

// who is the part of an event that says who did it, cut.
func who(ev *Event) Event {
	return Event{
		Principal: task.Principal(strings.Clone(clip(string(ev.Principal)))),
		Address:   strings.Clone(clip(ev.Address)),
	}
}
