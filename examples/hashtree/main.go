// Command hashtree is a small MCP server with one slow tool: it hashes every file below a
// directory. Coatcheck makes that call a durable task, with two additions to an ordinary
// server: opening a Runtime, and wrapping the transport.
//
//	go run ./examples/hashtree                  # over stdio
//	go run ./examples/hashtree -http :8080      # over Streamable HTTP, at /mcp
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck"
)

func main() {
	addr := flag.String("http", "", "serve over HTTP at this address instead of stdio")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *addr); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr string) error {
	server := mcp.NewServer(&mcp.Implementation{Name: "hashtree", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "hash_tree", Description: "Hash every file below a directory"}, hashTree)

	rt, err := coatcheck.Open(ctx, server, &coatcheck.Options{
		Database: "sqlite:hashtree.db",
		Tools:    map[string]coatcheck.Tool{"hash_tree": {Support: coatcheck.Optional}},
	})
	if err != nil {
		return err
	}
	defer rt.Close(context.WithoutCancel(ctx))

	if addr == "" {
		return server.Run(ctx, rt.Transport(&mcp.StdioTransport{}))
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", rt.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)))
	web := &http.Server{Addr: addr, Handler: mux}
	context.AfterFunc(ctx, func() { _ = web.Close() })
	if err := web.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

type args struct {
	Directory string `json:"directory" jsonschema:"the directory to hash"`
}

type result struct {
	Files  int    `json:"files"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256" jsonschema:"of all names and contents, in order"`
}

func hashTree(ctx context.Context, req *mcp.CallToolRequest, in args) (*mcp.CallToolResult, result, error) {
	var out result
	sum := sha256.New()
	err := filepath.WalkDir(in.Directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err() // cancelled: stop the work
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		fmt.Fprintf(sum, "%s\x00", path)
		n, err := io.Copy(sum, f)
		out.Files, out.Bytes = out.Files+1, out.Bytes+n
		if token := req.Params.GetProgressToken(); token != nil {
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				ProgressToken: token, Progress: float64(out.Files), Message: path,
			})
		}
		return err
	})
	out.SHA256 = fmt.Sprintf("%x", sum.Sum(nil))
	return nil, out, err
}
