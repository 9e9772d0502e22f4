// Command benchserver is what the benchmarks in bench/ measure of Coatcheck: a server with
// tasks on SQLite, and figures that need its inside. It is no part of the product.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/gateway"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/internal/node"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/internal/upstream"
	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/store/sqlite"
	"github.com/coatcheck/coatcheck/task"
)

func main() {
	db := flag.String("db", "", "the database file")
	n := flag.Int("n", 0, "how many tasks")
	waiters := flag.Int("waiters", 1, "how many wait at a time")
	tickets := flag.String("tickets", "off", "whose plain calls may be answered with a ticket: off or auto")
	required := flag.Bool("required", false, "with tickets, run plain calls as tasks from the start")
	profile := flag.String("profile", os.Getenv("BENCH_PROFILE"), "write a CPU profile of the first ten seconds of serving")
	flag.Parse()
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			log.Fatal(err)
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			log.Fatal(err)
		}
		time.AfterFunc(10*time.Second, pprof.StopCPUProfile)
	}
	var err error
	switch flag.Arg(0) {
	case "native":
		err = serve(*db, noop{}, *tickets, *required)
	case "sdk":
		err = serve(*db, upstream.InProcess(server(), nil, upstream.Never), *tickets, *required)
	case "gateway":
		err = serveGateway(*db, flag.Arg(1), *tickets, *required)
	case "fill":
		err = fill(*db, *n)
	case "heap":
		err = heap(*db, *n)
	case "waiting":
		err = waiting(*db, *n)
	case "wake":
		err = wake(*db, *n, *waiters)
	default:
		err = fmt.Errorf("unknown command %q", flag.Arg(0))
	}
	if err != nil {
		log.Fatal(err)
	}
}

var result = json.RawMessage(`{"content":[{"type":"text","text":"done"}]}`)

// noop is a native runner that does nothing.
type noop struct{}

func (noop) Run(context.Context, *engine.Job) (task.Outcome, error) {
	return task.Outcome{Result: result}, nil
}

func server() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "noop"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil, nil
	})
	return s
}

func open(db string, runner engine.Runner) (*node.Node, error) {
	return openWith(db, runner, "off", false)
}

func openWith(db string, runner engine.Runner, tickets string, required bool) (*node.Node, error) {
	return node.Open(context.Background(), node.Config{
		Database: "sqlite:" + db, Runner: runner, Limits: wide(),
		Tools:   receiver.Tools{Default: protocol.Optional, ByName: tools(required)},
		Tickets: receiver.Tickets{Mode: receiver.TicketMode(tickets)},
	})
}

func tools(required bool) map[string]protocol.TaskSupport {
	if required {
		return map[string]protocol.TaskSupport{"noop": protocol.Required}
	}
	return nil
}

// wide are limits that are counted, as any, but not reached.
func wide() *limit.Policy {
	often := limit.Rate{PerSecond: 1e9, Burst: 1e9}
	return &limit.Policy{
		Limits: limit.Limits{
			Running: 1e9, Tasks: 1e9, Bytes: 1e15, Waits: 1e9,
			Creates: often, Gets: often, Lists: often, Misses: often, Polls: 1e9,
		},
		RunningInAll: 1e9,
	}
}

// serve prints the address it listens on. In front of an SDK server it is its handler that
// everything else goes to.
func serve(db string, runner engine.Runner, tickets string, required bool) error {
	n, err := openWith(db, runner, tickets, required)
	if err != nil {
		return err
	}
	s := server()
	inner := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return http.Serve(listener, wire.Handler(inner, n.Receiver, nil))
}

// serveGateway is a gateway for one user in front of a URL, and prints the address it listens on.
func serveGateway(db, url, tickets string, required bool) error {
	return gateway.Serve(context.Background(), gateway.Config{
		URL: url, Listen: "127.0.0.1:0", Store: "sqlite:" + db, SingleUser: true, Limits: wide(), Processes: 1,
		Support: protocol.Optional, Tools: tools(required), Tickets: receiver.Tickets{Mode: receiver.TicketMode(tickets)},
		DefaultTTL: time.Hour, MaxTTL: 24 * time.Hour, MinRetention: time.Minute, PollInterval: time.Second, SessionIdle: time.Hour,
		Guard: gateway.Guard{Connections: 4096, Sessions: 1 << 20},
		Ready: func(address string) { fmt.Println(address) },
	})
}

// fill stores n finished tasks, seed-0 and on.
func fill(db string, n int) error {
	ctx := context.Background()
	s, err := sqlite.Open(ctx, db, nil)
	if err != nil {
		return err
	}
	ids := make(chan int)
	errs := make(chan error, 64)
	var wg sync.WaitGroup
	for range cap(errs) {
		wg.Go(func() {
			for i := range ids {
				now := task.Instant(time.Now())
				_, err := s.Create(ctx, &task.Task{
					Ref: task.Ref{ID: fmt.Sprintf("seed-%d", i)}, Revision: 2, Status: task.Completed, StatusMessage: "The operation completed.",
					CreatedAt: now, UpdatedAt: now, TTL: 24 * time.Hour, PollInterval: time.Second,
					Request: task.Request{Method: protocol.MethodToolsCall, Params: json.RawMessage(`{"name":"noop","arguments":{}}`)},
					Outcome: &task.Outcome{Result: result},
				}, store.Quota{})
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	for i := range n {
		select {
		case ids <- i:
		case err := <-errs:
			return err
		}
	}
	close(ids)
	wg.Wait()
	return s.Close()
}

func create(e *engine.Engine, params string) (*task.Task, error) {
	return e.Create(context.Background(), engine.Creation{
		Caller:  &engine.Caller{},
		Request: task.Request{Method: protocol.MethodToolsCall, Params: json.RawMessage(params)},
	})
}

// heap prints the bytes of heap that each of n finished tasks costs.
func heap(db string, n int) error {
	opened, err := open(db, noop{})
	if err != nil {
		return err
	}
	run := func(n int) error {
		for range n {
			t, err := create(opened.Engine, `{"name":"noop","arguments":{}}`)
			if err != nil {
				return err
			}
			if _, err := opened.Engine.Await(context.Background(), t.Ref); err != nil {
				return err
			}
		}
		return nil
	}
	if err := run(1000); err != nil { // what is allocated once
		return err
	}
	before := heapNow()
	if err := run(n); err != nil {
		return err
	}
	fmt.Println((heapNow() - before) / int64(n))
	return opened.Close(context.Background())
}

func heapNow() int64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// gated runs each task until its gate is opened, and notes when that was.
type gated struct {
	mu    sync.Mutex
	gates map[string]*gate
}

type gate struct {
	open chan struct{}
	at   time.Time
}

func (g *gated) of(id string) *gate {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gates[id] == nil {
		g.gates[id] = &gate{open: make(chan struct{})}
	}
	return g.gates[id]
}

func (g *gated) Run(ctx context.Context, job *engine.Job) (task.Outcome, error) {
	gate := g.of(job.Ref.ID)
	select {
	case <-gate.open:
	case <-ctx.Done():
	}
	gate.at = time.Now()
	return task.Outcome{Result: result}, nil
}

// wake prints, in nanoseconds, how long after the end of the work each blocked tasks/result
// was answered.
func wake(db string, n, waiters int) error {
	g := &gated{gates: map[string]*gate{}}
	opened, err := open(db, g)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(listener, wire.Handler(http.NotFoundHandler(), opened.Receiver, nil)) }()
	web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: waiters}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed error
	for range waiters {
		wg.Go(func() {
			for range n / waiters {
				d, err := g.once(opened, web, listener.Addr().String())
				mu.Lock()
				if err != nil {
					failed = err
				}
				fmt.Println(d.Nanoseconds())
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed
}
