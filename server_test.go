package coatcheck_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck"
)

// toolSupport is what the server under test says of its tools.
var toolSupport = map[string]coatcheck.Tool{
	"echo":    {Support: coatcheck.Optional},
	"gate":    {Support: coatcheck.Optional},
	"isError": {Support: coatcheck.Optional},
	"error":   {Support: coatcheck.Optional},
	"panic":   {Support: coatcheck.Optional},
	"big":     {Support: coatcheck.Optional},
	"asking":  {Support: coatcheck.Optional},
	"speaks":  {Support: coatcheck.Optional, Immediate: time.Minute},
	"must":    {Support: coatcheck.Required},
	"hold":    {Support: coatcheck.Required},
	"never":   {Support: coatcheck.Forbidden},
}

// fidelity is structured content whose bytes must survive: key order, number formatting,
// non-ASCII, escapes and an empty object. (The SDK itself escapes <, > and & in it.)
const fidelity = `{"z":1.0,"a":1e2,"ü":"Grüße 世界 \u00e9 /script","n":[12345678901234567890,-0.10],"o":{}}`

// errorData is the data of the JSON-RPC error that the tool "error" returns.
const errorData = `{"retry":1.50,"why":"ü","list":[{}]}`

// newServer returns the SDK server under test. gate blocks until the tool open is called
// with the same key, or until it is cancelled. The tools started and stopped wait until a
// gate has begun, and until it was cancelled.
func newServer() *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "under-test", Version: "1"}, nil)
	var mu sync.Mutex
	gates, started, stopped := map[string]chan struct{}{}, map[string]chan struct{}{}, map[string]chan struct{}{}
	runs := map[string]int{}
	channel := func(m map[string]chan struct{}, key string) chan struct{} {
		mu.Lock()
		defer mu.Unlock()
		if m[key] == nil {
			m[key] = make(chan struct{})
		}
		return m[key]
	}
	type handler = func(ctx context.Context, req *mcp.CallToolRequest, key string) (*mcp.CallToolResult, error)
	add := func(name string, h handler) {
		server.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				var args struct{ Key string }
				if len(req.Params.Arguments) > 0 {
					if err := json.Unmarshal(req.Params.Arguments, &args); err != nil {
						return nil, err
					}
				}
				mu.Lock()
				runs[name+args.Key]++
				mu.Unlock()
				return h(ctx, req, args.Key)
			})
	}
	text := func(format string, args ...any) *mcp.CallToolResult {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
	}
	echo := func(_ context.Context, req *mcp.CallToolRequest, key string) (*mcp.CallToolResult, error) {
		res := text("echo %s", key)
		res.StructuredContent = json.RawMessage(fidelity)
		res.Meta = mcp.Meta{"kept": true}
		return res, nil
	}
	for _, name := range []string{"echo", "must", "never", "unlisted"} {
		add(name, echo)
	}
	gate := func(ctx context.Context, _ *mcp.CallToolRequest, key string) (*mcp.CallToolResult, error) {
		close(channel(started, key))
		select {
		case <-channel(gates, key):
			return text("opened %s", key), nil
		case <-ctx.Done():
			close(channel(stopped, key))
			return text("stopped %s", key), nil
		}
	}
	add("gate", gate)
	add("hold", gate)
	// deaf is a gate that a cancellation does not open.
	add("deaf", func(ctx context.Context, _ *mcp.CallToolRequest, key string) (*mcp.CallToolResult, error) {
		close(channel(started, key))
		select {
		case <-channel(gates, key):
		case <-ctx.Done():
			close(channel(stopped, key))
			<-channel(gates, key)
		}
		return text("opened %s", key), nil
	})
	// look is a gate that may be called again.
	server.AddTool(&mcp.Tool{Name: "look", InputSchema: json.RawMessage(`{"type":"object"}`), Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}},
		func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			mu.Lock()
			runs["look"]++
			n := runs["look"]
			mu.Unlock()
			select {
			case <-channel(gates, "look"):
			case <-ctx.Done():
			}
			return text("look %d", n), nil
		})
	add("open", func(_ context.Context, _ *mcp.CallToolRequest, key string) (*mcp.CallToolResult, error) {
		close(channel(gates, key))
		return text("ok"), nil
	})
	for name, reached := range map[string]map[string]chan struct{}{"started": started, "stopped": stopped} {
		add(name, func(ctx context.Context, _ *mcp.CallToolRequest, key string) (*mcp.CallToolResult, error) {
			select {
			case <-channel(reached, key):
				return text("yes"), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
	}
	add("runs", func(_ context.Context, _ *mcp.CallToolRequest, key string) (*mcp.CallToolResult, error) {
		mu.Lock()
		defer mu.Unlock()
		return text("%d", runs[key]), nil
	})
	add("isError", func(context.Context, *mcp.CallToolRequest, string) (*mcp.CallToolResult, error) {
		res := text("API rate limit exceeded")
		res.IsError = true
		return res, nil
	})
	add("error", func(context.Context, *mcp.CallToolRequest, string) (*mcp.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: -32050, Message: "quota <exceeded> für heute", Data: json.RawMessage(errorData)}
	})
	add("panic", func(context.Context, *mcp.CallToolRequest, string) (*mcp.CallToolResult, error) {
		panic("secret inner detail")
	})
	add("big", func(context.Context, *mcp.CallToolRequest, string) (*mcp.CallToolResult, error) {
		b := make([]byte, 5<<20)
		for i := range b {
			b[i] = 'a' + byte(i%26)
		}
		return text("%s", b), nil
	})
	addAsking(server)
	return server
}
