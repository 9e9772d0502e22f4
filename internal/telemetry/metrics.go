// Package telemetry measures what tasks, their store and their processes do, as OpenTelemetry
// metrics (RSC-4). docs/ops/README.md lists them all. No label has a principal, an address or a
// task's id.
package telemetry

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/task"
)

// Scope is the name of the meter and of the tracers.
const Scope = "github.com/coatcheck/coatcheck"

// The labels, named as in the spans where OpenTelemetry's conventions have words for them.
const (
	keyTool      = attribute.Key("gen_ai.tool.name")
	keyMethod    = attribute.Key("mcp.method.name")
	keyError     = attribute.Key("error.type")
	keyStatus    = attribute.Key("coatcheck.task.status")
	keyReason    = attribute.Key("coatcheck.refusal.reason")
	keyLimit     = attribute.Key("coatcheck.limit.name")
	keyPattern   = attribute.Key("coatcheck.pattern.name")
	keyOperation = attribute.Key("coatcheck.store.operation")
	keyProcess   = attribute.Key("coatcheck.pool.process.state")
)

// Bounds of the histograms' buckets, in seconds.
var (
	runBounds   = []float64{0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 1800, 3600, 14400, 86400}
	queueBounds = []float64{0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600}
	inputBounds = []float64{1, 5, 15, 30, 60, 300, 900, 3600, 14400, 86400, 259200}
	lagBounds   = []float64{0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 3600}
	storeBounds = []float64{0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}
)

// Metrics turns events of tasks into metrics. It implements audit.Sink, and watches for
// suspicious patterns itself: others may watch for other numbers, or not at all.
type Metrics struct {
	meter  metric.Meter
	watch  audit.Sink // hands events on to count
	tools  *labels
	limits *labels
	why    *labels // reasons, and patterns

	created    metric.Int64Counter
	ended      metric.Int64Counter
	refused    metric.Int64Counter
	suspicious metric.Int64Counter
	run        metric.Float64Histogram
	queue      metric.Float64Histogram
	input      metric.Float64Histogram
	lag        metric.Float64Histogram
	stored     metric.Float64Histogram

	mu         sync.Mutex
	registered []metric.Registration
}

// New returns the metrics of a node. The tools named have a label of their own in any case;
// of others, those that come first have one, until there are 100.
func New(provider metric.MeterProvider, tools ...string) (*Metrics, error) {
	m := &Metrics{
		meter: provider.Meter(Scope),
		tools: newLabels(tools...), limits: newLabels(), why: newLabels(),
	}
	var errs [9]error
	m.created, errs[0] = m.meter.Int64Counter("coatcheck.task.created",
		metric.WithUnit("{task}"), metric.WithDescription("Tasks created."))
	m.ended, errs[1] = m.meter.Int64Counter("coatcheck.task.ended",
		metric.WithUnit("{task}"), metric.WithDescription("Tasks that ended, by how."))
	m.refused, errs[2] = m.meter.Int64Counter("coatcheck.operation.refused",
		metric.WithUnit("{operation}"), metric.WithDescription("Operations of requestors that were refused."))
	m.suspicious, errs[3] = m.meter.Int64Counter("coatcheck.suspicious",
		metric.WithUnit("{event}"), metric.WithDescription("Suspicious patterns seen, one for each window and requestor."))
	m.run, errs[4] = m.seconds("coatcheck.task.duration", "How long tasks ran.", runBounds)
	m.queue, errs[5] = m.seconds("coatcheck.task.queue.duration", "How long tasks waited for their turn.", queueBounds)
	m.input, errs[6] = m.seconds("coatcheck.task.input.duration", "How long questions to requestors were open.", inputBounds)
	m.lag, errs[7] = m.seconds("coatcheck.task.expiry.lag", "How late tasks were deleted when their lifetime was over.", lagBounds)
	m.stored, errs[8] = m.seconds("coatcheck.store.operation.duration", "How long operations of the store took.", storeBounds)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	m.watch = audit.Watch(audit.SinkFunc(m.count), nil)
	m.suspicious.Add(context.Background(), 0) // so that it can be seen to be measured
	return m, nil
}

func (m *Metrics) seconds(name, description string, bounds []float64) (metric.Float64Histogram, error) {
	return m.meter.Float64Histogram(name,
		metric.WithUnit("s"), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(bounds...))
}

// Close ends what Observe functions have begun.
func (m *Metrics) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.registered {
		_ = r.Unregister() // of the SDK, it cannot fail
	}
	m.registered = nil
}

// Record implements audit.Sink.
func (m *Metrics) Record(ctx context.Context, ev audit.Event) {
	if ev.Kind != audit.Suspicious {
		m.watch.Record(ctx, ev)
	}
}

// count counts an event as what it is.
func (m *Metrics) count(ctx context.Context, ev audit.Event) {
	tool := m.tools.attribute(keyTool, ev.Tool)
	switch ev.Kind {
	case audit.Created:
		m.created.Add(ctx, 1, metric.WithAttributes(tool...))
	case audit.Started:
		m.queue.Record(ctx, ev.Duration.Seconds(), metric.WithAttributes(tool...))
	case audit.Answered:
		m.input.Record(ctx, ev.Duration.Seconds(), metric.WithAttributes(tool...))
	case audit.Cancelled:
		m.end(ctx, tool, string(task.Cancelled), ev.Duration)
	case audit.Ended:
		m.end(ctx, tool, string(ev.Status), ev.Duration)
	case audit.Expired:
		if ev.Status != "" && !ev.Status.Terminal() { // it ended thereby
			m.ended.Add(ctx, 1, metric.WithAttributes(append(tool, keyStatus.String("expired"))...))
		}
		m.lag.Record(ctx, ev.Duration.Seconds())
	case audit.Refused:
		labels := append(methodAttribute(ev.Method), m.why.attribute(keyReason, ev.Reason)...)
		m.refused.Add(ctx, 1, metric.WithAttributes(append(labels, m.limits.attribute(keyLimit, ev.Limit)...)...))
	case audit.Suspicious:
		if ev.Duration > 0 { // it closes a window that was counted
			return
		}
		m.suspicious.Add(ctx, 1, metric.WithAttributes(m.why.attribute(keyPattern, ev.Reason)...))
	}
}

func (m *Metrics) end(ctx context.Context, tool []attribute.KeyValue, status string, ran time.Duration) {
	attributes := metric.WithAttributes(append(tool, keyStatus.String(status))...)
	m.ended.Add(ctx, 1, attributes)
	m.run.Record(ctx, ran.Seconds(), attributes)
}
