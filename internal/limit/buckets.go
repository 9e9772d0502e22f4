package limit

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxBuckets bounds how many are kept.
const maxBuckets = 1 << 16

// Buckets count what each of many does, by key, as token buckets. Those that have done nothing
// for a while are forgotten, and when there are too many others are, too.
type Buckets struct {
	rate Rate

	mu sync.Mutex
	of map[string]*rate.Limiter
}

// NewBuckets returns buckets of a rate.
func NewBuckets(r Rate) *Buckets { return &Buckets{rate: r, of: map[string]*rate.Limiter{}} }

// Take takes one from a bucket, and returns 0; or how long it takes until there is one, and
// takes nothing.
func (b *Buckets) Take(key string, now time.Time) (wait time.Duration) {
	return b.TakeAt(key, b.rate, now)
}

// TakeAt is Take from a bucket that has a rate of its own.
func (b *Buckets) TakeAt(key string, r Rate, now time.Time) (wait time.Duration) {
	return b.take(key, r, now, 1)
}

// Empty is TakeAt, but takes nothing.
func (b *Buckets) Empty(key string, r Rate, now time.Time) (wait time.Duration) {
	return b.take(key, r, now, 0)
}

func (b *Buckets) take(key string, r Rate, now time.Time, n int) time.Duration {
	if r.PerSecond < 0 {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l, ok := b.of[key]
	if !ok {
		if n == 0 {
			return 0
		}
		if len(b.of) >= maxBuckets {
			b.forget(now)
		}
		l = rate.NewLimiter(rate.Limit(r.PerSecond), max(1, r.Burst))
		b.of[key] = l
	}
	if l.Limit() != rate.Limit(r.PerSecond) || l.Burst() != max(1, r.Burst) {
		l.SetLimitAt(now, rate.Limit(r.PerSecond))
		l.SetBurstAt(now, max(1, r.Burst))
	}
	if n == 1 && l.AllowN(now, 1) {
		return 0
	}
	missing := 1 - l.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	if r.PerSecond == 0 {
		return time.Hour
	}
	return max(time.Millisecond, time.Duration(missing/r.PerSecond*float64(time.Second)))
}

// forget makes room: buckets that are full are as good as new ones. If there are none, some of
// those that are not must go.
func (b *Buckets) forget(now time.Time) {
	for key, l := range b.of {
		if l.TokensAt(now) >= float64(l.Burst()) {
			delete(b.of, key)
		}
	}
	for key := range b.of {
		if len(b.of) < maxBuckets-maxBuckets/16 {
			return
		}
		delete(b.of, key)
	}
}

// Len returns how many buckets are kept.
func (b *Buckets) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.of)
}

// Place returns an address as limits count it: an IPv6 one by its network of 64 bits, which is
// what one customer has.
func Place(address string) string {
	at, err := netip.ParseAddr(address)
	if err != nil || at.Unmap().Is4() {
		return address
	}
	network, err := at.WithZone("").Prefix(64)
	if err != nil {
		return address
	}
	return network.String()
}
