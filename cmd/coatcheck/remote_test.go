package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

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
	page, err := r.ask(t.Context(), patience, protocol.MethodToolsList, json.RawMessage(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(page, []byte("slow_compute")) {
		t.Errorf("page %s", page)
	}
	said, err := os.ReadFile(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	if s := string(said); !strings.HasPrefix(s, "connection lost (") || !strings.HasSuffix(s, "); trying again in 500ms (1 of 5)\n") {
		t.Errorf("stderr says %q", s)
	}
}

// GET-2: the server's interval is kept to, within reason.
func TestPollInterval(t *testing.T) {
	ms := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		suggested *int64
		want      time.Duration
	}{
		{nil, time.Second}, {ms(0), time.Second}, {ms(-5), time.Second}, {ms(1), 20 * time.Millisecond},
		{ms(5000), 5 * time.Second}, {ms(1 << 61), time.Minute},
	} {
		if got := pollInterval(protocol.Task{PollInterval: c.suggested}); got != c.want {
			t.Errorf("%v: %v, want %v", c.suggested, got, c.want)
		}
	}
}
