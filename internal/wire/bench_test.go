package wire_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store/memory"
	"github.com/coatcheck/coatcheck/task"
)

type nothing struct{}

func (nothing) Run(context.Context, *engine.Job) (task.Outcome, error) {
	return task.Outcome{Result: json.RawMessage(`{"content":[]}`)}, nil
}

// BenchmarkGet is the tap's own share of tasks/get, without the network.
func BenchmarkGet(b *testing.B) {
	e, err := engine.New(b.Context(), engine.Options{Store: memory.New(), Runner: nothing{}})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = e.Shutdown(context.Background()) }()
	often := &limit.Policy{Limits: limit.Limits{Gets: limit.Rate{PerSecond: 1e9, Burst: 1e9}}}
	r := receiver.New(receiver.Options{Engine: e, Tools: receiver.Tools{Default: protocol.Optional}, Limits: often})
	tap := wire.Handler(http.NotFoundHandler(), r, nil)
	created := post(tap, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","task":{}}}`)
	id, _ := protocol.Unquote(protocol.Get(protocol.Get(protocol.Get(created.Body.Bytes(), "result"), "task"), "taskId"))
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":"tasks/get","params":{"taskId":%q}}`, id)
	req := httptest.NewRequest(http.MethodPost, "/mcp", nil)
	req.Header.Set("Content-Type", "application/json")
	w := &discard{header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		tap.ServeHTTP(w, req)
	}
	if w.n == 0 {
		b.Fatal("nothing was answered")
	}
}

type discard struct {
	header http.Header
	n      int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(p []byte) (int, error) { d.n += len(p); return len(p), nil }
