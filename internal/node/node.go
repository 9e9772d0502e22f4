// Package node puts a store, an engine and a receiver together: one process that owns and
// answers tasks.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/internal/telemetry"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/store/memory"
	"github.com/coatcheck/coatcheck/store/sqlite"
)

// DefaultDatabase is where tasks are kept if nothing else is said.
const DefaultDatabase = "sqlite:coatcheck.db"

// DefaultGrace is how long Close lets running tasks finish.
const DefaultGrace = 10 * time.Second

// Config says what a node is made of. Runner is required. The engine's durations have the
// defaults of engine.Options.
type Config struct {
	Database string      // "sqlite:FILE" or "memory:"; default DefaultDatabase
	Store    store.Store // used instead of Database if set; stays the caller's to close
	Runner   engine.Runner
	Tools    receiver.Tools
	Requests map[string]protocol.TaskSupport // beside tools/call, by method
	// Immediate is how long a create's answer waits for what its tool has to say for now.
	Immediate map[string]time.Duration

	Scopes  map[receiver.Operation]string // see receiver.Options
	Tickets receiver.Tickets              // for plain calls that take long; default none

	Limits *limit.Policy // default those of package limit
	Audit  audit.Sink    // takes the events of tasks; default none

	Metrics        *telemetry.Metrics   // takes the events, too, and measures the store; Close closes it; default none
	TracerProvider trace.TracerProvider // of the spans of tasks; default none

	Asks bool   // see receiver.Options
	Role string // see engine.Options

	PushInput             bool
	NoStatusNotifications bool

	DefaultTTL   time.Duration
	MaxTTL       time.Duration
	MinRetention time.Duration
	PollInterval time.Duration
	Lease        time.Duration
	Remember     time.Duration
	PageSize     int
	Grace        time.Duration // how long Close lets running tasks finish; default 10 s; negative for not at all
	Logger       *slog.Logger
}

// Node is an open store with an engine and a receiver on it.
type Node struct {
	Engine   *engine.Engine
	Receiver *receiver.Receiver
	Metrics  *telemetry.Metrics // nil if there are none

	store store.Store
	owned bool
	grace time.Duration
}

// Open returns a running node. Close ends it.
func Open(ctx context.Context, c Config) (*Node, error) {
	if err := c.Limits.Validate(); err != nil {
		return nil, fmt.Errorf("limits: %w", err)
	}
	n := &Node{store: c.Store, owned: c.Store == nil, grace: c.Grace}
	if n.grace == 0 {
		n.grace = DefaultGrace
	}
	if n.owned {
		var err error
		if n.store, err = openStore(ctx, c.Database, c.Logger); err != nil {
			return nil, err
		}
	}
	measured := n.measure(&c)
	var err error
	n.Engine, err = engine.New(ctx, engine.Options{
		Store:        measured,
		Runner:       c.Runner,
		DefaultTTL:   c.DefaultTTL,
		MaxTTL:       c.MaxTTL,
		MinRetention: c.MinRetention,
		PollInterval: c.PollInterval,
		Lease:        c.Lease,
		Remember:     c.Remember,
		Role:         c.Role,
		Limits:       c.Limits,
		Audit:        c.Audit,
		Logger:       c.Logger,

		TracerProvider: c.TracerProvider,

		PushInput:             c.PushInput,
		NoStatusNotifications: c.NoStatusNotifications,
	})
	if err != nil {
		n.unmeasure()
		return nil, errors.Join(err, n.closeStore())
	}
	n.Receiver = receiver.New(receiver.Options{
		Engine:    n.Engine,
		Tools:     c.Tools,
		Requests:  c.Requests,
		Immediate: c.Immediate,
		Asks:      c.Asks,
		Scopes:    c.Scopes,
		Tickets:   c.Tickets,
		Limits:    c.Limits,
		Audit:     c.Audit,
		PageSize:  c.PageSize,
		Logger:    c.Logger,

		TracerProvider: c.TracerProvider,
	})
	if err := n.observe(); err != nil {
		return nil, errors.Join(err, n.Close(ctx))
	}
	return n, nil
}

// Close lets running tasks finish for the grace time, or until ctx is done, records the
// rest, and closes the store if the node opened it.
func (n *Node) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(0, n.grace))
	defer cancel()
	defer n.unmeasure()
	return errors.Join(n.Engine.Shutdown(ctx), n.closeStore())
}

// Ready reports whether the store answers.
func (n *Node) Ready(ctx context.Context) error {
	_, _, err := n.store.NextDue(ctx, time.Now())
	return err
}

func (n *Node) closeStore() error {
	if !n.owned {
		return nil
	}
	return n.store.Close()
}

func openStore(ctx context.Context, database string, log *slog.Logger) (store.Store, error) {
	if database == "" {
		database = DefaultDatabase
	}
	kind, place, ok := strings.Cut(database, ":")
	switch {
	case ok && kind == "memory" && place == "":
		return memory.New(), nil
	case ok && kind == "sqlite" && place != "":
		s, err := sqlite.Open(ctx, place, &sqlite.Options{Logger: log})
		if err != nil {
			return nil, fmt.Errorf("cannot open the store %s: %w", database, err)
		}
		return s, nil
	}
	return nil, fmt.Errorf("unknown store %q: use sqlite:FILE, or memory: to keep nothing", database)
}
