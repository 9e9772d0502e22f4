package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/telemetry"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/store/memory"
	"github.com/coatcheck/coatcheck/store/sqlite"
	"github.com/coatcheck/coatcheck/store/storetest"
	"github.com/coatcheck/coatcheck/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// measured is a provider whose metrics can be read.
type measured struct {
	*testing.T
	*telemetry.Metrics
	reader *metric.ManualReader
}

func measure(t *testing.T, tools ...string) measured {
	t.Helper()
	reader := metric.NewManualReader()
	m, err := telemetry.New(metric.NewMeterProvider(metric.WithReader(reader)), tools...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return measured{t, m, reader}
}

// read returns all metrics, each as "name{labels}": a number, or of a histogram "count/sum".
func (m measured) read() map[string]string {
	m.Helper()
	var all metricdata.ResourceMetrics
	if err := m.reader.Collect(m.Context(), &all); err != nil {
		m.Fatal(err)
	}
	found := map[string]string{}
	for _, scope := range all.ScopeMetrics {
		for _, kind := range scope.Metrics {
			if kind.Unit == "" || kind.Description == "" {
				m.Errorf("%s has no unit, or no description", kind.Name)
			}
			switch data := kind.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					found[kind.Name+"{"+p.Attributes.Encoded(attribute.DefaultEncoder())+"}"] = fmt.Sprint(p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					found[kind.Name+"{"+p.Attributes.Encoded(attribute.DefaultEncoder())+"}"] = fmt.Sprintf("%d/%v", p.Count, p.Sum)
				}
			default:
				m.Errorf("%s is a %T", kind.Name, data)
			}
		}
	}
	return found
}

func (m measured) want(want map[string]string) {
	m.Helper()
	got := m.read()
	delete(got, "coatcheck.suspicious{}") // 0, from the beginning
	for name, value := range want {
		if got[name] != value {
			m.Errorf("%s is %q, want %s", name, got[name], value)
		}
		delete(got, name)
	}
	for name, value := range got {
		m.Errorf("also measured: %s %s", name, value)
	}
}

// RSC-4: each kind of event counts as what it is.
func TestEvents(t *testing.T) {
	m := measure(t)
	private := task.Principal("https://issuer|ada|")
	for _, ev := range []audit.Event{
		{Kind: audit.Created, Tool: "a"}, {Kind: audit.Created, Tool: "a"}, {Kind: audit.Created, Tool: "b"},
		{Kind: audit.Created, Method: "sampling/createMessage"},
		{Kind: audit.Started, Tool: "a", Duration: 250 * time.Millisecond},
		{Kind: audit.Asked, Tool: "a", Reason: "elicitation/create"},
		{Kind: audit.Answered, Tool: "a", Duration: time.Minute},
		{Kind: audit.Retrieved, Tool: "a"},
		{Kind: audit.Cancelled, Tool: "b", Status: task.Cancelled, Duration: 2 * time.Second},
		{Kind: audit.Ended, Tool: "a", Status: task.Completed, Duration: 3 * time.Second},
		{Kind: audit.Ended, Tool: "a", Status: task.Completed, Duration: 4 * time.Second},
		{Kind: audit.Ended, Tool: "a", Status: task.Failed, Duration: time.Second},
		{Kind: audit.Expired, Tool: "a", Status: task.Completed, Duration: time.Second},
		{Kind: audit.Expired, Tool: "a", Status: task.Working, Duration: 2 * time.Second},
		{Kind: audit.Refused, Method: "tools/call", Reason: audit.OverLimit, Limit: "running"},
		{Kind: audit.Refused, Method: "tasks/get", Reason: audit.NotFound},
		{Kind: audit.Refused, Method: "tasks/get", Reason: audit.NotFound},
		{Kind: audit.Refused, Method: "made/up", Reason: audit.Unauthorized},
		{Kind: audit.Refused, Reason: audit.Internal}, {Kind: audit.Refused, Method: "response", Reason: audit.Invalid},
	} {
		ev.Principal, ev.Task, ev.Address, ev.Session = private, "SECRET", "192.0.2.1", "session"
		ev.Time = time.Now()
		m.Record(t.Context(), ev)
	}
	m.want(map[string]string{
		"coatcheck.task.created{gen_ai.tool.name=a}":                                                                          "2",
		"coatcheck.task.created{gen_ai.tool.name=b}":                                                                          "1",
		"coatcheck.task.created{}":                                                                                            "1",
		"coatcheck.task.queue.duration{gen_ai.tool.name=a}":                                                                   "1/0.25",
		"coatcheck.task.input.duration{gen_ai.tool.name=a}":                                                                   "1/60",
		"coatcheck.task.ended{coatcheck.task.status=completed,gen_ai.tool.name=a}":                                            "2",
		"coatcheck.task.ended{coatcheck.task.status=failed,gen_ai.tool.name=a}":                                               "1",
		"coatcheck.task.ended{coatcheck.task.status=expired,gen_ai.tool.name=a}":                                              "1",
		"coatcheck.task.ended{coatcheck.task.status=cancelled,gen_ai.tool.name=b}":                                            "1",
		"coatcheck.task.duration{coatcheck.task.status=completed,gen_ai.tool.name=a}":                                         "2/7",
		"coatcheck.task.duration{coatcheck.task.status=failed,gen_ai.tool.name=a}":                                            "1/1",
		"coatcheck.task.duration{coatcheck.task.status=cancelled,gen_ai.tool.name=b}":                                         "1/2",
		"coatcheck.task.expiry.lag{}":                                                                                         "2/3",
		"coatcheck.operation.refused{coatcheck.limit.name=running,coatcheck.refusal.reason=limit,mcp.method.name=tools/call}": "1",
		"coatcheck.operation.refused{coatcheck.refusal.reason=not_found,mcp.method.name=tasks/get}":                           "2",
		"coatcheck.operation.refused{coatcheck.refusal.reason=unauthorized,mcp.method.name=other}":                            "1",
		"coatcheck.operation.refused{coatcheck.refusal.reason=internal}":                                                      "1",
		"coatcheck.operation.refused{coatcheck.refusal.reason=invalid,mcp.method.name=response}":                              "1",
	})
}

// AUD-2: a pattern counts once for each window and requestor, whatever others make of it.
func TestSuspicious(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := measure(t)
		for _, p := range []task.Principal{"mallory", "trudy", "alice"} {
			for range map[bool]int{true: 3, false: 300}[p == "alice"] {
				m.Record(t.Context(), audit.Event{Kind: audit.Refused, Method: "tasks/get", Reason: audit.NotFound, Principal: p, Task: "guess"})
			}
		}
		m.Record(t.Context(), audit.Event{Kind: audit.Suspicious, Reason: audit.ManyMisses, Principal: "mallory", Count: 10})
		<-time.After(2 * time.Minute) // the windows close, with an event each
		m.Record(t.Context(), audit.Event{Kind: audit.Created, Principal: "alice"})
		m.want(map[string]string{
			"coatcheck.suspicious{coatcheck.pattern.name=many_misses}":                                  "2",
			"coatcheck.operation.refused{coatcheck.refusal.reason=not_found,mcp.method.name=tasks/get}": "603",
			"coatcheck.task.created{}": "1",
		})
	})
}

// A client that makes up names of tools does not make up series.
func TestLabelsAreBounded(t *testing.T) {
	m := measure(t, "mine")
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := range 500 {
				m.Record(t.Context(), audit.Event{Kind: audit.Created, Tool: fmt.Sprintf("tool-%d", (i+worker*50)%500)})
			}
		})
	}
	all.Wait()
	for _, tool := range []string{strings.Repeat("x", 200), "not\xffutf8", "mine"} {
		m.Record(t.Context(), audit.Event{Kind: audit.Created, Tool: tool})
	}
	got := m.read()
	if len(got) != 1+101 {
		t.Errorf("%d series", len(got))
	}
	if got["coatcheck.task.created{gen_ai.tool.name=mine}"] != "1" {
		t.Error("a tool that was known before has no label")
	}
	if n := got["coatcheck.task.created{gen_ai.tool.name=other}"]; n != fmt.Sprint(8*500+2-8*99) {
		t.Errorf("%s are other", n)
	}
	first := measure(t)
	for _, tool := range []string{strings.Repeat("x", 200), "not\xffutf8"} {
		first.Record(t.Context(), audit.Event{Kind: audit.Created, Tool: tool})
	}
	first.want(map[string]string{"coatcheck.task.created{gen_ai.tool.name=other}": "2"})
}

func TestGauges(t *testing.T) {
	m := measure(t)
	live := telemetry.Tasks{Live: map[telemetry.Live]int{
		{Tool: "a", Status: "working"}: 2, {Tool: "a", Status: "queued"}: 1, {Status: "input_required"}: 1,
	}, Waits: 3}
	pool := telemetry.Pool{Limit: 4, Busy: 3, Input: 2, Idle: 1, Queued: 5}
	err := errors.Join(
		m.ObserveTasks(func() telemetry.Tasks { return live }),
		m.ObservePool(func() telemetry.Pool { return pool }),
		m.ObserveSessions(func() int { return 7 }),
	)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"coatcheck.task.active{coatcheck.task.status=working,gen_ai.tool.name=a}": "2",
		"coatcheck.task.active{coatcheck.task.status=queued,gen_ai.tool.name=a}":  "1",
		"coatcheck.task.active{coatcheck.task.status=input_required}":             "1",
		"coatcheck.task.waiters{}":                                     "3",
		"coatcheck.pool.processes{coatcheck.pool.process.state=busy}":  "3",
		"coatcheck.pool.processes{coatcheck.pool.process.state=input}": "2",
		"coatcheck.pool.processes{coatcheck.pool.process.state=idle}":  "1",
		"coatcheck.pool.limit{}":                                       "4",
		"coatcheck.pool.queued{}":                                      "5",
		"coatcheck.gateway.sessions{}":                                 "7",
	}
	m.want(want)

	// What is over is 0, and not as it was last.
	live = telemetry.Tasks{Live: map[telemetry.Live]int{{Tool: "a", Status: "working"}: 1}}
	want["coatcheck.task.active{coatcheck.task.status=working,gen_ai.tool.name=a}"] = "1"
	want["coatcheck.task.active{coatcheck.task.status=queued,gen_ai.tool.name=a}"] = "0"
	want["coatcheck.task.active{coatcheck.task.status=input_required}"] = "0"
	want["coatcheck.task.waiters{}"] = "0"
	m.want(want)

	// Tools beyond the bound are one.
	live = telemetry.Tasks{Live: map[telemetry.Live]int{}}
	for i := range 300 {
		live.Live[telemetry.Live{Tool: fmt.Sprint(i), Status: "working"}] = 1
	}
	got := m.read()
	if n := got["coatcheck.task.active{coatcheck.task.status=working,gen_ai.tool.name=other}"]; n != "201" {
		t.Errorf("%s are other", n)
	}
	m.Close()
	m.want(map[string]string{})
}

// The store that is measured is the store.
func TestStoreSuite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		return storetest.Harness{Store: measure(t).Store(memory.New())}
	})
}

func TestStoreOperations(t *testing.T) {
	m := measure(t)
	under, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "tasks.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := m.Store(under)
	now := task.Instant(time.Now())
	a := &task.Task{
		Ref: task.Ref{Principal: "p", ID: "a"}, Revision: 1, Status: task.Working, CreatedAt: now, UpdatedAt: now, TTL: time.Hour,
		Request: task.Request{Method: "tools/call", Params: []byte(`{}`)}, Owner: "me",
	}
	ctx := context.Background()
	for range 2 {
		_, _ = s.Create(ctx, a, store.Quota{}) // the second time it is there
	}
	_, _ = s.Get(ctx, a.Ref)
	_, _ = s.Get(ctx, task.Ref{Principal: "q", ID: "a"})
	_, _ = s.Load(ctx, a.Ref)
	ended, err := a.To(task.Cancelled, "", now)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_ = s.Update(ctx, ended)
	}
	_, _ = s.List(ctx, "p", store.Position{}, 10)
	_, _ = s.Due(ctx, now, "me", 10)
	_, _, _ = s.NextDue(ctx, now)
	later := now.Add(2 * time.Hour)
	_ = s.Expire(ctx, later, []task.Ref{a.Ref}, later.Add(time.Hour))
	_, _ = s.Get(ctx, a.Ref)
	_ = s.Renew(ctx, "me", later)
	_ = s.Release(ctx, "me")
	_ = s.Rekey(ctx, task.Ref{}, "")
	_, _ = s.Orphans(ctx, now, 10)
	_ = s.Check(ctx)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, _ = s.Load(ctx, a.Ref)

	counts := map[string]string{}
	all := m.read()
	delete(all, "coatcheck.suspicious{}")
	for name, value := range all {
		name = strings.TrimPrefix(strings.TrimSuffix(name, "}"), "coatcheck.store.operation.duration{")
		count, sum, _ := strings.Cut(value, "/")
		if sum == "0" {
			t.Errorf("%s took no time", name)
		}
		counts[name] = count
	}
	for name, want := range map[string]string{
		"coatcheck.store.operation=create": "1", "coatcheck.store.operation=create,error.type=_OTHER": "1",
		"coatcheck.store.operation=get": "1", "coatcheck.store.operation=get,error.type=not_found": "1",
		"coatcheck.store.operation=get,error.type=expired": "1",
		"coatcheck.store.operation=load":                   "1", "coatcheck.store.operation=load,error.type=closed": "1",
		"coatcheck.store.operation=update": "1", "coatcheck.store.operation=update,error.type=conflict": "1",
		"coatcheck.store.operation=list": "1", "coatcheck.store.operation=due": "1", "coatcheck.store.operation=next_due": "1",
		"coatcheck.store.operation=expire": "1", "coatcheck.store.operation=renew": "1", "coatcheck.store.operation=release": "1",
		"coatcheck.store.operation=orphans": "1", "coatcheck.store.operation=check": "1",
		"coatcheck.store.operation=rekey,error.type=not_found": "1",
	} {
		if counts[name] != want {
			t.Errorf("%s: %q, want %s", name, counts[name], want)
		}
		delete(counts, name)
	}
	if len(counts) != 0 {
		t.Errorf("also measured: %v", counts)
	}
}
