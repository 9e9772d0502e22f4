package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/exampleserver"
)

// countedServer is the program counted-server: the example server over stdio, which notes in a
// directory what its tools do. Its arguments are the directory and
//
//	hold=TOOL  a call of TOOL begins, and goes on when counted.release says so
//	own=TOOL   there is one more tool, of this name
func countedServer() {
	dir, held := os.Args[1], []string(nil)
	server := exampleserver.New()
	for _, arg := range os.Args[2:] {
		switch kind, tool, _ := strings.Cut(arg, "="); kind {
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
				awaitFile(filepath.Join(dir, "release "+call.Name))
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
	_ = server.Run(context.Background(), &mcp.StdioTransport{}) // its end is the caller's doing
}

// counted is the directory of a counted-server.
type counted string

// times is how often a tool began, ended or stopped.
func (c counted) times(t *testing.T, did, tool string) int {
	t.Helper()
	notes, err := os.ReadFile(filepath.Join(string(c), "notes"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(notes)) {
		if line == did+" "+tool+"\n" {
			n++
		}
	}
	return n
}

// until waits until a tool has done something so often.
func (c counted) until(t *testing.T, did, tool string, n int) {
	t.Helper()
	for deadline := time.Now().Add(patience); c.times(t, did, tool) < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s %s %d times, want %d", did, tool, c.times(t, did, tool), n)
		}
	}
}

// release lets calls of a tool that is held go on.
func (c counted) release(t *testing.T, tool string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(string(c), "release "+tool), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}
