// Package exampleserver is a small MCP server on the official SDK that knows nothing of
// tasks. Its tools show what a task must cope with: a slow one, one that fails as a tool,
// one that fails as a request, one that panics, one with a big result, those that ask their
// client something, and one that says much. The binary
// serves it as "coatcheck example-server"; tests, the demo and benchmarks use it too.
package exampleserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// New returns a server with the tools greet, slow_compute, failing_job, protocol_error_job,
// panicking_job, big_result, confirm_delete, multi_input, ask_model and chatty.
func New() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "coatcheck-example", Version: "1.0.0"}, nil)
	mcp.AddTool(s, &mcp.Tool{
		Name:        "greet",
		Description: "Greets someone by name.",
	}, greet)
	mcp.AddTool(s, &mcp.Tool{
		Name:        "slow_compute",
		Description: "Computes for a number of seconds and reports progress; stops at once when cancelled.",
	}, slowCompute)
	mcp.AddTool(s, &mcp.Tool{
		Name:        "failing_job",
		Description: "Always fails, with a tool result that says isError.",
	}, failingJob)
	mcp.AddTool(s, &mcp.Tool{
		Name:        "protocol_error_job",
		Description: "Always fails, with a JSON-RPC error that has code, message and data.",
	}, protocolErrorJob)
	mcp.AddTool(s, &mcp.Tool{
		Name:        "panicking_job",
		Description: "Panics. In a process of its own, this ends the process.",
	}, panickingJob)
	mcp.AddTool(s, &mcp.Tool{
		Name:        "big_result",
		Description: "Returns a text of a number of KiB.",
	}, bigResult)
	mcp.AddTool(s, &mcp.Tool{
		Name:        "confirm_delete",
		Description: "Asks the user whether to delete a file, and deletes nothing.",
	}, confirmDelete)
	mcp.AddTool(s, &mcp.Tool{
		Name:        "multi_input",
		Description: "Asks the user two questions at once.",
	}, multiInput)
	mcp.AddTool(s, &mcp.Tool{
		Name:        "ask_model",
		Description: "Asks the client's model, by sampling.",
	}, askModel)
	mcp.AddTool(s, &mcp.Tool{
		Name:        "chatty",
		Description: "Reports progress and logs for each of a number of messages.",
	}, chatty)
	return s
}

type greetIn struct {
	Name string `json:"name" jsonschema:"whom to greet"`
}

func greet(_ context.Context, _ *mcp.CallToolRequest, in greetIn) (*mcp.CallToolResult, any, error) {
	return text("Hello, " + in.Name + "!"), nil, nil
}

func failingJob(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
	return nil, nil, errors.New("the job failed: no paper in tray 2")
}

// ProtocolErrorCode is the code of protocol_error_job's JSON-RPC error.
const ProtocolErrorCode = -32050

func protocolErrorJob(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
	return nil, nil, &jsonrpc.Error{
		Code:    ProtocolErrorCode,
		Message: "quota exceeded",
		Data:    json.RawMessage(`{"limit":10,"used":10,"unit":"jobs per hour"}`),
	}
}

func panickingJob(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
	panic("panicking_job was called")
}

// maxKilobytes keeps one call from exhausting the memory of whoever tries.
const maxKilobytes = 64 << 10

type bigResultIn struct {
	Kilobytes int `json:"kilobytes" jsonschema:"size of the text in KiB, 0 to 65536"`
}

func bigResult(_ context.Context, _ *mcp.CallToolRequest, in bigResultIn) (*mcp.CallToolResult, any, error) {
	if in.Kilobytes < 0 || in.Kilobytes > maxKilobytes {
		return nil, nil, fmt.Errorf("kilobytes must be 0 to %d, not %d", maxKilobytes, in.Kilobytes)
	}
	const line = "All work and no play makes a coatcheck a dull hook in the wall.\n"
	return text(strings.Repeat(line, in.Kilobytes*1024/len(line))), nil, nil
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}
