package wire_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store/memory"
	"github.com/coatcheck/coatcheck/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// runner runs every task by waiting for release, or its end.
type runner struct{ release chan struct{} }

func (r runner) Run(ctx context.Context, _ *engine.Job) (task.Outcome, error) {
	select {
	case <-r.release:
		return task.Outcome{Result: json.RawMessage(`{"content":[]}`)}, nil
	case <-ctx.Done():
		return task.Outcome{}, ctx.Err()
	}
}

func newReceiver(t *testing.T) (*receiver.Receiver, runner) {
	t.Helper()
	r := runner{make(chan struct{})}
	e, err := engine.New(context.Background(), engine.Options{Store: memory.New(), Runner: r})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		if err := e.Shutdown(over); err != nil {
			t.Error(err)
		}
	})
	return receiver.New(receiver.Options{Engine: e, Tools: receiver.Tools{Default: protocol.Optional}}), r
}

func post(h http.Handler, body string, header ...string) *httptest.ResponseRecorder {
	return send(h, http.MethodPost, body, header...)
}

func get(h http.Handler, header ...string) *httptest.ResponseRecorder {
	return send(h, http.MethodGet, "", header...)
}

func send(h http.Handler, method, body string, header ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, "/mcp", strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

// passing are messages that are not about tasks, as odd as they come.
var passing = []string{
	`{"jsonrpc":"2.0","id":1,"method":"ping"}`,
	`{"jsonrpc":"2.0","id":"p","method":"ping","params":{"_meta":{"x":1}}}`,
	`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
	`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99,"reason":"ü"}}`,
	`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1e2}}`,
	`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`,
	`{"jsonrpc":"2.0","id":2,"method":"prompts/list","params":{"task":{"ttl":1}}}`,
	`{"jsonrpc":"2.0","id":3,"method":"prompts/get","params":{"name":"x"}}`,
	`{"jsonrpc":"2.0","id":4,"method":"resources/list"}`,
	`{"jsonrpc":"2.0","id":5,"method":"resources/templates/list"}`,
	`{"jsonrpc":"2.0","id":6,"method":"resources/read","params":{"uri":"file:///x"}}`,
	`{"jsonrpc":"2.0","id":7,"method":"resources/subscribe","params":{"uri":"x"}}`,
	`{"jsonrpc":"2.0","id":8,"method":"resources/unsubscribe","params":{"uri":"x"}}`,
	`{"jsonrpc":"2.0","id":9,"method":"logging/setLevel","params":{"level":"debug"}}`,
	`{"jsonrpc":"2.0","id":10,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"x"},"argument":{"name":"a","value":"b"}}}`,
	`{"jsonrpc":"2.0","id":11,"method":"tools/call","params":{"name":"x","arguments":{"n":1.0,"m":12345678901234567890}}}`,
	`{"jsonrpc":"2.0","id":12,"method":"server/discover"}`,
	`{"jsonrpc":"2.0","id":13,"method":"subscriptions/listen","params":{}}`,
	`{"jsonrpc":"2.0","id":14,"method":"vendor/unknown","params":[1,2],"extra":{"a":[]}}`,
	`{"jsonrpc":"2.0","method":"notifications/vendor","params":{}}`,
	`{"jsonrpc":"2.0","id":15,"result":{"action":"accept","content":{"a":1}},"new":true}`,
	`{"jsonrpc":"2.0","id":16,"error":{"code":-1,"message":"no","data":{"x":1},"more":2}}`,
	`{"jsonrpc":"2.0","id":17,"method":"tasks/unknown","params":{"taskId":"x"}}`,
	`{"jsonrpc":"2.0","method":"tasks/get","params":{"taskId":"x"}}`,
	`{"jsonrpc":"2.0","id":null,"method":"tasks/get","params":{"taskId":"x"}}`,
	`{"jsonrpc":"2.0","id":[1],"method":"tasks/get","params":{"taskId":"x"}}`,
	`{"jsonrpc":"2.0","id":18,"Method":"tasks/get","params":{"taskId":"x"}}`,
	"{ \"jsonrpc\" : \"2.0\" ,\r\n\t\"id\":19, \"method\":\"\\u0070ing\" }\n\n",
	`[{"jsonrpc":"2.0","id":20,"method":"tasks/get","params":{"taskId":"x"}}]`,
	`[]`, `{}`, `null`, `7`, `"x"`, ``, ` `, `{"jsonrpc":"2.0","id":1,"method":"ping"`, `{"jsonrpc":"1.0","id":1,"method":"tasks/get"}`, "\xff\xfe",
	`{"jsonrpc":"2.0","id":1,"method":7}`, `{"jsonrpc":"2.0","id":1,"method":"tasks/get"} trailing`,
}

// What is not about tasks reaches the inner handler, and its answer the client, byte for byte.
func TestHTTPPassesTheRest(t *testing.T) {
	r, _ := newReceiver(t)
	var seen []byte
	answer := "HTTP says\r\n\x00 anything"
	inner := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		seen, _ = io.ReadAll(req.Body)
		if req.ContentLength != int64(len(seen)) {
			t.Errorf("Content-Length %d for %d bytes", req.ContentLength, len(seen))
		}
		w.Header().Set("X-Inner", "kept")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, answer)
	})
	tap := wire.Handler(inner, r, nil)
	for _, message := range passing {
		seen = nil
		w := post(tap, message)
		if string(seen) != message {
			t.Errorf("sent     %q\nreceived %q", message, seen)
		}
		if w.Code != http.StatusTeapot || w.Body.String() != answer || w.Header().Get("X-Inner") != "kept" {
			t.Errorf("%q was answered %d %q", message, w.Code, w.Body)
		}
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete, http.MethodPut, http.MethodOptions, http.MethodHead} {
		w := httptest.NewRecorder()
		tap.ServeHTTP(w, httptest.NewRequest(method, "/mcp", nil))
		if w.Code != http.StatusTeapot {
			t.Errorf("%s was answered %d", method, w.Code)
		}
	}
	// Task messages of another media type or protocol version are not ours.
	get := `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"x"}}`
	for _, header := range [][]string{{"Content-Type", "text/plain"}, {"Mcp-Protocol-Version", "2025-06-18"}, {"Mcp-Protocol-Version", "2026-07-28"}} {
		if w := post(tap, get, header...); w.Code != http.StatusTeapot {
			t.Errorf("%v: %d", header, w.Code)
		}
	}
	if w := post(tap, get); w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" { // GET-4
		t.Errorf("tasks/get was answered %d %v", w.Code, w.Header())
	}
}

// In front of the SDK's handler, with and without the tap, every message gets the same answer.
func TestSDKAnswersTheSame(t *testing.T) {
	for _, opts := range []*mcp.StreamableHTTPOptions{nil, {JSONResponse: true}} {
		r, _ := newReceiver(t)
		bare, tapped := newSDK(t, opts), newSDK(t, opts)
		tap := wire.Handler(tapped, r, nil)
		for _, message := range passing {
			if strings.Contains(message, "subscriptions/listen") {
				continue // stays open
			}
			want, got := post(bare, message, "Mcp-Session-Id", initialize(t, bare)), post(tap, message, "Mcp-Session-Id", initialize(t, tap))
			if want.Code != got.Code || want.Body.String() != got.Body.String() || want.Header().Get("Content-Type") != got.Header().Get("Content-Type") {
				t.Errorf("%q:\nwith the tap %d %v %q\nwithout      %d %v %q", message, got.Code, got.Header(), got.Body, want.Code, want.Header(), want.Body)
			}
		}
	}
}

func newSDK(t *testing.T, opts *mcp.StreamableHTTPOptions) http.Handler {
	server := mcp.NewServer(&mcp.Implementation{Name: "sdk", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "x"}, func(context.Context, *mcp.CallToolRequest, map[string]any) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{}, nil, nil
	})
	t.Cleanup(func() {
		for s := range server.Sessions() {
			_ = s.Close()
		}
	})
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, opts)
}

func initialize(t *testing.T, h http.Handler) (session string) {
	t.Helper()
	w := post(h, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	session = w.Header().Get("Mcp-Session-Id")
	if w.Code != http.StatusOK || session == "" {
		t.Fatalf("initialize: %d %s", w.Code, w.Body)
	}
	if w := post(h, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Mcp-Session-Id", session); w.Code != http.StatusAccepted {
		t.Fatalf("initialized: %d %s", w.Code, w.Body)
	}
	return session
}

func TestBounds(t *testing.T) {
	r, _ := newReceiver(t)
	reached := false
	inner := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true })
	tap := wire.Handler(inner, r, &wire.HTTPOptions{MaxBody: 1000})
	for _, chunked := range []bool{false, true} {
		req := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(strings.Repeat(" ", 1001)))
		if chunked {
			req.ContentLength = -1
		}
		req.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		tap.ServeHTTP(w, req)
		if w.Code != http.StatusRequestEntityTooLarge || !strings.Contains(w.Body.String(), `"error"`) {
			t.Errorf("chunked %v: %d %s", chunked, w.Code, w.Body)
		}
	}
	tap = wire.Handler(inner, r, nil)
	deep := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"ping","params":%s%s}`, strings.Repeat("[", 100_000), strings.Repeat("]", 100_000))
	if w := post(tap, deep); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "-32700") {
		t.Errorf("deep nesting: %d %s", w.Code, w.Body)
	}
	if reached {
		t.Error("what is out of bounds reached the inner handler")
	}
}

// A request under a foreign host name to a loopback address is refused, as the SDK does.
func TestDNSRebinding(t *testing.T) {
	r, _ := newReceiver(t)
	web := httptest.NewServer(wire.Handler(newSDK(t, nil), r, nil))
	defer web.Close()
	naive := httptest.NewServer(wire.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("a request under a foreign name reached the inner handler")
	}), r, nil))
	defer naive.Close()
	for _, body := range []string{`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, ``} {
		req, _ := http.NewRequest(http.MethodPost, naive.URL, strings.NewReader(body))
		req.Host = "evil.example"
		req.Header.Set("Content-Type", "application/json")
		resp, err := naive.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s under a foreign name: %d", body, resp.StatusCode)
		}
	}
	naive.CloseClientConnections()
	for host, want := range map[string]int{"evil.example": 403, "localhost:80": 200, "": 200} {
		req, _ := http.NewRequest(http.MethodPost, web.URL, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"x"}}`))
		req.Host = host
		req.Header.Set("Content-Type", "application/json")
		resp, err := web.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("host %q: %d, want %d", host, resp.StatusCode, want)
		}
	}
	web.CloseClientConnections()

	proxied := httptest.NewServer(wire.Handler(newSDK(t, &mcp.StreamableHTTPOptions{DisableLocalhostProtection: true}), r, &wire.HTTPOptions{AnyHost: true}))
	defer proxied.Close()
	for _, body := range []string{`{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"x"}}`, `{"jsonrpc":"2.0","id":1,"method":"ping"}`} {
		req, _ := http.NewRequest(http.MethodPost, proxied.URL, strings.NewReader(body))
		req.Host = "mcp.example"
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		resp, err := proxied.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusForbidden {
			t.Errorf("%s from a proxy is refused", body)
		}
	}
	proxied.CloseClientConnections()
}

func TestSessions(t *testing.T) {
	r, _ := newReceiver(t)
	inner := newSDK(t, nil)
	pings := 0
	counted := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		if bytes.Contains(body, []byte("coatcheck-ping")) {
			pings++
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		inner.ServeHTTP(w, req)
	})
	get := `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"x"}}`
	tap := wire.Handler(counted, r, nil)
	session := initialize(t, tap)
	for range 3 {
		if w := post(tap, get, "Mcp-Session-Id", session); w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if pings != 0 {
		t.Errorf("%d pings for a session it saw begin", pings)
	}
	restarted := wire.Handler(counted, r, nil) // knows no session
	for range 3 {
		if w := post(restarted, get, "Mcp-Session-Id", session); w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if pings != 1 {
		t.Errorf("%d pings to learn a session", pings)
	}
	want := post(inner, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Mcp-Session-Id", "unknown")
	if got := post(tap, get, "Mcp-Session-Id", "unknown"); got.Code != want.Code || got.Body.String() != want.Body.String() {
		t.Errorf("unknown session: %d %s; inner handler: %d %s", got.Code, got.Body, want.Code, want.Body)
	}
	req := httptest.NewRequest(http.MethodDelete, "/mcp", nil)
	req.Header.Set("Mcp-Session-Id", session)
	tap.ServeHTTP(httptest.NewRecorder(), req)
	if w := post(tap, get, "Mcp-Session-Id", session); w.Code != http.StatusNotFound {
		t.Errorf("after DELETE: %d %s", w.Code, w.Body)
	}
}

// A session that sends nothing but task messages is shown to the inner handler every 30
// seconds, by one of the requests of that moment. While the server behind it is down tasks
// stay within reach.
func TestSessionStaysInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newReceiver(t)
		var pings, inFlight atomic.Int32
		status := http.StatusOK
		inner := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			body, _ := io.ReadAll(req.Body)
			if bytes.Contains(body, []byte("initialize")) {
				w.Header().Set("Mcp-Session-Id", "s")
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
				return
			}
			pings.Add(1)
			if inFlight.Add(1) > 1 {
				t.Error("two pings at a time")
			}
			time.Sleep(time.Second) //nolint:forbidigo // the bubble has its own clock
			inFlight.Add(-1)
			w.WriteHeader(status)
		})
		tap := wire.Handler(inner, r, nil)
		post(tap, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`)
		for _, want := range []int{http.StatusOK, http.StatusBadGateway, http.StatusNotFound} {
			status = want
			before := pings.Load()
			time.Sleep(31 * time.Second) //nolint:forbidigo // the bubble has its own clock
			var ok atomic.Int32
			var wg sync.WaitGroup
			for range 50 {
				wg.Go(func() {
					if w := post(tap, `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"x"}}`, "Mcp-Session-Id", "s"); w.Code == http.StatusOK {
						ok.Add(1)
					}
				})
			}
			wg.Wait()
			answered := int32(50)
			if want == http.StatusNotFound {
				answered = 49 // the one that asked is told that the session is gone
			}
			if pings.Load() != before+1 || ok.Load() != answered {
				t.Errorf("ping answered %d: %d pings, %d of 50 requests answered", want, pings.Load()-before, ok.Load())
			}
		}
	})
}

// A tasks/result that waits is a stream with a comment every 15 seconds.
func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, work := newReceiver(t)
		tap := wire.Handler(http.NotFoundHandler(), r, nil)
		created := post(tap, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","task":{}}}`)
		id, _ := protocol.Unquote(protocol.Get(protocol.Get(protocol.Get(created.Body.Bytes(), "result"), "task"), "taskId"))
		go func() {
			time.Sleep(40 * time.Second) //nolint:forbidigo // the bubble has its own clock
			close(work.release)
		}()
		w := post(tap, `{"jsonrpc":"2.0","id":2,"method":"tasks/result","params":{"taskId":"`+id+`"}}`)
		if w.Header().Get("Content-Type") != "text/event-stream" {
			t.Errorf("header %v", w.Header())
		}
		want := ": keep-alive\n\n: keep-alive\n\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"content\":[],\"_meta\":{\"io.modelcontextprotocol/related-task\":{\"taskId\":\"" + id + "\"}}}}\n\n"
		if w.Body.String() != want {
			t.Errorf("got %q\nwant %q", w.Body, want)
		}
	})
}

// A client that drops a tasks/result loses nothing (GET-5), and one that accepts no event
// stream gets JSON.
func TestDroppedResult(t *testing.T) {
	r, work := newReceiver(t)
	web := httptest.NewServer(wire.Handler(http.NotFoundHandler(), r, nil))
	defer web.Close()
	send := func(ctx context.Context, accept, body string) (*http.Response, error) {
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, web.URL, strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", accept)
		return web.Client().Do(req)
	}
	resp, err := send(t.Context(), "application/json", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","task":{}}}`)
	if err != nil {
		t.Fatal(err)
	}
	created, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	id, _ := protocol.Unquote(protocol.Get(protocol.Get(protocol.Get(created, "result"), "task"), "taskId"))
	result := `{"jsonrpc":"2.0","id":2,"method":"tasks/result","params":{"taskId":"` + id + `"}}`
	for range 5 {
		ctx, drop := context.WithCancel(t.Context())
		resp, err := send(ctx, "application/json, text/event-stream", result)
		if err != nil {
			t.Fatal(err)
		}
		drop()
		_ = resp.Body.Close()
	}
	close(work.release)
	resp, err = send(t.Context(), "application/json", result)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if resp.Header.Get("Content-Type") != "application/json" || !bytes.Contains(body, []byte(`"content":[]`)) {
		t.Errorf("got %v %s", resp.Header, body)
	}
	web.CloseClientConnections()
}

// notifications/cancelled ends the call it names in its own session and nobody else's, and
// the task goes on (CAN-4).
func TestCancelledWait(t *testing.T) {
	r, work := newReceiver(t)
	web := httptest.NewServer(wire.Handler(newSDK(t, nil), r, nil))
	defer web.Close()
	send := func(session, body string) *http.Response {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, web.URL, strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			req.Header.Set("Mcp-Session-Id", session)
		}
		resp, err := web.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	begin := func() string {
		resp := send("", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
		_ = resp.Body.Close()
		return resp.Header.Get("Mcp-Session-Id")
	}
	a, b := begin(), begin()
	resp := send(a, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","task":{}}}`)
	created, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	id, _ := protocol.Unquote(protocol.Get(protocol.Get(protocol.Get(created, "result"), "task"), "taskId"))
	result := `{"jsonrpc":"2.0","id":2,"method":"tasks/result","params":{"taskId":"` + id + `"}}`
	ofA, ofB, ofNone := send(a, result), send(b, result), send("", result) //nolint:bodyclose // closed below; their headers are here: they wait
	for _, session := range []string{a, ""} {
		resp := send(session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
		_ = resp.Body.Close()
	}
	if body, _ := io.ReadAll(ofA.Body); len(body) != 0 {
		t.Errorf("the cancelled call was answered %s", body)
	}
	close(work.release)
	for _, resp := range []*http.Response{ofB, ofNone} {
		if body, _ := io.ReadAll(resp.Body); !bytes.Contains(body, []byte(`"content":[]`)) {
			t.Errorf("another's call was answered %q", body)
		}
		_ = resp.Body.Close()
	}
	_ = ofA.Body.Close()
	web.CloseClientConnections()
}
