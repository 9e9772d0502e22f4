// Package gateway puts tasks in front of an MCP server that somebody else wrote: a command
// that speaks stdio, or a URL.
package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os/exec"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/net/netutil"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/authn"
	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/internal/node"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/internal/session"
	"github.com/coatcheck/coatcheck/internal/upstream"
	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// Config is what a gateway is told. One of URL and Command is set.
type Config struct {
	URL     string   // of a server that speaks Streamable HTTP
	Command []string // that starts a server which speaks stdio

	Listen string        // address of the HTTP endpoint /mcp
	Stdio  mcp.Transport // serve on it instead, if set

	Store        string                          // "sqlite:FILE" or "memory:"
	Support      protocol.TaskSupport            // of tools that Tools does not name
	Tools        map[string]protocol.TaskSupport // by name
	DefaultTTL   time.Duration
	MaxTTL       time.Duration
	MinRetention time.Duration
	PollInterval time.Duration
	Processes    int           // of Command that run tasks, at most; default 4
	SessionIdle  time.Duration // after which an HTTP session without requests ends, and its process; default 30 min

	Tickets receiver.Tickets // for plain calls that take long; default none

	PushInput             bool // questions go to the session that made the task at once
	NoStatusNotifications bool

	AnyHost    bool           // see wire.HTTPOptions
	SingleUser bool           // all HTTP requestors are one
	Guard      Guard          // of the HTTP endpoint
	Principal  task.Principal // its name, and that of the stdio requestor; default the OS user

	Auth     authn.Config                  // who the HTTP requestors are; default nobody in particular
	Scopes   map[receiver.Operation]string // see receiver.Options
	Insecure bool                          // serve everybody who can reach Listen, and trust keys that come over http
	// UpstreamToken is what authorization the server at URL is shown: CallersToken, the default
	// without Auth; NoToken, the default with it; or that of the file named so, which holds a
	// bearer token of the gateway's own.
	UpstreamToken string

	Limits *limit.Policy // default those of package limit
	Audit  audit.Sink    // takes the events of tasks; default none

	Metrics      string               // address to serve /metrics, /livez and /readyz on; default none
	MetricsReady func(address string) // called when they can be reached
	// MeterProvider measures tasks and the store, where Metrics does not. Default: none.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider // of the spans of tasks; default none

	Logger *slog.Logger         // default: discards
	Ready  func(address string) // called when the HTTP endpoint can be reached
}

// stdioGrace is how long tasks may go on when the client of a stdio session has gone: clients
// kill a server that is not gone two seconds after they closed its input.
const stdioGrace = time.Second

// unwind is how long open streams have to end, at shutdown, once the tasks have.
const unwind = 2 * time.Second

// Serve runs a gateway until ctx is done or its client ends the stdio session. Then running
// tasks may finish for a short while; the rest is recorded.
func Serve(ctx context.Context, c Config) error {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Principal == "" {
		c.Principal = node.LocalPrincipal()
	}
	if c.SessionIdle <= 0 {
		c.SessionIdle = 30 * time.Minute
	}
	c.Guard.setDefaults()
	ops, err := c.ops(ctx)
	if err != nil {
		return err
	}
	defer ops.close()
	defer context.AfterFunc(ctx, ops.stop)()
	metrics, err := c.metrics(ops)
	if err != nil {
		return err
	}
	sink := c.Audit
	if metrics != nil {
		sink = audit.Join(sink, metrics)
	}
	var listener net.Listener
	var certificates *tls.Config
	var guard *authn.Guard
	if c.Stdio == nil {
		if c.Guard.TLS != nil {
			if certificates, err = c.Guard.TLS.serverConfig(c.Guard.Times.Files, c.Logger); err != nil {
				return err
			}
		}
		if listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen); err != nil {
			return err
		}
		defer listener.Close()
		if guard, err = c.guard(listener, sink); err != nil {
			return err
		}
	}
	web, err := c.web()
	if err != nil {
		return err
	}
	server, err := c.server(web)
	if err != nil {
		return err
	}
	var grace time.Duration // the node's default
	if c.Stdio != nil {
		grace = stdioGrace
	}
	n, err := node.Open(ctx, node.Config{
		Database:     c.Store,
		Runner:       server,
		Tools:        receiver.Tools{Default: c.Support, ByName: c.Tools, Server: server.Tools},
		DefaultTTL:   c.DefaultTTL,
		MaxTTL:       c.MaxTTL,
		MinRetention: c.MinRetention,
		PollInterval: c.PollInterval,
		Grace:        grace,
		Scopes:       c.Scopes,
		Tickets:      c.Tickets,
		Limits:       c.Limits,
		Audit:        c.Audit,
		Logger:       c.Logger,

		Metrics:        metrics,
		TracerProvider: c.TracerProvider,

		PushInput:             c.PushInput,
		NoStatusNotifications: c.NoStatusNotifications,
	})
	if err != nil {
		return errors.Join(err, server.Close())
	}
	if err := measure(n, server); err != nil {
		return errors.Join(err, n.Close(ctx), server.Close())
	}
	ops.started(n)
	if c.Stdio != nil {
		err = c.serveStdio(ctx, n, web, ops.stop)
		return errors.Join(err, server.Close())
	}
	return errors.Join(c.serveHTTP(ctx, n, listener, certificates, guard, sink, web), server.Close())
}

// server is where tasks run.
type server interface {
	engine.Runner
	Tools(context.Context) (map[string]protocol.TaskSupport, error)
	Close() error
}

func (c *Config) server(web http.RoundTripper) (server, error) {
	if c.URL != "" {
		return upstream.URL(c.URL, &upstream.URLOptions{Client: &http.Client{Transport: web}, Withheld: c.withheld(), Logger: c.Logger}), nil
	}
	return upstream.Process(c.Command, &upstream.ProcessOptions{Processes: c.Processes, Logger: c.Logger})
}

// process returns the command, not started.
func (c *Config) process() *exec.Cmd {
	cmd := exec.Command(c.Command[0], c.Command[1:]...) //nolint:noctx // its connection ends it, gently
	cmd.Stderr = upstream.LogLines(c.Logger)
	return cmd
}

// serveStdio closes the node. stop is called before.
func (c *Config) serveStdio(ctx context.Context, n *node.Node, web http.RoundTripper, stop func()) error {
	var back mcp.Transport = &session.HTTP{URL: c.URL, Client: &http.Client{Transport: web}, Listen: true}
	if c.URL == "" {
		back = session.CommandTransport(c.process())
	}
	own := &departing{Transport: c.Stdio}
	front := wire.Transport(own, n.Receiver, wire.TransportOptions{Principal: c.Principal, Grace: stdioGrace})
	return bridge(ctx, front, back, func() error {
		stop()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), own.grace())
		defer cancel()
		return n.Close(ending)
	})
}

func (c *Config) serveHTTP(ctx context.Context, n *node.Node, listener net.Listener, certificates *tls.Config, guard *authn.Guard, sink audit.Sink, web http.RoundTripper) error {
	// The host is looked at before.
	opts := &wire.HTTPOptions{AnyHost: true, Principal: c.principal(), Address: authn.Address(c.Auth.TrustedProxies)}
	if guard != nil {
		opts.Challenge = guard.Challenge()
	}
	var inner http.Handler
	if c.URL != "" {
		var err error
		if inner, err = newProxy(c.URL, web, c.withheld(), c.Logger); err != nil {
			return errors.Join(err, n.Close(ctx))
		}
	} else {
		sessions := newProcesses(c.process, c.SessionIdle, newPlaces(c.Guard.Sessions), c.holders(opts), opts.Principal, c.Logger)
		defer sessions.Close()
		if n.Metrics != nil {
			if err := n.Metrics.ObserveSessions(sessions.count); err != nil {
				return errors.Join(err, n.Close(ctx))
			}
		}
		inner = sessions
	}
	endpoint := &http.Server{
		Handler:           c.handler(inner, n.Receiver, opts, guard, sink),
		TLSConfig:         certificates,
		ReadHeaderTimeout: c.Guard.Times.Header,
		IdleTimeout:       c.Guard.Times.Idle,
		MaxHeaderBytes:    maxHeader,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: streams, WriteByteTimeout: c.Guard.Times.Write},
		ErrorLog:          slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
	}
	listener = netutil.LimitListener(listener, c.Guard.Connections)
	served := make(chan error, 1)
	go func() {
		if certificates != nil {
			served <- endpoint.ServeTLS(listener, "", "")
		} else {
			served <- endpoint.Serve(listener)
		}
	}()
	if c.Ready != nil {
		c.Ready(listener.Addr().String())
	}
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	// Tasks first: their end answers those who wait for them.
	after := context.WithoutCancel(ctx)
	err = errors.Join(err, n.Close(after))
	ending, cancel := context.WithTimeout(after, unwind)
	defer cancel()
	if endpoint.Shutdown(ending) != nil {
		_ = endpoint.Close() // streams that wait for nothing, such as GET
	}
	return err
}

// handler is everything that the endpoint serves.
func (c *Config) handler(inner http.Handler, r *receiver.Receiver, opts *wire.HTTPOptions, guard *authn.Guard, sink audit.Sink) http.Handler {
	mux := http.NewServeMux()
	if guard == nil {
		mux.Handle("/mcp", wire.Handler(inner, r, opts))
	} else {
		mux.Handle("/mcp", guard.Handler(wire.Handler(inner, r, opts)))
		guard.Mount(mux, "/mcp")
	}
	return &guarded{Guard: c.Guard, anyHost: c.AnyHost, inner: mux, audit: sink, address: authn.Address(c.Auth.TrustedProxies)}
}
