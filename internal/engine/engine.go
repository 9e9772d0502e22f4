// Package engine owns the life of tasks: durable creation, running, waiting, cancelling,
// expiry, and recovery after a crash. It knows no wire format.
package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// Unlimited as Options.MaxTTL sets no maximum.
const Unlimited time.Duration = -1

// Options configures an Engine. Store and Runner are required.
type Options struct {
	Store  store.Store
	Runner Runner

	DefaultTTL   time.Duration // lifetime of a task that asks for none; default 1 h
	MaxTTL       time.Duration // the longest lifetime (RSC-2); default 24 h; Unlimited for none
	MinRetention time.Duration // how long a result stays at least (C.5); default 10 min; negative for none
	PollInterval time.Duration // suggested to requestors (TTL-4); default 1 s; negative for none
	Remember     time.Duration // how long a deleted task says that it expired (C.4); default 10 min
	Lease        time.Duration // how long a silent process counts as alive (C.11); default 10 s
	PushInput    bool          // questions go to the requestor's session at once, if it has a stream open
	// NoStatusNotifications leaves out notifications/tasks/status (NOT-1).
	NoStatusNotifications bool
	Role                  string // which side of the protocol this is, in status messages: "server" (default) or "client"
	CachedTasks           int    // finished tasks whose state (not outcome) is kept in memory; default 131,072, some 50 MiB when full

	Limits *limit.Policy // of requestors and tools; default those of package limit
	Audit  audit.Sink    // takes what happens to tasks; default none

	TracerProvider trace.TracerProvider // of the spans of tasks' work and questions; default none

	Logger *slog.Logger     // default: discards
	Now    func() time.Time // default time.Now
	NewID  func() string    // default crypto/rand.Text, 130 bits (SEC-3)
}

func (o Options) withDefaults() (Options, error) {
	if o.Store == nil || o.Runner == nil {
		return o, errors.New("engine: a store and a runner are required")
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&o.DefaultTTL, time.Hour}, {&o.MaxTTL, 24 * time.Hour}, {&o.MinRetention, 10 * time.Minute},
		{&o.PollInterval, time.Second}, {&o.Remember, 10 * time.Minute}, {&o.Lease, 10 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if o.DefaultTTL < time.Millisecond || (o.MaxTTL != Unlimited && o.MaxTTL < time.Millisecond) {
		return o, fmt.Errorf("engine: a ttl must be at least 1 ms (default %v, maximum %v)", o.DefaultTTL, o.MaxTTL)
	}
	if o.Remember < 0 || o.Lease < 0 {
		return o, errors.New("engine: Remember and Lease cannot be negative")
	}
	if o.Role == "" {
		o.Role = "server"
	}
	if o.CachedTasks == 0 {
		o.CachedTasks = 1 << 17
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.NewID == nil {
		o.NewID = rand.Text
	}
	return o, nil
}

// unwind is how long Shutdown waits for work it has stopped.
const unwind = 5 * time.Second

// Errors of the engine, beside those of package store and task.ErrTerminal.
var (
	// ErrShutdown: the engine takes no new tasks.
	ErrShutdown = errors.New("the server is shutting down")
	// ErrKeyReused: the idempotency key came before with another request.
	ErrKeyReused = errors.New("the idempotency key was used for a different request")
)

// Engine runs tasks. Its methods may be called concurrently.
type Engine struct {
	opts  Options
	store store.Store
	owner string // this process, as the holder of the lease on its running tasks

	mu       sync.RWMutex
	live     map[task.Ref]*live // tasks this process runs
	plain    map[task.Ref]*live // calls that run plainly, and have the requestor run tasks
	untaken  map[string]*Plain  // those that no handler has taken, by id
	watchers map[task.Ref]map[*watcher]struct{}
	closing  bool

	outlets outlets
	settled *cache
	tracing *tracing
	turns   *turns
	runs    sync.WaitGroup

	nextDue atomic.Int64  // Unix ms at which the janitor wakes; 0 before its first round
	poke    chan struct{} // wakes the janitor

	ctx   context.Context // ends the loops
	stop  context.CancelFunc
	loops sync.WaitGroup
}

// New returns a running engine: it holds its lease, and takes care of tasks left behind by
// dead processes. Shutdown ends it. The store stays the caller's to close, afterwards.
func New(ctx context.Context, opts Options) (*Engine, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &Engine{
		opts:     opts,
		store:    opts.Store,
		owner:    rand.Text(),
		live:     map[task.Ref]*live{},
		plain:    map[task.Ref]*live{},
		untaken:  map[string]*Plain{},
		watchers: map[task.Ref]map[*watcher]struct{}{},
		outlets:  outlets{of: map[task.Principal]map[string][]*Feed{}},
		settled:  newCache(opts.CachedTasks),
		tracing:  newTracing(opts.TracerProvider),
		turns:    newTurns(opts.Limits),
		poke:     make(chan struct{}, 1),
	}
	if err := e.renew(ctx); err != nil {
		return nil, fmt.Errorf("taking the lease: %w", err)
	}
	if err := e.recover(ctx); err != nil {
		return nil, fmt.Errorf("looking for tasks left behind: %w", err)
	}
	e.ctx, e.stop = context.WithCancel(context.WithoutCancel(ctx))
	e.loops.Go(e.holdLease)
	e.loops.Go(e.takeOver)
	e.loops.Go(e.janitor)
	e.loops.Go(e.followOthers)
	return e, nil
}

// Shutdown takes no new tasks and lets running ones finish until ctx is done. The rest are
// stopped and recorded as failed, except those that run as tasks of an upstream: the next
// process goes on with them. Waiters on tasks of other processes are released.
func (e *Engine) Shutdown(ctx context.Context) error {
	e.mu.Lock()
	e.closing = true
	e.mu.Unlock()

	finished := make(chan struct{})
	go func() {
		e.runs.Wait()
		close(finished)
	}()
	select {
	case <-finished:
	case <-ctx.Done():
		e.recordUnfinished(context.WithoutCancel(ctx))
		select {
		case <-finished:
		case <-time.After(unwind):
			e.opts.Logger.Warn("some work did not stop at shutdown")
		}
	}
	e.stop()
	e.wakeWatchers()
	e.loops.Wait()
	return e.store.Release(context.WithoutCancel(ctx), e.owner)
}

func (e *Engine) now() time.Time { return task.Instant(e.opts.Now()) }

func (e *Engine) liveTask(ref task.Ref) *live {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.live[ref]
}

// runningFor returns the tasks and plain calls of one session that this process runs.
func (e *Engine) runningFor(home place) []*live {
	e.mu.RLock()
	defer e.mu.RUnlock()
	var all []*live
	for _, running := range []map[task.Ref]*live{e.live, e.plain} {
		for _, l := range running {
			if l.home == home {
				all = append(all, l)
			}
		}
	}
	return all
}

// runningHere returns the tasks this process runs.
func (e *Engine) runningHere() []*live {
	e.mu.RLock()
	defer e.mu.RUnlock()
	all := make([]*live, 0, len(e.live))
	for _, l := range e.live {
		all = append(all, l)
	}
	return all
}
