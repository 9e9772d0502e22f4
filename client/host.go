package client

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/node"
	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// Support says whether a request may, must or must not be made as a task.
type Support = protocol.TaskSupport

// The values of Support; "" is Forbidden.
const (
	Forbidden = protocol.Forbidden
	Optional  = protocol.Optional
	Required  = protocol.Required
)

// HostOptions configures OpenHost.
type HostOptions struct {
	// Sampling and Elicitation say which of the server's requests are run as tasks (CAP-2).
	// The SDK client's own handlers do the work, or Options.Handlers; one must be set.
	// Default: Forbidden.
	Sampling, Elicitation Support

	// Database is where tasks are kept: "sqlite:FILE" or "memory:" (lost with the process).
	// Default "sqlite:coatcheck-client.db" in the working directory.
	Database string
	// Store is used instead of Database if set. It stays the caller's to close.
	Store store.Store

	// DefaultTTL, MaxTTL, MinRetention and PollInterval are as in coatcheck.Options.
	DefaultTTL, MaxTTL, MinRetention, PollInterval time.Duration
	// NoStatusNotifications leaves out notifications/tasks/status (NOT-1).
	NoStatusNotifications bool
	// Grace is how long Close lets running tasks finish. Default 10 s; negative for not at all.
	Grace time.Duration
	// Logger receives what goes wrong inside. Default: discards.
	Logger *slog.Logger
}

// Host runs what servers ask of a client as durable tasks, so that a person may take an hour
// over an answer. It may be shared by sessions with any number of servers, none of which sees
// another's tasks.
type Host struct {
	node *node.Node
	runs *hostedRuns
}

// OpenHost opens a Host. Close ends it.
func OpenHost(ctx context.Context, opts *HostOptions) (*Host, error) {
	if opts == nil {
		opts = &HostOptions{}
	}
	requests := map[string]protocol.TaskSupport{}
	for method, support := range map[string]Support{protocol.MethodCreateMessage: opts.Sampling, protocol.MethodElicit: opts.Elicitation} {
		if support == Optional || support == Required {
			requests[method] = support
		}
	}
	if len(requests) == 0 {
		return nil, errors.New("client: a host runs sampling or elicitation, or both")
	}
	database := opts.Database
	if database == "" {
		database = "sqlite:coatcheck-client.db"
	}
	h := &Host{runs: &hostedRuns{sessions: map[string]*conn{}}}
	var err error
	h.node, err = node.Open(ctx, node.Config{
		Database:     database,
		Store:        opts.Store,
		Runner:       h.runs,
		Requests:     requests,
		Role:         "client",
		DefaultTTL:   opts.DefaultTTL,
		MaxTTL:       opts.MaxTTL,
		MinRetention: opts.MinRetention,
		PollInterval: opts.PollInterval,
		Grace:        opts.Grace,
		Logger:       opts.Logger,

		NoStatusNotifications: opts.NoStatusNotifications,
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Close lets running tasks finish for HostOptions.Grace, or until ctx is done, and records
// the rest as failed. Close the sessions after it.
func (h *Host) Close(ctx context.Context) error { return h.node.Close(ctx) }

// transport puts the host between a session's connection and the server.
func (h *Host) transport(inner mcp.Transport, server, session string) mcp.Transport {
	return wire.HostTransport(inner, h.node.Receiver, wire.TransportOptions{Principal: task.Principal(server), Session: session})
}

// hostedRuns runs hosted requests in the session they came from.
type hostedRuns struct {
	mu       sync.Mutex
	sessions map[string]*conn
}

func (r *hostedRuns) enter(session string, c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions[session] = c
}

// leave ends the runs of a session, and begins no more.
func (r *hostedRuns) leave(session string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.sessions[session]; c != nil {
		close(c.leaving)
	}
	delete(r.sessions, session)
}

// Run implements engine.Runner.
func (r *hostedRuns) Run(ctx context.Context, job *engine.Job) (task.Outcome, error) {
	var c *conn
	if job.Caller != nil {
		r.mu.Lock()
		c = r.sessions[job.Caller.Session]
		r.mu.Unlock()
	}
	if c == nil {
		return task.Outcome{}, protocol.Errorf(protocol.CodeInternalError, "The client's session has ended")
	}
	return c.run(ctx, job)
}
