package telemetry

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// Store returns a store that measures how long the operations of s take.
func (m *Metrics) Store(s store.Store) store.Store {
	t := &timed{Store: s, took: m.stored}
	for op := range t.fine {
		t.fine[op] = metric.WithAttributeSet(attribute.NewSet(keyOperation.String(operations[op])))
	}
	return t
}

type operation int

const (
	opCreate operation = iota
	opGet
	opLoad
	opUpdate
	opList
	opDue
	opNextDue
	opExpire
	opRenew
	opRelease
	opRekey
	opOrphans
	opCheck
	numOperations
)

var operations = [numOperations]string{
	"create", "get", "load", "update", "list", "due", "next_due", "expire", "renew", "release", "rekey", "orphans", "check",
}

// timed is a store whose operations are measured.
type timed struct {
	store.Store
	took metric.Float64Histogram
	fine [numOperations]metric.MeasurementOption // of operations without error
}

// over records an operation that is over.
func (t *timed) over(ctx context.Context, op operation, began time.Time, err error) {
	labels := t.fine[op]
	if err != nil {
		labels = metric.WithAttributes(keyOperation.String(operations[op]), keyError.String(kindOf(err)))
	}
	t.took.Record(ctx, time.Since(began).Seconds(), labels)
}

// kindOf names an error of the store. Only the last one says that the store is ill.
func kindOf(err error) string {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return "not_found"
	case errors.Is(err, store.ErrExpired):
		return "expired"
	case errors.Is(err, store.ErrConflict):
		return "conflict"
	case errors.Is(err, store.ErrQuota):
		return "quota"
	case errors.Is(err, store.ErrClosed):
		return "closed"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "cancelled"
	}
	return "_OTHER"
}

func (t *timed) Create(ctx context.Context, created *task.Task, q store.Quota) (existing *task.Task, err error) {
	defer func(began time.Time) { t.over(ctx, opCreate, began, err) }(time.Now())
	return t.Store.Create(ctx, created, q)
}

func (t *timed) Get(ctx context.Context, ref task.Ref) (_ *task.Task, err error) {
	defer func(began time.Time) { t.over(ctx, opGet, began, err) }(time.Now())
	return t.Store.Get(ctx, ref)
}

func (t *timed) Load(ctx context.Context, ref task.Ref) (_ *task.Task, err error) {
	defer func(began time.Time) { t.over(ctx, opLoad, began, err) }(time.Now())
	return t.Store.Load(ctx, ref)
}

func (t *timed) Update(ctx context.Context, changed *task.Task) (err error) {
	defer func(began time.Time) { t.over(ctx, opUpdate, began, err) }(time.Now())
	return t.Store.Update(ctx, changed)
}

func (t *timed) List(ctx context.Context, p task.Principal, after store.Position, limit int) (_ []*task.Task, err error) {
	defer func(began time.Time) { t.over(ctx, opList, began, err) }(time.Now())
	return t.Store.List(ctx, p, after, limit)
}

func (t *timed) Due(ctx context.Context, now time.Time, owner string, limit int) (_ []*task.Task, err error) {
	defer func(began time.Time) { t.over(ctx, opDue, began, err) }(time.Now())
	return t.Store.Due(ctx, now, owner, limit)
}

func (t *timed) NextDue(ctx context.Context, after time.Time) (at time.Time, ok bool, err error) {
	defer func(began time.Time) { t.over(ctx, opNextDue, began, err) }(time.Now())
	return t.Store.NextDue(ctx, after)
}

func (t *timed) Expire(ctx context.Context, now time.Time, refs []task.Ref, remember time.Time) (err error) {
	defer func(began time.Time) { t.over(ctx, opExpire, began, err) }(time.Now())
	return t.Store.Expire(ctx, now, refs, remember)
}

func (t *timed) Renew(ctx context.Context, owner string, until time.Time) (err error) {
	defer func(began time.Time) { t.over(ctx, opRenew, began, err) }(time.Now())
	return t.Store.Renew(ctx, owner, until)
}

func (t *timed) Release(ctx context.Context, owner string) (err error) {
	defer func(began time.Time) { t.over(ctx, opRelease, began, err) }(time.Now())
	return t.Store.Release(ctx, owner)
}

func (t *timed) Rekey(ctx context.Context, ref task.Ref, key string) (err error) {
	defer func(began time.Time) { t.over(ctx, opRekey, began, err) }(time.Now())
	return t.Store.Rekey(ctx, ref, key)
}

func (t *timed) Orphans(ctx context.Context, now time.Time, limit int) (_ []*task.Task, err error) {
	defer func(began time.Time) { t.over(ctx, opOrphans, began, err) }(time.Now())
	return t.Store.Orphans(ctx, now, limit)
}

func (t *timed) Check(ctx context.Context) (err error) {
	defer func(began time.Time) { t.over(ctx, opCheck, began, err) }(time.Now())
	return t.Store.Check(ctx)
}
