package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"

	mcpgo "github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The bare server is sent the same requests, of the same size, as the one that knows tasks.
const (
	bareID      = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	bareSession = "ZYXWVUTSRQPONMLKJIHGFEDCBA"
)

// bareAnswer has the size of an answer to tasks/get.
const bareAnswer = `{"jsonrpc":"2.0","id":1,"result":{"taskId":"` + bareID + `","status":"completed","statusMessage":"The operation completed.","createdAt":"2026-01-01T00:00:00.000Z","lastUpdatedAt":"2026-01-01T00:00:00.001Z","ttl":600000,"pollInterval":1000}}`

// serve runs one of the servers Coatcheck is compared with, and prints its address.
func serve(name string) error {
	var handler http.Handler
	switch name {
	case "bare":
		handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, bareAnswer)
		})
	case "mcp-go":
		s := server.NewMCPServer("bench", "1", server.WithTaskCapabilities(true, true, true))
		s.AddTool(mcpgo.NewTool("noop", mcpgo.WithTaskSupport(mcpgo.TaskSupportOptional)),
			func(context.Context, mcpgo.CallToolRequest) (*mcpgo.CallToolResult, error) {
				return mcpgo.NewToolResultText("done"), nil
			})
		handler = server.NewStreamableHTTPServer(s)
	case "sdk", "sdk-json":
		s := mcp.NewServer(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
		mcp.AddTool(s, &mcp.Tool{Name: "noop"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil, nil
		})
		handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s },
			&mcp.StreamableHTTPOptions{JSONResponse: name == "sdk-json"})
	default:
		return fmt.Errorf("unknown server %q", name)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return http.Serve(listener, handler)
}

// process is a server in a process of its own.
type process struct {
	cmd     *exec.Cmd
	address string
}

func start(name string, args ...string) (*process, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s %v did not start: %w", name, args, err), cmd.Process.Kill(), cmd.Wait())
	}
	return &process{cmd: cmd, address: strings.TrimSpace(address)}, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}
