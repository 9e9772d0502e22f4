package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/authn"
	"github.com/coatcheck/coatcheck/protocol"
)

// A request of a web page reaches what is behind the gateway only from an origin that may use it.
func TestOrigins(t *testing.T) {
	var reached atomic.Pointer[http.Request]
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		reached.Store(req)
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Mcp-Session-Id", "s")
		w.WriteHeader(http.StatusAccepted)
	}))
	defer backend.Close()
	url := serve(t, Config{URL: backend.URL, Guard: Guard{Origins: []string{"https://app.example", "https://app.example:8443", "vscode-webview://x"}}})
	own := strings.TrimSuffix(url, "/mcp")
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	type answer struct {
		StatusCode int
		Header     http.Header
	}
	ask := func(method, body string, header http.Header) answer {
		req, _ := http.NewRequest(method, url, strings.NewReader(body))
		req.Header = header
		reached.Store(nil)
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		data, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusForbidden {
			if m, err := protocol.ParseMessage(data); err != nil || m.Error == nil || reached.Load() != nil {
				t.Errorf("%v refused with %s, %v; passed on: %v", header, data, err, reached.Load() != nil)
			}
		}
		return answer{resp.StatusCode, resp.Header}
	}
	message := `{"jsonrpc":"2.0","method":"notifications/vendor"}`
	for origin, want := range map[string]string{ // what Access-Control-Allow-Origin says, or "refused"
		"":                           "",
		own:                          "",
		"https://app.example":        "https://app.example",
		"https://app.example:8443":   "https://app.example:8443",
		"vscode-webview://x":         "vscode-webview://x",
		"http://localhost:6274":      "http://localhost:6274",
		"http://[::1]:9":             "http://[::1]:9",
		"http://app.example":         "refused",
		"https://app.example:444":    "refused",
		"https://app.example.evil":   "refused",
		"https://evil/app.example":   "refused",
		"https://app.example/":       "refused",
		"https://sub.app.example":    "refused",
		"http://localhost.evil":      "refused",
		"http://127.0.0.1.evil":      "refused",
		"null":                       "refused",
		"file://":                    "refused",
		"*":                          "refused",
		" ":                          "refused",
		"http://localhost:6274 evil": "refused",
	} {
		for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
			header := http.Header{"Content-Type": {"application/json"}, "Sec-Fetch-Site": {"cross-site"}}
			if origin != "" {
				header.Set("Origin", origin)
			} else {
				header.Del("Sec-Fetch-Site")
			}
			resp := ask(method, message, header)
			got := strings.Join(resp.Header.Values("Access-Control-Allow-Origin"), " and ")
			if resp.StatusCode == http.StatusForbidden {
				got = "refused"
			}
			if got != want {
				t.Errorf("%s from origin %q: %d, %q; want %q", method, origin, resp.StatusCode, got, want)
			}
			exposed := resp.Header.Get("Access-Control-Expose-Headers")
			if want == origin && want != "" && exposed != "Mcp-Session-Id, WWW-Authenticate, Retry-After" {
				t.Errorf("origin %q may read %q", origin, exposed)
			}
			if req := reached.Load(); req != nil && (req.Header.Get("Origin") != "" || req.Header.Get("Sec-Fetch-Site") != "") {
				t.Errorf("the server behind is told of a page: %v", req.Header)
			}
		}
	}
	if resp := ask(http.MethodPost, message, http.Header{"Origin": {"https://app.example", "https://evil"}}); resp.StatusCode != http.StatusForbidden {
		t.Errorf("two origins: %d", resp.StatusCode)
	}
	// A browser that leaves the origin out says at least that it is another.
	if resp := ask(http.MethodPost, message, http.Header{"Sec-Fetch-Site": {"cross-site"}}); resp.StatusCode != http.StatusForbidden {
		t.Errorf("from another site, without an origin: %d", resp.StatusCode)
	}
	for origin, want := range map[string]int{"https://app.example": 204, "http://localhost:1": 204, "https://evil": 403} {
		resp := ask(http.MethodOptions, "", http.Header{
			"Origin": {origin}, "Access-Control-Request-Method": {"POST"}, "Access-Control-Request-Headers": {"mcp-session-id"},
		})
		allowed := resp.Header.Get("Access-Control-Allow-Headers")
		if resp.StatusCode != want || (want == 204) != strings.Contains(allowed, "Mcp-Session-Id") || reached.Load() != nil {
			t.Errorf("preflight from %s: %d %v", origin, resp.StatusCode, resp.Header)
		}
		if resp.Header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("cookies and client certificates of %s are let in", origin)
		}
	}
}

func TestParseOrigin(t *testing.T) {
	for text, want := range map[string]string{
		"https://app.example": "https://app.example", "https://App.Example:443/": "https://app.example",
		"http://h:80": "http://h", "http://h:443": "http://h:443", "http://[::1]:3000": "http://[::1]:3000",
		"chrome-extension://abc": "chrome-extension://abc",
		"":                       "", "*": "", "null": "", "app.example": "", "https://": "", "https://h/path": "", "https://u@h": "",
		"https://h?q": "", "https://*.example": "",
	} {
		if got, err := ParseOrigin(text); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
}

// The endpoint is reached only under names that it is meant to have.
func TestHosts(t *testing.T) {
	const here, elsewhere = "127.0.0.1:80", "192.0.2.1:80"
	for _, tc := range []struct {
		hosts     []string
		any       bool
		at, under string
		want      int
	}{
		{nil, false, elsewhere, "any.example", 200},
		{nil, false, here, "localhost:8080", 200},
		{nil, false, here, "[::1]:8080", 200},
		{nil, false, here, "evil.example", 403},
		{nil, false, "[::1]:80", "evil.example", 403},
		{nil, false, "[::ffff:127.0.0.1]:80", "evil.example", 403},
		{nil, true, here, "mcp.example", 200},
		{[]string{"mcp.example"}, false, elsewhere, "mcp.example", 200},
		{[]string{"mcp.example"}, false, elsewhere, "MCP.example:8443", 200},
		{[]string{"mcp.example"}, false, elsewhere, "evil.example", 403},
		{[]string{"mcp.example"}, false, elsewhere, "localhost", 403},
		{[]string{"mcp.example"}, false, elsewhere, "", 403},
		{[]string{"mcp.example:1"}, false, elsewhere, "mcp.example:1", 200},
		{[]string{"mcp.example:1"}, false, elsewhere, "mcp.example:2", 403},
		{[]string{"a", "::1"}, false, elsewhere, "[::1]:2", 200},
		{[]string{"mcp.example"}, false, here, "mcp.example", 200}, // beyond a proxy
		{[]string{"mcp.example"}, false, here, "localhost", 200},
		{[]string{"mcp.example"}, false, here, "evil.example", 403},
	} {
		inner := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		g := &guarded{Guard: Guard{Hosts: tc.hosts}, anyHost: tc.any, inner: inner}
		addr, err := net.ResolveTCPAddr("tcp", tc.at)
		if err != nil {
			t.Fatal(err)
		}
		req := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader("{}"))
		req.Host = tc.under
		w := httptest.NewRecorder()
		g.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey, net.Addr(addr))))
		if w.Code != tc.want {
			t.Errorf("%+v: %d", tc, w.Code)
		}
	}
}

// A page whose name was made to point at the endpoint is of its own origin then: its name is
// what gives it away.
func TestRebinding(t *testing.T) {
	url := serve(t, Config{Command: []string{"raw"}})
	for host, want := range map[string]int{"evil.example": http.StatusForbidden, "localhost": http.StatusOK} {
		req, _ := http.NewRequest(http.MethodPost, url, strings.NewReader(initialize))
		req.Host = host
		req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Origin": {"http://" + host}}
		transport := &http.Transport{}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		transport.CloseIdleConnections()
		if resp.StatusCode != want {
			t.Errorf("under %s: %d, want %d", host, resp.StatusCode, want)
		}
	}
}

// What a page may not do is audited, with the address of who reached the endpoint.
func TestRefusedPages(t *testing.T) {
	for _, tc := range []struct {
		name   string
		header http.Header
		host   string
		want   string // the reason
	}{
		{"of another origin", http.Header{"Origin": {"https://evil.example"}}, "", audit.Origin},
		{"of another site", http.Header{"Sec-Fetch-Site": {"cross-site"}}, "", audit.Origin},
		{"of a name made to point here", http.Header{"Origin": {"http://evil.example"}}, "evil.example", audit.Host},
		{"that may", http.Header{"Origin": {"http://localhost:6274"}}, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			refusals := make(chan audit.Event, 10)
			url := serve(t, Config{Command: []string{"raw"}, Audit: audit.SinkFunc(func(_ context.Context, ev audit.Event) {
				if ev.Kind == audit.Refused {
					refusals <- ev
				}
			})})
			req, _ := http.NewRequest(http.MethodPost, url, strings.NewReader(initialize))
			req.Header = tc.header
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Accept", "application/json, text/event-stream")
			req.Host = tc.host
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			var got audit.Event
			select {
			case got = <-refusals: // it was recorded before the answer was sent
			default:
			}
			if got.Reason != tc.want || tc.want != "" && got.Address != "127.0.0.1" || (resp.StatusCode == http.StatusForbidden) != (tc.want != "") {
				t.Errorf("%d, audited as %+v", resp.StatusCode, got)
			}
		})
	}
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// A page is judged before its token is: a preflight has none, and a refusal for want of one can
// be read by the pages that may ask, and by no others.
func TestOriginBeforeToken(t *testing.T) {
	url := serve(t, Config{
		Command: []string{"raw"}, Guard: Guard{Origins: []string{"https://app.example"}},
		Auth: authn.Config{Mode: authn.Header, Header: "X-User", TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
	})
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	for _, tc := range []struct {
		method, origin, user string
		want                 int
	}{
		{http.MethodOptions, "https://app.example", "", http.StatusNoContent},
		{http.MethodPost, "https://app.example", "", http.StatusUnauthorized},
		{http.MethodPost, "https://app.example", "ada", http.StatusOK},
		{http.MethodOptions, "https://evil.example", "", http.StatusForbidden},
		{http.MethodPost, "https://evil.example", "", http.StatusForbidden},
		{http.MethodPost, "https://evil.example", "ada", http.StatusForbidden},
	} {
		req, _ := http.NewRequest(tc.method, url, strings.NewReader(initialize))
		req.Header = http.Header{
			"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
			"Origin": {tc.origin}, "Access-Control-Request-Method": {"POST"},
		}
		if tc.user != "" {
			req.Header.Set("X-User", tc.user)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		readable := resp.Header.Get("Access-Control-Allow-Origin") == tc.origin
		if resp.StatusCode != tc.want || readable != (tc.want != http.StatusForbidden) {
			t.Errorf("%+v: %d, readable %v", tc, resp.StatusCode, readable)
		}
		if strings.Contains(resp.Header.Get("Access-Control-Allow-Headers"), "X-User") {
			t.Error("a page may say who its user is")
		}
	}
}
