package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/internal/exampleserver"
	"github.com/coatcheck/coatcheck/protocol"
)

// TestAskAgain: a request that may be repeated outlives a dropped connection, and says so.
func TestAskAgain(t *testing.T) {
	example := exampleserver.New()
	inner := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return example }, nil)
	var drops atomic.Int32
	drops.Store(1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if bytes.Contains(body, []byte(protocol.MethodToolsList)) && drops.Add(-1) >= 0 {
			panic(http.ErrAbortHandler) // drops the connection
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		inner.ServeHTTP(w, req)
	}))
	defer server.Close()

	log, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	std := streams{out: log, err: log}
	r, err := dial(t.Context(), target{url: server.URL}, std, newDisplay(log), peer{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	tools, err := request(t.Context(), r, func(ctx context.Context, s *client.Session) (*mcp.ListToolsResult, error) {
		tools, err := s.SDK().ListTools(ctx, nil)
		if err != nil {
			err = errors.New(err.Error()) // the SDK's own errors look like the server's
		}
		return tools, err
	})
	if err != nil || len(tools.Tools) == 0 {
		t.Fatal(tools, err)
	}
	said, err := os.ReadFile(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	if s := string(said); !strings.HasPrefix(s, "connection lost (") || !strings.HasSuffix(s, "); trying again in 500ms (1 of 5)\n") {
		t.Errorf("stderr says %q", s)
	}
}
