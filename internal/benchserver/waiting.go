package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/upstream"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

const (
	initialize = `{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{"listChanged":true}},"clientInfo":{"name":"bench","version":"1.0.0"}}`
	schema     = `{"type":"object","properties":{"confirm":{"type":"boolean","title":"Delete it"},"reason":{"type":"string","maxLength":200},"when":{"type":"string","enum":["now","tonight","never"],"default":"tonight"}},"required":["confirm"]}`
)

// asks is a server whose tool asks its client, and waits for the answer.
func asks() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "ask"}, func(ctx context.Context, req *mcp.CallToolRequest, in struct {
		File string `json:"file"`
	},
	) (*mcp.CallToolResult, any, error) {
		_, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "Delete " + in.File + "?", RequestedSchema: json.RawMessage(schema)})
		return &mcp.CallToolResult{}, nil, err
	})
	return s
}

// waiting prints the bytes of memory that each of n tasks costs that wait for input, with its
// handler: heap and stacks.
func waiting(db string, n int) error {
	opened, err := open(db, upstream.InProcess(asks(), nil, upstream.Never))
	if err != nil {
		return err
	}
	ask := func(n int) error {
		gate := make(chan struct{}, 64) // as many create at a time
		var all sync.WaitGroup
		var once sync.Once
		var failed error
		for i := range n {
			gate <- struct{}{}
			all.Go(func() {
				defer func() { <-gate }()
				t, err := opened.Engine.Create(context.Background(), engine.Creation{
					Caller: &engine.Caller{
						Principal: "p", Session: "s", Initialize: json.RawMessage(initialize),
						Header: http.Header{
							"Accept": {"application/json, text/event-stream"}, "Content-Type": {"application/json"}, "Content-Length": {"150"},
							"Authorization": {"Bearer abcdefghijklmnopqrstuvwxyz0123456789"}, "User-Agent": {"bench/1.0"},
							"Mcp-Session-Id": {"ABCDEFGHIJKLMNOPQRSTUVWXYZ"}, "Mcp-Protocol-Version": {"2025-11-25"},
						},
					},
					Request: task.Request{Method: protocol.MethodToolsCall, Params: fmt.Appendf(nil, `{"name":"ask","arguments":{"file":"report-%d.txt"}}`, i)},
				})
				for err == nil {
					var at *task.Task
					if at, err = opened.Engine.Get(context.Background(), t.Ref); err != nil || at.Status == task.InputRequired {
						break
					}
					if at.Status.Terminal() {
						err = fmt.Errorf("the task is %s: %s", at.Status, at.StatusMessage)
					}
					runtime.Gosched()
				}
				if err != nil {
					once.Do(func() { failed = err })
				}
			})
		}
		all.Wait()
		return failed
	}
	if err := ask(100); err != nil { // what is allocated once
		return err
	}
	before, goroutines := memoryNow(), runtime.NumGoroutine()
	if err := ask(n); err != nil {
		return err
	}
	after := memoryNow()
	fmt.Println((after.heap - before.heap + after.stacks - before.stacks) / int64(n))
	if os.Getenv("BENCH_HEAP") != "" { // the parts, and what holds the heap
		fmt.Fprintf(os.Stderr, "heap %d, stacks %d, goroutines %.1f a task\n",
			(after.heap-before.heap)/int64(n), (after.stacks-before.stacks)/int64(n), float64(runtime.NumGoroutine()-goroutines)/float64(n))
		f, err := os.Create(os.Getenv("BENCH_HEAP"))
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.Lookup("heap").WriteTo(f, 0); err != nil {
			return err
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	return opened.Close(ended)
}

type memory struct{ heap, stacks int64 }

// memoryNow returns what is in use after some collections, each of which halves stacks that
// are larger than need be.
func memoryNow() memory {
	for range 5 {
		runtime.GC()
	}
	heap := heapNow()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memory{heap, int64(m.StackInuse)}
}
