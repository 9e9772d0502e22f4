package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/exampleserver"
)

// countedServer is the program counted-server: the example server, which notes in a directory what
// its tools do. Its arguments are the directory and
//
//	http       it serves over HTTP, not over stdio
//	hold=TOOL  a call of TOOL begins, and goes on when counted.release says so
//	own=TOOL   there is one more tool, of this name
func countedServer() {
	dir, held, overHTTP := os.Args[1], []string(nil), false
	server := exampleserver.New()
	for _, arg := range os.Args[2:] {
		switch kind, tool, _ := strings.Cut(arg, "="); kind {
		case "http":
			overHTTP = true
		case "hold":
			held = append(held, tool)
		case "own":
			mcp.AddTool(server, &mcp.Tool{Name: tool}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "Who asked me?"}}}, nil, nil
			})
		}
	}
	note := func(did, tool string) {
		f, err := os.OpenFile(filepath.Join(dir, "notes"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			panic(err)
		}
		defer f.Close()
		fmt.Fprintln(f, did, tool)
	}
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			call, ok := req.GetParams().(*mcp.CallToolParamsRaw)
			if !ok {
				return next(ctx, method, req)
			}
			note("began", call.Name)
			if slices.Contains(held, call.Name) {
				hold(ctx, filepath.Join(dir, "release "+call.Name))
			}
			result, err := next(ctx, method, req)
			if ctx.Err() != nil {
				note("stopped", call.Name)
			} else {
				note("ended", call.Name)
			}
			return result, err
		}
	})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if !overHTTP {
		_ = server.Run(ctx, &mcp.StdioTransport{}) // its end is the caller's doing
	} else if err := serveHTTP(ctx, server, "127.0.0.1:0", streams{err: os.Stderr}); err != nil {
		panic(err)
	}
}

// hold waits until another process has made a file, or ctx ends.
func hold(ctx context.Context, name string) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(name); err == nil {
			return
		}
	}
}

// counted is the directory of a counted-server.
type counted string

// times is how often a tool began, ended or stopped.
func (c counted) times(did, tool string) int {
	notes, err := os.ReadFile(filepath.Join(string(c), "notes"))
	if err != nil && !os.IsNotExist(err) {
		panic(err)
	}
	n := 0
	for line := range strings.Lines(string(notes)) {
		if line == did+" "+tool+"\n" {
			n++
		}
	}
	return n
}

// until waits until a tool has done something so often, and reports whether it has.
func (c counted) until(did, tool string, n int) bool {
	for deadline := time.Now().Add(patience); c.times(did, tool) < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// release lets calls of a tool that is held go on.
func (c counted) release(t *testing.T, tool string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(string(c), "release "+tool), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}
