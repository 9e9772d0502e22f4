package coatcheck

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/node"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/internal/telemetry"
	"github.com/coatcheck/coatcheck/internal/upstream"
	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// Unlimited as Options.MaxTTL sets no maximum.
const Unlimited = engine.Unlimited

// Options configures a Runtime. A nil *Options means all defaults, with which no tool
// supports tasks.
type Options struct {
	// Database is where tasks are kept: "sqlite:FILE" or "memory:" (lost with the process).
	// Default "sqlite:coatcheck.db" in the working directory.
	Database string
	// Store is used instead of Database if set. It stays the caller's to close, after the
	// Runtime.
	Store store.Store

	// Tools says which tools may run as tasks, by name. A tool that is not named may not.
	Tools map[string]Tool

	// DefaultTTL is the lifetime of a task whose requestor asks for none. Default 1 h.
	DefaultTTL time.Duration
	// MaxTTL is the longest lifetime a task may have. Default 24 h; Unlimited for none.
	MaxTTL time.Duration
	// MinRetention is how long a result stays after the task ended, at least: the ttl shown
	// grows to match, up to MaxTTL. Default 10 min; negative for none.
	MinRetention time.Duration
	// PollInterval is suggested to requestors. Default 1 s; negative suggests none.
	PollInterval time.Duration

	// PushInput sends a tool's questions (elicitation, sampling, roots) to the session that
	// made the task as soon as they are asked, if it has a GET stream open or is a stdio
	// session. Default: they wait for the requestor's tasks/result (INP-3, INP-5).
	PushInput bool
	// NoStatusNotifications leaves out notifications/tasks/status, which otherwise go to the
	// requestor's own sessions with each change (NOT-1).
	NoStatusNotifications bool

	// Tickets says when a plain call that takes long is answered with a ticket, for clients that
	// know nothing of tasks. Default: never.
	Tickets Tickets

	// AskAsTasks has what a handler asks by the SDK's own means (ServerSession.CreateMessage and
	// Elicit) run as tasks of clients that run such requests as tasks. Default: only what it
	// asks by Task.Sample and Task.Elicit.
	AskAsTasks bool

	// Limits bound what requestors may have and do. Default: see Limits.
	Limits *Policy
	// Audit takes the events of tasks (AUD-1). Default: none.
	Audit audit.Sink
	// MeterProvider has tasks and the store measured (RSC-4), as docs/ops/README.md says.
	// Default: none, at no cost.
	MeterProvider metric.MeterProvider
	// TracerProvider makes spans of creating tasks, of their work, of what they ask, and of
	// each request about them, in the trace of the request. Default: none, at no cost.
	TracerProvider trace.TracerProvider

	// Principal returns whose tasks an HTTP request is about, and whether that tells the
	// requestor from all others. Default: the identity of the SDK's auth.TokenInfo, whose
	// subject is UserID, and whose issuer and client are Extra["iss"] and Extra["client_id"],
	// where they are strings: TokenPrincipal. Without one all requestors are one, ids are the only secret, and tasks/list does not exist.
	Principal func(*http.Request) (p task.Principal, identified bool)
	// Scopes are what the SDK's auth.TokenInfo must name for an operation, with spaces between
	// them where it takes several; who lacks one is answered -32033, and 403. Default: none is
	// needed. A requestor without a TokenInfo, as over stdio, needs none.
	Scopes map[Operation]string
	// LocalPrincipal is the one requestor of a stdio or in-memory transport. Default: the
	// name of the operating-system user.
	LocalPrincipal task.Principal
	// MaxBody bounds the body of an HTTP request, in bytes. Default 16 MiB.
	MaxBody int64

	// AnyHost lets HTTP requests pass that reach a loopback address under a foreign host name,
	// for a server behind a proxy on the same machine. Default: they are refused with 403, also
	// where the SDK's DisableLocalhostProtection is set, as protection against DNS rebinding.
	AnyHost bool

	// Grace is how long Close lets running tasks finish. Default 10 s; negative for not at all.
	Grace time.Duration
	// Logger receives what goes wrong inside. Default: discards.
	Logger *slog.Logger
}

// Tool says how a tool runs.
type Tool struct {
	// Support is whether the tool may, must or must not be called as a task.
	Support Support
	// Immediate is how long the answer to a create may wait for the tool to call
	// Task.RespondNow. Default 0: it does not wait, and what the tool says then is not sent.
	Immediate time.Duration
	// Ticket is what differs from Options.Tickets for the tool.
	Ticket TicketTool
}

// Support is a tool's execution.taskSupport.
type Support = protocol.TaskSupport

// The values of Support; "" is Forbidden.
const (
	Forbidden = protocol.Forbidden
	Optional  = protocol.Optional
	Required  = protocol.Required
)

// Runtime runs an SDK server's tools as durable tasks.
type Runtime struct {
	node *node.Node
	opts Options
}

// Open returns a Runtime for an SDK server, whose tools are added as usual, before or after.
// It adds middleware to the server that turns a panic in a handler into a JSON-RPC error, and
// that FromContext needs.
// Close ends the Runtime.
//
// Several processes may open one SQLite file: each sees and awaits the others' tasks, and
// takes over nothing from one that is alive.
func Open(ctx context.Context, server *mcp.Server, opts *Options) (*Runtime, error) {
	if server == nil {
		return nil, errors.New("coatcheck: a server is required")
	}
	rt := &Runtime{}
	if opts != nil {
		rt.opts = *opts
	}
	if rt.opts.LocalPrincipal == "" {
		rt.opts.LocalPrincipal = node.LocalPrincipal()
	}
	if rt.opts.Logger == nil {
		rt.opts.Logger = slog.New(slog.DiscardHandler)
	}
	asTask := upstream.Never
	if rt.opts.AskAsTasks {
		asTask = upstream.WhenPossible
	}
	support := make(map[string]protocol.TaskSupport, len(rt.opts.Tools))
	immediate := map[string]time.Duration{}
	for name, tool := range rt.opts.Tools {
		support[name] = tool.Support
		if tool.Immediate > 0 {
			immediate[name] = tool.Immediate
		}
	}
	var metrics *telemetry.Metrics
	if rt.opts.MeterProvider != nil {
		var err error
		if metrics, err = telemetry.New(rt.opts.MeterProvider, slices.Sorted(maps.Keys(support))...); err != nil {
			return nil, err
		}
	}
	var err error
	rt.node, err = node.Open(ctx, node.Config{
		Database:     rt.opts.Database,
		Store:        rt.opts.Store,
		Runner:       upstream.InProcess(server, rt.opts.Logger, asTask),
		Tools:        receiver.Tools{ByName: support},
		Immediate:    immediate,
		Asks:         true,
		DefaultTTL:   rt.opts.DefaultTTL,
		MaxTTL:       rt.opts.MaxTTL,
		MinRetention: rt.opts.MinRetention,
		PollInterval: rt.opts.PollInterval,
		Grace:        rt.opts.Grace,
		Scopes:       rt.opts.Scopes,
		Tickets:      rt.opts.tickets(),
		Limits:       rt.opts.Limits,
		Audit:        rt.opts.Audit,
		Logger:       rt.opts.Logger,

		Metrics:        metrics,
		TracerProvider: rt.opts.TracerProvider,

		PushInput:             rt.opts.PushInput,
		NoStatusNotifications: rt.opts.NoStatusNotifications,
	})
	if err != nil {
		return nil, err
	}
	server.AddReceivingMiddleware(upstream.PlainCalls(rt.node.Receiver.Taken))
	return rt, nil
}

// Handler returns a handler that adds tasks to inner, the server's Streamable HTTP handler.
// Task messages do not reach inner: authorization (auth.RequireBearerToken, say) goes around
// the handler that is returned, not inside it.
func (rt *Runtime) Handler(inner http.Handler) http.Handler {
	return wire.Handler(inner, rt.node.Receiver, &wire.HTTPOptions{
		Principal: rt.opts.Principal,
		MaxBody:   rt.opts.MaxBody,
		AnyHost:   rt.opts.AnyHost,
	})
}

// Transport returns a transport that adds tasks to inner, which the server would have been
// connected with or run on: stdio or in-memory.
func (rt *Runtime) Transport(inner mcp.Transport) mcp.Transport {
	return wire.Transport(inner, rt.node.Receiver, wire.TransportOptions{Principal: rt.opts.LocalPrincipal, Grace: rt.opts.grace()})
}

// Close lets running tasks finish for Options.Grace, or until ctx is done, and records the
// rest as failed. Stop serving before it.
func (rt *Runtime) Close(ctx context.Context) error { return rt.node.Close(ctx) }
