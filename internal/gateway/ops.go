package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/coatcheck/coatcheck/internal/node"
	"github.com/coatcheck/coatcheck/internal/telemetry"
	"github.com/coatcheck/coatcheck/internal/upstream"
)

// ErrMetrics says that the metrics' address cannot be listened on.
var ErrMetrics = errors.New("cannot serve metrics")

// storePatience is how long the store may take to answer before the gateway is not ready.
const storePatience = 2 * time.Second

// ops serves those who run the gateway, on an address of its own: /metrics for Prometheus
// (RSC-4), /livez and /readyz. It has no secrets, and asks for none. A nil *ops does nothing.
type ops struct {
	web      *http.Server
	provider *metric.MeterProvider
	served   chan struct{}
	log      *slog.Logger

	node     atomic.Pointer[node.Node] // nil while the gateway starts
	stopping atomic.Bool
}

// ops begins to serve metrics, if that is asked for.
func (c *Config) ops(ctx context.Context) (*ops, error) {
	if c.Metrics == "" {
		return nil, nil //nolint:nilnil // nothing to serve is no error
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	exporter, err := otelprometheus.New(
		otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo(), otelprometheus.WithoutTargetInfo())
	if err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Metrics)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMetrics, err)
	}
	o := &ops{provider: metric.NewMeterProvider(metric.WithReader(exporter)), served: make(chan struct{}), log: c.Logger}
	errorLog := slog.NewLogLogger(c.Logger.Handler(), slog.LevelWarn)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: errorLog, MaxRequestsInFlight: 4, Timeout: 10 * time.Second,
	}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", o.ready)
	o.web = &http.Server{
		Handler: mux, ErrorLog: errorLog, MaxHeaderBytes: 16 << 10,
		ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
	}
	go func() {
		defer close(o.served)
		if err := o.web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			c.Logger.Error("serving metrics failed", "error", err)
		}
	}()
	if c.MetricsReady != nil {
		c.MetricsReady(listener.Addr().String())
	}
	return o, nil
}

// ready says whether the gateway takes requests: not while it starts or shuts down, and not
// while the store does not answer. A server behind it that is down is no reason: its tasks can
// be read all the same.
func (o *ops) ready(w http.ResponseWriter, req *http.Request) {
	n := o.node.Load()
	switch {
	case o.stopping.Load():
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
		return
	case n == nil:
		http.Error(w, "starting", http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithTimeout(req.Context(), storePatience)
	defer cancel()
	if err := n.Ready(ctx); err != nil {
		o.log.Warn("the store does not answer", "error", err)
		http.Error(w, "the store does not answer", http.StatusServiceUnavailable)
		return
	}
	io.WriteString(w, "ok\n")
}

// started says that the node takes requests.
func (o *ops) started(n *node.Node) {
	if o != nil {
		o.node.Store(n)
	}
}

// stop says that the gateway ends.
func (o *ops) stop() {
	if o != nil {
		o.stopping.Store(true)
	}
}

// close ends the serving of metrics.
func (o *ops) close() {
	if o == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if o.web.Shutdown(ctx) != nil {
		_ = o.web.Close()
	}
	<-o.served
	_ = o.provider.Shutdown(ctx) // fails if called twice
}

// metrics returns what measures the gateway; nil if nothing does.
func (c *Config) metrics(o *ops) (*telemetry.Metrics, error) {
	provider := c.MeterProvider
	if o != nil {
		provider = o.provider
	}
	if provider == nil {
		return nil, nil //nolint:nilnil // nothing to measure is no error
	}
	return telemetry.New(provider, slices.Sorted(maps.Keys(c.Tools))...)
}

// measure has the use of a pool of processes measured, where there is one.
func measure(n *node.Node, server server) error {
	pool, ok := server.(*upstream.Processes)
	if !ok || n.Metrics == nil {
		return nil
	}
	return n.Metrics.ObservePool(func() telemetry.Pool { return telemetry.Pool(pool.Stats()) })
}
