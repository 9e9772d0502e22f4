// Command mcpgoserver is a server on mcp-go whose tools may run as tasks, for the tests of
// package client: on stdio, or with the argument streamableHttp at /mcp on the port in PORT.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

func main() {
	s := newServer()
	serve := func() error { return server.ServeStdio(s) }
	if len(os.Args) > 1 && os.Args[1] == "streamableHttp" {
		serve = func() error { return server.NewStreamableHTTPServer(s).Start("127.0.0.1:" + os.Getenv("PORT")) }
	}
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
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
	// The context is that of the request which made the task: done as soon as that is answered.
	s.AddTool(mcp.NewTool("hold", optional), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		<-released
		return mcp.NewToolResultText("let go"), nil
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
