package wire_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/task"
)

const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// byHeader has requests say whose they are.
func byHeader(req *http.Request) (task.Principal, bool) {
	who := req.Header.Get("X-Who")
	return task.Principal(who), who != ""
}

// kinds are requests of each kind in a session.
var kinds = []struct{ method, version, body string }{
	{http.MethodPost, "2025-11-25", `{"jsonrpc":"2.0","id":1,"method":"ping"}`},
	{http.MethodPost, "2025-06-18", `{"jsonrpc":"2.0","id":1,"method":"ping"}`},
	{http.MethodPost, "2025-11-25", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`},
	{http.MethodPost, "2025-11-25", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`},
	{http.MethodPost, "2025-11-25", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","task":{}}}`},
	{http.MethodPost, "2025-11-25", `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"x"}}`},
	{http.MethodPost, "2025-11-25", `{"jsonrpc":"2.0","id":1,"method":"tasks/result","params":{"taskId":"x"}}`},
	{http.MethodPost, "2025-11-25", `{"jsonrpc":"2.0","id":1,"method":"tasks/cancel","params":{"taskId":"x"}}`},
	{http.MethodPost, "2025-11-25", `{"jsonrpc":"2.0","id":1,"method":"tasks/list"}`},
	{http.MethodPost, "2025-11-25", `{"jsonrpc":"2.0","id":"coatcheck/x/y/z","result":{}}`},
	{http.MethodPost, "2025-11-25", `{"jsonrpc":"2.0","id":"theirs","result":{}}`},
	{http.MethodPost, "2025-11-25", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`},
	{http.MethodGet, "2025-11-25", ""},
	{http.MethodDelete, "2025-11-25", ""},
}

// A session is its principal's: to another it is one that does not exist, whatever is asked,
// and it goes on as if nobody had asked (SEC-1).
func TestSessionsAreBound(t *testing.T) {
	r, _ := newReceiver(t)
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	inner := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	tap := wire.Handler(inner, r, &wire.HTTPOptions{Principal: byHeader})
	begin := func(who string) string {
		t.Helper()
		w := post(tap, hello, "X-Who", who)
		id := w.Header().Get("Mcp-Session-Id")
		if w.Code != http.StatusOK || id == "" {
			t.Fatalf("initialize: %d %s", w.Code, w.Body)
		}
		return id
	}
	end := func(id, who string) {
		if w := send(tap, http.MethodDelete, "", "X-Who", who, "Mcp-Session-Id", id); w.Code != http.StatusNoContent {
			t.Errorf("DELETE: %d %s", w.Code, w.Body)
		}
	}
	alices := begin("alice")
	defer end(alices, "alice")
	check := func(tap http.Handler) {
		t.Helper()
		for _, kind := range kinds {
			ask := func(who, id string) string {
				w := send(tap, kind.method, kind.body, "X-Who", who, "Mcp-Session-Id", id, "Mcp-Protocol-Version", kind.version)
				return fmt.Sprint(w.Code, w.Header(), w.Body)
			}
			foreign, unknown := ask("mallory", alices), ask("mallory", "NOSUCHSESSION")
			if foreign != unknown || !strings.HasPrefix(foreign, "404 ") {
				t.Errorf("%s %s\nforeign %s\nunknown %s", kind.method, kind.body, foreign, unknown)
			}
		}
		if w := post(tap, kinds[0].body, "X-Who", "alice", "Mcp-Session-Id", alices); w.Code != http.StatusOK {
			t.Errorf("alice's ping: %d %s", w.Code, w.Body)
		}
		if w := post(tap, `{"jsonrpc":"2.0","id":1,"method":"tasks/list"}`, "X-Who", "alice", "Mcp-Session-Id", alices); w.Code != http.StatusOK {
			t.Errorf("alice's list: %d %s", w.Code, w.Body)
		}
	}
	check(tap)
	// After a restart the session is whose it is first seen to be.
	restarted := wire.Handler(inner, r, &wire.HTTPOptions{Principal: byHeader})
	if w := post(restarted, kinds[0].body, "X-Who", "alice", "Mcp-Session-Id", alices); w.Code != http.StatusOK {
		t.Errorf("alice's ping: %d %s", w.Code, w.Body)
	}
	check(restarted)

	// The inner handler might go by another id than we do.
	mallorys := begin("mallory")
	req := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(kinds[0].body))
	req.Header = http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "X-Who": {"mallory"}, "Mcp-Session-Id": {mallorys, alices},
	}
	w := httptest.NewRecorder()
	tap.ServeHTTP(w, req)
	if w.Code != http.StatusBadRequest {
		t.Errorf("two ids: %d %s", w.Code, w.Body)
	}
	end(mallorys, "mallory")
}

// A task is found from the next session of its principal.
func TestNextSession(t *testing.T) {
	r, work := newReceiver(t)
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	inner := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	tap := wire.Handler(inner, r, &wire.HTTPOptions{Principal: byHeader})
	session := func() string { return post(tap, hello, "X-Who", "alice").Header().Get("Mcp-Session-Id") }
	first := session()
	w := post(tap, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","task":{}}}`, "X-Who", "alice", "Mcp-Session-Id", first)
	_, after, _ := strings.Cut(w.Body.String(), `"taskId":"`)
	id, _, _ := strings.Cut(after, `"`)
	send(tap, http.MethodDelete, "", "X-Who", "alice", "Mcp-Session-Id", first)
	second := session()
	close(work.release)
	w = post(tap, `{"jsonrpc":"2.0","id":2,"method":"tasks/result","params":{"taskId":"`+id+`"}}`, "X-Who", "alice", "Mcp-Session-Id", second)
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"content":[]`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	send(tap, http.MethodDelete, "", "X-Who", "alice", "Mcp-Session-Id", second)
}

// Nobody can have another's session forgotten by beginning many, however long their ids are.
func TestSessionsAreNotCrowdedOut(t *testing.T) {
	r, _ := newReceiver(t)
	begun := 0
	long := strings.Repeat("x", 300)
	var reached string
	inner := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		reached = req.Header.Get("Mcp-Session-Id")
		if reached == "" {
			begun++
			w.Header().Set("Mcp-Session-Id", fmt.Sprint(long, begun))
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`))
	})
	tap := wire.Handler(inner, r, &wire.HTTPOptions{Principal: byHeader})
	alices := post(tap, hello, "X-Who", "alice").Header().Get("Mcp-Session-Id")
	for range 11_000 {
		post(tap, hello, "X-Who", "mallory")
	}
	post(tap, kinds[0].body, "X-Who", "mallory", "Mcp-Session-Id", alices)
	if reached == alices || reached == "" {
		t.Errorf("mallory reached %.10s", reached)
	}
	post(tap, kinds[0].body, "X-Who", "alice", "Mcp-Session-Id", alices)
	if reached != alices {
		t.Errorf("alice reached %.10s", reached)
	}
}

// A session of before a restart is verified by a ping; the request itself goes on once, whatever
// its method.
func TestARequestReachesTheServerOnce(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		r, _ := newReceiver(t)
		var reached []string
		tap := wire.Handler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			reached = append(reached, req.Method+" "+req.Header.Get("Last-Event-Id"))
		}), r, &wire.HTTPOptions{Principal: byHeader})
		send(tap, method, "", "X-Who", "alice", "Mcp-Session-Id", "earlier", "Last-Event-Id", "7")
		if want := []string{"POST ", method + " 7"}; !slices.Equal(reached, want) {
			t.Errorf("the server was reached by %q, want %q", reached, want)
		}
	}
}
