package coatcheck_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/protocol"
)

type greeting struct {
	Name string `json:"name"`
}

func greet(_ context.Context, _ *mcp.CallToolRequest, in greeting) (*mcp.CallToolResult, any, error) {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "Hello, " + in.Name}}}, nil, nil
}

// A server behind HTTP: its handler is wrapped, nothing else changes.
func ExampleRuntime_Handler() {
	ctx := context.Background()
	server := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "greet"}, greet)

	rt, err := coatcheck.Open(ctx, server, &coatcheck.Options{
		Database: "memory:",
		Tools:    map[string]coatcheck.Tool{"greet": {Support: coatcheck.Optional}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close(ctx)
	handler := rt.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))

	// What a client does: call the tool as a task, then collect the result.
	web := httptest.NewServer(handler)
	defer web.Close()
	post := func(body string) []byte {
		req, _ := http.NewRequest(http.MethodPost, web.URL, bytes.NewBufferString(body))
		req.Header.Set("Content-Type", "application/json")
		resp, err := web.Client().Do(req)
		if err != nil {
			log.Fatal(err)
		}
		defer resp.Body.Close()
		answer, _ := io.ReadAll(resp.Body)
		return answer
	}
	created := post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"greet","arguments":{"name":"Ada"},"task":{}}}`)
	task := protocol.Get(protocol.Get(created, "result"), "task")
	fmt.Printf("status %s\n", protocol.Get(task, "status"))
	result := post(fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":"tasks/result","params":{"taskId":%s}}`, protocol.Get(task, "taskId")))
	fmt.Printf("content %s\n", protocol.Get(protocol.Get(result, "result"), "content"))

	// Output:
	// status "working"
	// content [{"type":"text","text":"Hello, Ada"}]
}

// A server on stdio: its transport is wrapped. Here an in-memory one stands in for
// &mcp.StdioTransport{}, so that the example can play the client, too.
func ExampleRuntime_Transport() {
	ctx := context.Background()
	server := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "greet"}, greet)

	rt, err := coatcheck.Open(ctx, server, &coatcheck.Options{
		Database: "memory:",
		Tools:    map[string]coatcheck.Tool{"greet": {Support: coatcheck.Required}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close(ctx)
	client, stdio := mcp.NewInMemoryTransports()
	session, err := server.Connect(ctx, rt.Transport(stdio), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()

	// What a client does.
	conn, err := client.Connect(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	call := func(id float64, method, params string) json.RawMessage {
		to, _ := jsonrpc.MakeID(id)
		if err := conn.Write(ctx, &jsonrpc.Request{ID: to, Method: method, Params: json.RawMessage(params)}); err != nil {
			log.Fatal(err)
		}
		answer, err := conn.Read(ctx)
		if err != nil {
			log.Fatal(err)
		}
		return answer.(*jsonrpc.Response).Result
	}
	hello := call(1, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"example","version":"1"}}`)
	fmt.Printf("declared %s\n", protocol.Get(protocol.Get(hello, "capabilities"), "tasks"))
	created := call(2, "tools/call", `{"name":"greet","arguments":{"name":"Ada"},"task":{"ttl":60000}}`)
	id := protocol.Get(protocol.Get(created, "task"), "taskId")
	result := call(3, "tasks/result", fmt.Sprintf(`{"taskId":%s}`, id))
	fmt.Printf("content %s\n", protocol.Get(result, "content"))

	// Output:
	// declared {"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}
	// content [{"type":"text","text":"Hello, Ada"}]
}

// A tool says more of the task it runs in than the SDK's session can. The same handler also
// runs in a plain call, where there is no task.
func ExampleFromContext() {
	ctx := context.Background()
	server := mcp.NewServer(&mcp.Implementation{Name: "renderer", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "render"}, func(ctx context.Context, _ *mcp.CallToolRequest, in greeting) (*mcp.CallToolResult, any, error) {
		task := coatcheck.FromContext(ctx)
		task.RespondNow("Rendering; it will be done in a minute.")
		if err := task.SetPollInterval(ctx, 5*time.Second); err != nil {
			return nil, nil, err
		}
		task.Progress(1, 2, "half of it")
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "rendered " + in.Name}}}, nil, nil
	})
	rt, err := coatcheck.Open(ctx, server, &coatcheck.Options{
		Database: "memory:",
		Tools:    map[string]coatcheck.Tool{"render": {Support: coatcheck.Optional, Immediate: 10 * time.Second}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close(ctx)
	web := httptest.NewServer(rt.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)))
	defer web.Close()
	resp, err := web.Client().Post(web.URL, "application/json", strings.NewReader(
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"render","arguments":{"name":"a coat"},"task":{}}}`))
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	created, _ := io.ReadAll(resp.Body)
	meta := protocol.Get(protocol.Get(created, "result"), "_meta")
	fmt.Printf("%s\n", protocol.Get(meta, protocol.MetaImmediateResponse))
	// Output:
	// "Rendering; it will be done in a minute."
}
