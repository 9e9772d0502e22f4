package gateway

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck/protocol"
)

// Every message reaches a process as it was, and its answer the client.
func TestCommandPasses(t *testing.T) {
	c := newClient(t, serve(t, Config{Command: []string{"raw"}}))
	for _, tc := range []struct{ message, want string }{
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"n":1.0,"ü":"\u00fc"},"more":[1e2]}}`,
			`{"jsonrpc":"2.0","id":1,"result":{"method":"tools/call","params":{"name":"x","arguments":{"n":1.0,"ü":"\u00fc"},"more":[1e2]},"z":1.0,"a":1e2,"big":12345678901234567890}}`},
		{`{"jsonrpc":"2.0","id":"a","method":"vendor/unknown","params":[1,{"b":2}]}`,
			`{"jsonrpc":"2.0","id":"a","result":{"method":"vendor/unknown","params":[1,{"b":2}],"z":1.0,"a":1e2,"big":12345678901234567890}}`},
		{`{"jsonrpc":"2.0","id":2,"method":"prompts/get","params":{"no":"name"}}`,
			`{"jsonrpc":"2.0","id":2,"result":{"method":"prompts/get","params":{"no":"name"},"z":1.0,"a":1e2,"big":12345678901234567890}}`},
		{`{"jsonrpc":"2.0","id":3,"method":"ping"}`,
			`{"jsonrpc":"2.0","id":3,"result":{"method":"ping","params":null,"z":1.0,"a":1e2,"big":12345678901234567890}}`},
		{`{"jsonrpc":"2.0","id":4,"method":"vendor/error"}`,
			`{"jsonrpc":"2.0","id":4,"error":{"code":-32050,"message":"ü","data":{"n":1.0}}}`},
		{`{"jsonrpc":"2.0","id":5,"method":"tools/list"}`, // TOOL-3
			`{"jsonrpc":"2.0","id":5,"result":{"tools":[{"name":"x","inputSchema":{"type":"object"},"more":[1e2],"execution":{"taskSupport":"optional"}}]}}`},
	} {
		if r := c.post(tc.message); r.status != http.StatusOK || r.last() != tc.want {
			t.Errorf("%s\ngot  %d %s\nwant %s", tc.message, r.status, r.body, tc.want)
		}
	}
	for i, message := range []string{
		`{"jsonrpc":"2.0","method":"notifications/vendor","params":{"ü":1e2}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}`,
		`{"jsonrpc":"2.0","id":"unasked","result":{"n":1.0}}`,
	} {
		if r := c.post(message); r.status != http.StatusAccepted || r.body != "" {
			t.Errorf("%s: %d %s", message, r.status, r.body)
		}
		result, _ := c.call("vendor/heard", `{}`)
		if last, _ := protocol.Unquote(protocol.Get(result, "last")); last != message || string(protocol.Get(result, "n")) != string(rune('2'+i)) {
			t.Errorf("the process heard %s, not %s", result, message)
		}
	}
	for _, bad := range []string{``, `{`, `[]`, `7`, `{"jsonrpc":"2.0","id":1,"method":7}`} {
		if r := c.post(bad); r.status != http.StatusBadRequest || !strings.Contains(r.body, "-32700") {
			t.Errorf("%q: %d %s", bad, r.status, r.body)
		}
	}
}

// What a process says by itself goes out on the call that it belongs to, or on the GET
// stream of a client that listens.
func TestCommandSpeaks(t *testing.T) {
	c := newClient(t, serve(t, Config{Command: []string{"raw"}}))
	notify := `{"jsonrpc":"2.0","id":1,"method":"vendor/notify","params":{"_meta":{"progressToken":"p"}}}`
	progress := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1.0,"odd":{}}}`
	vendor := `{"jsonrpc":"2.0","method":"notifications/vendor","params":{"ü":1e2}}`
	answer := `{"jsonrpc":"2.0","id":1,"result":{}}`
	if got := strings.Join(c.post(notify).events, "\n"); got != progress+"\n"+vendor+"\n"+answer {
		t.Errorf("on the call's stream:\n%s", got)
	}

	ask := func() string { // answers the question that comes on the call's stream
		resp, err := c.web.Do(c.request(http.MethodPost, `{"jsonrpc":"2.0","id":2,"method":"vendor/ask"}`))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		events := bufio.NewScanner(resp.Body)
		var last string
		for events.Scan() {
			data, ok := strings.CutPrefix(events.Text(), "data: ")
			if !ok {
				continue
			}
			if last = data; strings.Contains(data, "elicitation/create") {
				if !strings.Contains(data, `"params":{"message":"ü","odd":1.0}`) {
					t.Errorf("asked %s", data)
				}
				c.post(`{"jsonrpc":"2.0","id":"q1","result":{"action":"accept","n":1.0}}`)
			}
		}
		return last
	}
	if got := ask(); !strings.Contains(got, `"answer":{"jsonrpc":"2.0","id":"q1","result":{"action":"accept","n":1.0}}`) {
		t.Errorf("got %s", got)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp, err := c.web.Do(c.request(http.MethodGet, "").WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := strings.Join(c.post(notify).events, "\n"); got != progress+"\n"+answer {
		t.Errorf("on the call's stream, beside a GET stream:\n%s", got)
	}
	events := bufio.NewScanner(resp.Body)
	for events.Scan() {
		if data, ok := strings.CutPrefix(events.Text(), "data: "); ok {
			if data != vendor {
				t.Errorf("on the GET stream: %s", data)
			}
			break
		}
	}
}

// Each session has its own process, which ends with it.
func TestCommandSessions(t *testing.T) {
	url := serve(t, Config{Command: []string{"raw"}, SessionIdle: 2 * time.Second})
	a, b := newClient(t, url), newClient(t, url)
	for range 4 {
		a.post(`{"jsonrpc":"2.0","method":"notifications/vendor"}`)
	}
	if result, _ := a.call("vendor/heard", `{}`); string(protocol.Get(result, "n")) != "5" {
		t.Errorf("a's process heard %s", result)
	}
	if result, _ := b.call("vendor/heard", `{}`); string(protocol.Get(result, "n")) != "1" {
		t.Errorf("b's process heard %s", result)
	}
	if r := a.do(http.MethodDelete, ""); r.status != http.StatusNoContent {
		t.Errorf("DELETE: %d %s", r.status, r.body)
	}
	if r := a.post(`{"jsonrpc":"2.0","id":1,"method":"ping"}`); r.status != http.StatusNotFound {
		t.Errorf("after DELETE: %d %s", r.status, r.body)
	}
	eventually(t, "an idle session ends", func() bool {
		// A look from outside must not be a use of the session: ask with a wrong method.
		return b.do(http.MethodPut, "").status == http.StatusNotFound
	})
	c := newClient(t, url)
	r := c.post(`{"jsonrpc":"2.0","id":1,"method":"vendor/die"}`)
	if !strings.Contains(r.body, "-32603") || !strings.Contains(r.body, "exit status 7") {
		t.Errorf("from a dying process: %d %s", r.status, r.body)
	}
	if r := c.post(`{"jsonrpc":"2.0","id":2,"method":"ping"}`); r.status != http.StatusNotFound {
		t.Errorf("after it died: %d %s", r.status, r.body)
	}
	for _, tc := range []struct {
		method, session, body string
		want                  int
	}{
		{http.MethodPost, "", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, http.StatusBadRequest},
		{http.MethodPost, "unknown", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, http.StatusNotFound},
		{http.MethodGet, "", "", http.StatusBadRequest},
		{http.MethodGet, "unknown", "", http.StatusNotFound},
		{http.MethodDelete, "unknown", "", http.StatusNotFound},
		{http.MethodPut, "", "", http.StatusMethodNotAllowed},
	} {
		c.session = tc.session
		if r := c.do(tc.method, tc.body); r.status != tc.want {
			t.Errorf("%s %q: %d, want %d", tc.method, tc.session, r.status, tc.want)
		}
	}
}

// Every message reaches a URL as it was, and so does every answer.
func TestURLPasses(t *testing.T) {
	var got *http.Request
	var body string
	answer := "anything \x00 ü"
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		data, _ := io.ReadAll(req.Body)
		got, body = req, string(data)
		if strings.Contains(body, `"initialize"`) {
			w.Header().Set("Mcp-Session-Id", "s1")
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
			return
		}
		w.Header().Set("X-Inner", "kept")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, answer)
	}))
	defer backend.Close()
	c := newClient(t, serve(t, Config{URL: backend.URL + "/deep/path?q=1"}))
	for _, message := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"vendor/unknown","params":[1e2,{"ü":1.0}],"more":true}`,
		"{ \"jsonrpc\":\"2.0\",\n\"id\":1, \"method\":\"ping\" }", `[]`, `{`, ``,
	} {
		if r := c.post(message); r.status != http.StatusTeapot || r.body != answer || r.header.Get("X-Inner") != "kept" || body != message {
			t.Errorf("%q arrived as %q and was answered %d %q", message, body, r.status, r.body)
		}
		if got.URL.String() != "/deep/path?q=1" || got.Header.Get("Mcp-Session-Id") != "s1" || "http://"+got.Host != backend.URL {
			t.Errorf("request to %s at %s with %v", got.URL, got.Host, got.Header)
		}
	}
	backend.Close()
	if r := c.post(`{"jsonrpc":"2.0","id":9,"method":"vendor/x"}`); r.status != http.StatusBadGateway || !strings.Contains(r.body, `"id":9,"error":{"code":-32603`) {
		t.Errorf("without a server: %d %s", r.status, r.body)
	}
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := Serve(t.Context(), Config{Command: []string{"true"}, Listen: l.Addr().String(), Store: "memory:"}); err == nil {
		t.Error("served on a port in use")
	}
	if err := Serve(t.Context(), Config{Command: []string{"no-such-command-anywhere"}, Listen: "127.0.0.1:0", Store: "memory:"}); err == nil {
		t.Error("served a command that does not exist")
	}
	if err := Serve(t.Context(), Config{Command: []string{"true"}, Listen: "127.0.0.1:0", Store: "sqlite:" + t.TempDir()}); err == nil {
		t.Error("served from a store that cannot be opened")
	}
}
