package audit

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// faults tells a logger of what goes wrong, once a minute at most.
type faults struct {
	log     *slog.Logger
	message string

	pending atomic.Bool // something was not told yet
	mu      sync.Mutex
	count   int
	last    error
	next    time.Time // when the logger may be told again
}

func newFaults(log *slog.Logger, message string) *faults {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &faults{log: log, message: message}
}

func (f *faults) add(err error) {
	f.mu.Lock()
	f.count++
	f.last = err
	f.pending.Store(true)
	f.mu.Unlock()
	f.tell()
}

// tell tells the logger what it was not told yet, if it may be told.
func (f *faults) tell() {
	if f.pending.Load() {
		f.flush(time.Now())
	}
}

// flush is tell at a given time; the zero one stands for the end, when all is told.
func (f *faults) flush(now time.Time) {
	f.mu.Lock()
	count, last := f.count, f.last
	if count == 0 || !now.IsZero() && now.Before(f.next) {
		f.mu.Unlock()
		return
	}
	f.count, f.last, f.next = 0, nil, now.Add(time.Minute)
	f.pending.Store(false)
	f.mu.Unlock()
	f.log.Error(f.message, "count", count, "error", last) //nolint:sloglint // the message is the same for each faults
}
