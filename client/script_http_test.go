package client_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// dropping is a server over HTTP whose tasks/result ends without an answer, in its own way,
// as long as it is to.
type dropping struct {
	t    *testing.T
	drop func(w http.ResponseWriter)

	mu     sync.Mutex
	status string
	good   bool // tasks/result is answered
	asked  map[string]int
}

func (d *dropping) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	m, err := protocol.ParseMessage(body)
	if err != nil {
		d.t.Errorf("%v: %s", err, body)
		return
	}
	if !m.IsCall() {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	d.mu.Lock()
	d.asked[m.Method]++
	status, good := d.status, d.good
	d.mu.Unlock()
	var result string
	switch m.Method {
	case "initialize":
		w.Header().Set("Mcp-Session-Id", "1")
		result = capabilities
	case "tools/list":
		result = `{"tools":[{"name":"x","inputSchema":{"type":"object"},"execution":{"taskSupport":"optional"}}]}`
	case "tools/call":
		result = `{"task":` + taskJSON("a", "working") + `}`
	case "tasks/get":
		result = taskJSON("a", status)
	case "tasks/result":
		if !good {
			d.drop(w)
			return
		}
		result = `{"content":[{"type":"text","text":"done"}]}`
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

func (d *dropping) count(method string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked[method]
}

func (d *dropping) become(status string, good bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status, d.good = status, good
}

// GET-3: a tasks/result that ends without an answer is opened again, not at once and not
// always; when the task has ended it is missed for a while only.
func TestDroppedResults(t *testing.T) {
	stream := func(events string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, events)
		}
	}
	for name, c := range map[string]struct {
		drop func(w http.ResponseWriter)
		ends bool // the SDK's transport takes that for the end of the session
	}{
		"an empty stream":  {stream(""), false},
		"a comment":        {stream(": nothing\n\n"), false},
		"another's answer": {stream(`data: {"jsonrpc":"2.0","id":"other","result":{}}` + "\n\n"), false},
		"a stream that breaks": {func(w http.ResponseWriter) {
			stream(": nothing\n\n")(w)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, false},
		"a connection that breaks": {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, false},
		"an error of the server's": {func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }, false},
		"half an event":            {stream(`data: {"jsonrpc":"2.0","id":`), true},
		"a stream to resume":       {stream("id: 1\ndata: \n\n"), true}, // which cannot be
	} {
		t.Run(name, func(t *testing.T) {
			d := &dropping{t: t, drop: c.drop, status: "working", asked: map[string]int{}}
			web := httptest.NewServer(d)
			defer web.Close()
			s, err := client.Connect(t.Context(), newClient(), &mcp.StreamableClientTransport{Endpoint: web.URL}, &client.Options{
				MinPoll: 5 * time.Millisecond, Poll: 20 * time.Millisecond, MaxPoll: 100 * time.Millisecond,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			until := func(method string, n int) {
				t.Helper()
				deadline := time.Now().Add(time.Minute)
				for range time.Tick(time.Millisecond) {
					if d.count(method) >= n {
						return
					}
					if time.Now().After(deadline) {
						t.Fatalf("%d %s", d.count(method), method)
					}
				}
			}
			task := callX(t, s)
			if c.ends {
				if _, err := task.Wait(t.Context()); !errors.Is(err, client.ErrClosed) {
					t.Errorf("got %v", err)
				}
				if n := d.count("tasks/result"); n != 1 {
					t.Errorf("%d tasks/result", n)
				}
				return
			}
			// It comes back.
			until("tasks/result", 3)
			until("tasks/get", 3)
			if n, polls := d.count("tasks/result"), d.count("tasks/get"); n > polls+2 {
				t.Errorf("%d tasks/result in %d polls", n, polls)
			}
			d.become("completed", true)
			result, err := task.Wait(t.Context())
			if err != nil || !strings.Contains(result.Content[0].(*mcp.TextContent).Text, "done") {
				t.Errorf("got %+v, %v", result, err)
			}
			// It does not.
			d.become("completed", false)
			before := d.count("tasks/result")
			if _, err := callX(t, s).Wait(t.Context()); !errors.Is(err, client.ErrProtocol) {
				t.Errorf("got %v", err)
			}
			if n := d.count("tasks/result") - before; n > 6 {
				t.Errorf("%d tasks/result", n)
			}
		})
	}
}
