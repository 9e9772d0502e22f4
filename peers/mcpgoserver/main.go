// Command mcpgoserver is a server on mcp-go whose tools may run as tasks, for the tests of
// package client: on stdio, or with the argument streamableHttp at /mcp on the port in PORT.
package main

import (
	"context"
	"errors"
	"log"
	"os"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	s := newServer()
	if len(os.Args) > 1 && os.Args[1] == "streamableHttp" {
		return server.NewStreamableHTTPServer(s).Start("127.0.0.1:" + os.Getenv("PORT"))
	}
	return server.ServeStdio(s)
}

func newServer() *server.MCPServer {
	s := server.NewMCPServer("mcp-go", "1", server.WithTaskCapabilities(true, true, true), server.WithToolCapabilities(false))
	released := make(chan struct{})
	optional := mcp.WithTaskSupport(mcp.TaskSupportOptional)
	s.AddTool(mcp.NewTool("work", optional), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultText("worked"), nil
	})
	s.AddTool(mcp.NewTool("fail", optional), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultError("no luck"), nil
	})
	s.AddTool(mcp.NewTool("break", optional), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return nil, errors.New("broken")
	})
	s.AddTool(mcp.NewTool("hold", optional), func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		select {
		case <-released:
			return mcp.NewToolResultText("let go"), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	s.AddTool(mcp.NewTool("release"), func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		select {
		case released <- struct{}{}:
			return mcp.NewToolResultText("released"), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	return s
}
