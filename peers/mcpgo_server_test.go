package peers

import (
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/client"
)

// mcpGoRole, in the environment, makes this test binary mcpGoServer on stdio.
const mcpGoRole = "COATCHECK_TEST_MCPGO"

// mcpGoServer is a server of mcp-go's with tasks. Its tool wait returns once open was called:
// over HTTP the context of a task of mcp-go's ends with the request that creates it.
func mcpGoServer() *server.MCPServer {
	s := server.NewMCPServer("mcp-go", "1", server.WithTaskCapabilities(true, true, true), server.WithToolCapabilities(true))
	opened := make(chan struct{})
	add := func(name string, support mcp.TaskSupport, text string, do func() error) {
		s.AddTool(mcp.NewTool(name, mcp.WithTaskSupport(support)), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if err := do(); err != nil {
				return nil, err
			}
			result := mcp.NewToolResultText(text)
			result.IsError = name == "isError"
			return result, nil
		})
	}
	nothing := func() error { return nil }
	add("greet", mcp.TaskSupportOptional, "hello ü", nothing)
	add("plain", mcp.TaskSupportForbidden, "plainly", nothing)
	add("isError", mcp.TaskSupportOptional, "out of luck", nothing)
	add("error", mcp.TaskSupportOptional, "", func() error { return errors.New("out of order") })
	add("wait", mcp.TaskSupportOptional, "waited", func() error { <-opened; return nil })
	add("open", mcp.TaskSupportForbidden, "ok", func() error { close(opened); return nil })
	return s
}

// mcpGoWays are the ways to reach a server of mcp-go's.
var mcpGoWays = map[string]func(*testing.T) target{
	"stdio": func(*testing.T) target { return target{Command: os.Args[0]} },
	"http": func(t *testing.T) target {
		web := httptest.NewServer(server.NewStreamableHTTPServer(mcpGoServer()))
		t.Cleanup(func() {
			web.CloseClientConnections()
			web.Close()
		})
		return target{URL: web.URL}
	},
}

// Our client runs tasks on a server of mcp-go's.
func TestOurClientOnMCPGo(t *testing.T) {
	t.Parallel()
	for name, way := range mcpGoWays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := connectOurs(t, way(t), &answers{}, false)
			if plain := ourCall(t, s, "plain", nil, client.Auto); ourText(t, plain) != "plainly" || plain.ID() != "" { // TOOL-2
				t.Errorf("plain ran as task %q", plain.ID())
			}
			for _, mode := range []client.Mode{client.Auto, client.Always} { // TOOL-3
				if task := ourCall(t, s, "greet", nil, mode); ourText(t, task) != "hello ü" || task.ID() == "" {
					t.Errorf("greet ran as task %q", task.ID())
				}
			}
			result, err := ourCall(t, s, "isError", nil, client.Always).Wait(t.Context())
			if err != nil || !result.IsError {
				t.Errorf("isError: %+v, %v", result, err)
			}
			_, err = ourCall(t, s, "error", nil, client.Always).Wait(t.Context()) // RES-1
			if wire, ok := errors.AsType[*jsonrpc.Error](err); !ok || wire.Code != -32603 || !strings.Contains(wire.Message, "out of order") {
				t.Errorf("error: %v", err)
			}
			waiting := ourCall(t, s, "wait", nil, client.Always)
			state, err := s.Get(t.Context(), waiting.ID()) // GET-3
			if err != nil || state.Status != client.Working {
				t.Errorf("tasks/get: %+v, %v", state, err)
			}
			listed := false
			for state, err := range s.List(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				listed = listed || state.ID == waiting.ID()
			}
			if !listed {
				t.Error("the task is not listed")
			}
			cut := ourCall(t, s, "wait", nil, client.Always)
			checkCancel(t, s, cut)
			ourText(t, ourCall(t, s, "open", nil, client.Auto))
			if text := ourText(t, waiting); text != "waited" {
				t.Errorf("wait: %q", text)
			}
		})
	}
}
