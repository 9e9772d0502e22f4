package coatcheck_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	randv2 "math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/store/sqlite"
	"github.com/coatcheck/coatcheck/task"
)

// desk is a runtime's handler without a network, whose requestors say who they are.
type desk struct{ http.Handler }

func openDesk(t testing.TB, opts *coatcheck.Options) *desk {
	opts.Tools, opts.Grace = toolSupport, -1
	opts.Principal = func(req *http.Request) (task.Principal, bool) { return task.Principal(req.Header.Get("Who")), true }
	server := newServer()
	rt, err := coatcheck.Open(t.Context(), server, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &desk{rt.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))}
}

// ask makes a call and returns its result, or its error object.
func (d *desk) ask(who, method, params string) (result json.RawMessage, refused json.RawMessage) {
	req := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Who", who)
	if who == "mallory" { // look-ups that fail count against the address, too
		req.RemoteAddr = "198.51.100.66:4711"
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, req)
	return protocol.Get(w.Body.Bytes(), "result"), protocol.Get(w.Body.Bytes(), "error")
}

func (d *desk) create(t testing.TB, who string) string {
	t.Helper()
	result, refused := d.ask(who, "tools/call", `{"name":"echo","arguments":{},"task":{}}`)
	id, ok := protocol.Unquote(protocol.Get(protocol.Get(result, "task"), "taskId"))
	if !ok {
		t.Fatalf("create: %s", refused)
	}
	return id
}

// SEC-1, SEC-5, AUD-2: who tries 100,000 ids, guessed and foreign, finds nothing, raises one
// alert, costs no memory and harms nobody.
func TestProbing(t *testing.T) {
	for _, s := range []settings{{}, {NoLimits: true}} {
		probes := 100_000
		if s.NoLimits { // each reaches the store
			probes = 20_000
		}
		t.Run(fmt.Sprintf("no limits %v", s.NoLimits), func(t *testing.T) {
			alerts := map[string]int{}
			now := time.Now() // one window
			var alerting sync.Mutex
			watch := audit.Watch(audit.SinkFunc(func(_ context.Context, ev audit.Event) {
				if ev.Kind == audit.Suspicious {
					alerting.Lock()
					defer alerting.Unlock()
					alerts[fmt.Sprint(ev.Principal, " ", ev.Reason)]++
				}
			}), &audit.WatchOptions{Now: func() time.Time { return now }})
			d := openDesk(t, &coatcheck.Options{Database: "sqlite:" + filepath.Join(t.TempDir(), "tasks.db"), Limits: s.policy(), Audit: watch})
			var foreign []string
			for range 100 {
				foreign = append(foreign, d.create(t, "alice"))
			}
			own := d.create(t, "bob")
			var mu sync.Mutex
			answers := map[string]int{}
			probe := func(i int) {
				id := rand.Text()
				if i%2 == 0 {
					id = foreign[i/2%len(foreign)]
				}
				method := []string{"tasks/get", "tasks/result", "tasks/cancel"}[i%3]
				result, refused := d.ask("mallory", method, idParams(id))
				if result != nil {
					t.Errorf("%s of %s: %s", method, id, result)
				}
				mu.Lock()
				defer mu.Unlock()
				answers[string(protocol.Get(refused, "code"))]++
			}
			// A refusal is held back for a while: many probe at once.
			probeAll := func(from, to int) {
				var all sync.WaitGroup
				next := make(chan int)
				for range 1000 {
					all.Go(func() {
						for i := range next {
							probe(i)
						}
					})
				}
				for i := from; i < to; i++ {
					next <- i
					if i%1000 == 0 {
						if result, refused := d.ask("bob", "tasks/get", idParams(own)); result == nil {
							t.Errorf("another's own task: %s", refused)
						}
					}
				}
				close(next)
				all.Wait()
			}
			probeAll(0, 2000) // what is kept of one requestor is kept now
			before := heap()
			probeAll(2000, probes)
			if grown := heap() - before; grown > 4<<20 {
				t.Errorf("the heap grew by %d bytes", grown)
			}
			want := map[string]int{"mallory many_misses": 1, "mallory probing": 1}
			if !s.NoLimits { // it also asked more often than it may
				want["mallory polling_storm"] = 1
			}
			if !maps.Equal(alerts, want) {
				t.Errorf("alerts %v, want %v", alerts, want)
			}
			if s.NoLimits && answers["-32602"] != probes || !s.NoLimits && answers["-32029"] < 90_000 {
				t.Errorf("answers by code: %v", answers)
			}
			for _, id := range foreign {
				if result, refused := d.ask("alice", "tasks/get", idParams(id)); result == nil || strings.Contains(string(result), "cancelled") {
					t.Fatalf("the owner's task: %s %s", result, refused)
				}
			}
		})
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// counted is a store that counts what is asked of it.
type counted struct {
	store.Store
	asked atomic.Int64
}

func (c *counted) Get(ctx context.Context, ref task.Ref) (*task.Task, error) {
	c.asked.Add(1)
	return c.Store.Get(ctx, ref)
}

func (c *counted) Load(ctx context.Context, ref task.Ref) (*task.Task, error) {
	c.asked.Add(1)
	return c.Store.Load(ctx, ref)
}

func (c *counted) Update(ctx context.Context, t *task.Task) error {
	c.asked.Add(1)
	return c.Store.Update(ctx, t)
}

// C.6: a foreign task, running or ended, and an unknown one are answered with the same bytes,
// by the same queries, in times that cannot be told apart.
func TestAForeignTaskIsAnUnknownOne(t *testing.T) {
	inner, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "tasks.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inner.Close() })
	s := &counted{Store: inner}
	d := openDesk(t, &coatcheck.Options{Store: s, Limits: settings{NoLimits: true}.policy(), Audit: audit.Watch(audit.SinkFunc(func(context.Context, audit.Event) {}), nil)})
	var foreign []string
	for range 500 {
		foreign = append(foreign, d.create(t, "alice"))
	}
	result, _ := d.ask("alice", "tools/call", gate("x"))
	running, _ := protocol.Unquote(protocol.Get(protocol.Get(result, "task"), "taskId"))
	for _, id := range foreign {
		for { // until it has ended, so that nothing else asks the store
			if result, _ := d.ask("alice", "tasks/get", idParams(id)); strings.Contains(string(result), "completed") {
				break
			}
		}
	}
	for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel"} {
		var times [2][]float64 // of unknown ones, of foreign ones
		for i := range 4000 {
			ids := []string{rand.Text(), foreign[i%len(foreign)]}
			if i%8 == 0 {
				ids[1] = running
			}
			var text [2]string
			var queries [2]int64
			first := randv2.IntN(2)
			for _, kind := range []int{first, 1 - first} {
				before, begin := s.asked.Load(), time.Now()
				_, refused := d.ask("mallory", method, idParams(ids[kind]))
				times[kind] = append(times[kind], float64(time.Since(begin)))
				text[kind], queries[kind] = string(refused), s.asked.Load()-before
			}
			if text[0] != text[1] || !strings.Contains(text[0], "Task not found") || queries[0] != queries[1] {
				t.Fatalf("%s: %s after %d queries, %s after %d", method, text[0], queries[0], text[1], queries[1])
			}
		}
		// How often a foreign one takes longer than an unknown one: a half, if neither does.
		// For 4,000 of each, chance alone moves it by 0.006.
		if p := longer(times[1], times[0]); math.Abs(p-0.5) > 0.06 {
			t.Errorf("%s: a foreign task takes longer than an unknown one in %.3f of the cases", method, p)
		}
	}
}

// longer returns the probability that one of a is more than one of b.
func longer(a, b []float64) float64 {
	slices.Sort(b)
	below := 0
	for _, x := range a {
		i, _ := slices.BinarySearch(b, x)
		below += i
	}
	return float64(below) / float64(len(a)) / float64(len(b))
}

// A flood of every operation by one requestor does not keep another from its work, and loses
// nothing.
func TestFlood(t *testing.T) {
	d := openDesk(t, &coatcheck.Options{Database: "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")})
	stop := flood(d)
	var ids []string
	for range 100 {
		ids = append(ids, d.create(t, "alice"))
	}
	acknowledged, refused := stop()
	if refused == 0 {
		t.Error("nothing of the flood was refused")
	}
	for _, id := range ids {
		if result, refused := d.ask("alice", "tasks/result", idParams(id)); result == nil {
			t.Fatalf("alice's task: %s", refused)
		}
	}
	// What was acknowledged to the one who floods is there, too.
	for _, id := range acknowledged {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			result, refused := d.ask("mallory", "tasks/get", idParams(id))
			if result != nil {
				break
			}
			if string(protocol.Get(refused, "code")) != "-32029" || time.Now().After(deadline) {
				t.Fatalf("mallory's task: %s", refused)
			}
		}
	}
}

// flood has one requestor do everything at full speed, four times at once. stop ends it, and
// returns the tasks that were made and how much was refused.
func flood(d *desk) (stop func() (made []string, refused int64)) {
	var over atomic.Bool
	var all sync.WaitGroup
	var mu sync.Mutex
	var made []string
	var refusals atomic.Int64
	for range 4 {
		all.Go(func() {
			last := "none"
			for !over.Load() {
				result, refused := d.ask("mallory", "tools/call", `{"name":"echo","arguments":{},"task":{}}`)
				if id, ok := protocol.Unquote(protocol.Get(protocol.Get(result, "task"), "taskId")); ok {
					last = id
					mu.Lock()
					made = append(made, id)
					mu.Unlock()
				}
				if refused != nil {
					refusals.Add(1)
				}
				for _, method := range []string{"tasks/get", "tasks/result", "tasks/list", "tasks/cancel"} {
					if _, refused := d.ask("mallory", method, idParams(last)); refused != nil {
						refusals.Add(1)
					}
				}
			}
		})
	}
	return func() ([]string, int64) {
		over.Store(true)
		all.Wait()
		return made, refusals.Load()
	}
}

// BenchmarkUnderFlood is what one requestor's create, poll and result take in the quiet, and
// while another floods.
func BenchmarkUnderFlood(b *testing.B) {
	for _, flooded := range []bool{false, true} {
		b.Run(fmt.Sprintf("flood=%v", flooded), func(b *testing.B) {
			policy := settings{NoLimits: true}.policy()
			policy.Principals = map[task.Principal]coatcheck.Limits{"mallory": (*coatcheck.Policy)(nil).For("mallory")}
			d := openDesk(b, &coatcheck.Options{Database: "sqlite:" + filepath.Join(b.TempDir(), "tasks.db"), Limits: policy})
			if flooded {
				defer flood(d)()
			}
			var took []time.Duration
			for b.Loop() {
				begin := time.Now()
				id := d.create(b, "alice")
				d.ask("alice", "tasks/get", idParams(id))
				if result, refused := d.ask("alice", "tasks/result", idParams(id)); result == nil {
					b.Fatalf("%s", refused)
				}
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2])/1e3, "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100])/1e3, "p99-µs")
		})
	}
}
