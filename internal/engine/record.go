package engine

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

type callerKey struct{}

// By returns a context for operations that a caller asked for: the audit says so.
func By(ctx context.Context, c *Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// record hands an event to the audit (AUD-1), with the time, the trace, and who asked for it.
func (e *Engine) record(ctx context.Context, ev audit.Event) {
	if e.opts.Audit == nil {
		return
	}
	if c, ok := ctx.Value(callerKey{}).(*Caller); ok && c != nil {
		ev.Address, ev.Session = c.Address, c.Session
	}
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		ev.Trace = span.TraceID().String()
	}
	ev.Time = e.opts.Now()
	e.opts.Audit.Record(ctx, ev)
}

// recordOf is record for a task.
func (e *Engine) recordOf(ctx context.Context, t *task.Task, ev audit.Event) {
	if e.opts.Audit == nil {
		return
	}
	ev.Principal, ev.Task, ev.Status = t.Principal, t.ID, t.Status
	if ev.Tool == "" {
		ev.Tool = toolOf(t.Request)
	}
	e.record(ctx, ev)
}

// recordLive is record for a task that this process runs, of what its work does.
func (e *Engine) recordLive(l *live, ev audit.Event) {
	ev.Tool = l.tool
	e.recordOf(l.ctx, l.state.Load(), ev)
}

// ran returns how long a task has been at work; 0 if it never was.
func (l *live) ran(now time.Time) time.Duration {
	if began := l.began.Load(); began != nil {
		return max(0, now.Sub(*began))
	}
	return 0
}

// toolOf returns the name of the tool that a request calls, or "".
func toolOf(r task.Request) string {
	if r.Method != protocol.MethodToolsCall {
		return ""
	}
	name, _ := protocol.Unquote(protocol.Get(r.Params, "name"))
	return name
}
