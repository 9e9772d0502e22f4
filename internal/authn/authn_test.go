package authn_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"go.uber.org/goleak"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/authn"
	"github.com/coatcheck/coatcheck/internal/authn/authtest"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a time that a test moves.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock { return &clock{at: time.Now()} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func newGuard(t testing.TB, c authn.Config) *authn.Guard {
	t.Helper()
	if c.Failures == (limit.Rate{}) {
		c.Failures = limit.Rate{PerSecond: limit.None}
	}
	g, err := authn.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// seen is what a guarded handler saw of a request.
type seen struct {
	status int
	header http.Header
	info   *auth.TokenInfo // nil if it was not let through
	who    string          // the principal
}

func send(g *authn.Guard, edit func(*http.Request)) seen {
	var s seen
	req := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader("{}"))
	edit(req)
	w := httptest.NewRecorder()
	g.Handler(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		s.info = auth.TokenInfoFromContext(req.Context())
		who, identified := wire.TokenPrincipal(req)
		if identified {
			s.who = string(who)
		}
	})).ServeHTTP(w, req)
	s.status, s.header = w.Code, w.Header()
	return s
}

func sendToken(g *authn.Guard, token string) seen {
	return send(g, func(req *http.Request) { req.Header.Set("Authorization", "Bearer "+token) })
}

func TestBadConfig(t *testing.T) {
	i := authtest.New(t)
	for name, edit := range map[string]func(*authn.Config){
		"no issuer":                   func(c *authn.Config) { c.Issuers = nil },
		"an empty issuer":             func(c *authn.Config) { c.Issuers = []string{""} },
		"an empty issuer with keys":   func(c *authn.Config) { c.Issuers, c.JWKS = []string{""}, i.URL+"/keys" },
		"http to another machine":     func(c *authn.Config) { c.Issuers = []string{"http://issuer.test"} },
		"keys over http":              func(c *authn.Config) { c.JWKS = "http://issuer.test/keys" },
		"two issuers with one's keys": func(c *authn.Config) { c.Issuers, c.JWKS = []string{i.URL, "https://b.test"}, i.URL+"/keys" },
		"no resource":                 func(c *authn.Config) { c.Resource = "" },
		"a resource with a quote":     func(c *authn.Config) { c.Resource = `https://a.test/"` },
		"an empty audience":           func(c *authn.Config) { c.Audiences = []string{""} },
		"a scope with a quote":        func(c *authn.Config) { c.Scopes = []string{`a"b`} },
		"a scope with a space":        func(c *authn.Config) { c.Offered = []string{`a b`} },
		"an unknown mode":             func(c *authn.Config) { c.Mode = "magic" },
		"a header without a proxy":    func(c *authn.Config) { c.Mode, c.Header = authn.Header, "X-User" },
		"no header":                   func(c *authn.Config) { c.Mode, c.TrustedProxies = authn.Header, everywhere },
		"a header of another meaning": func(c *authn.Config) {
			c.Mode, c.TrustedProxies, c.Header = authn.Header, everywhere, "x-forwarded-for"
		},
		"a header with scopes": func(c *authn.Config) {
			c.Mode, c.TrustedProxies, c.Header, c.Scopes = authn.Header, everywhere, "X-User", []string{"a"}
		},
		"a file that is not there":     func(c *authn.Config) { c.Mode, c.TokenFile = authn.Tokens, filepath.Join(t.TempDir(), "none") },
		"an issuer with a user's name": func(c *authn.Config) { c.Issuers = []string{"https://a@issuer.test"} },
	} {
		c := jwtConfig(i)
		edit(&c)
		if _, err := authn.New(c); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	c := jwtConfig(i)
	c.Issuers, c.PlainHTTP = []string{"http://issuer.test"}, true
	if _, err := authn.New(c); err != nil {
		t.Error(err)
	}
}

// Refusals say what the authorization pages of MCP ask: where to learn how to get a token, and
// which scopes it needs.
func TestChallenges(t *testing.T) {
	i := authtest.New(t)
	c := jwtConfig(i)
	c.Resource, c.Audiences = "https://coatcheck.test/some/mcp", []string{authtest.Audience}
	c.Scopes, c.Offered = []string{"mcp", "tasks"}, []string{"tasks:read", "mcp"}
	var events []audit.Event
	c.Audit = audit.SinkFunc(func(_ context.Context, ev audit.Event) { events = append(events, ev) })
	g := newGuard(t, c)
	const where = `Bearer resource_metadata="https://coatcheck.test/.well-known/oauth-protected-resource/some/mcp"`
	expired, lacking := i.Token(authtest.Expired()), i.Token(authtest.Scope("mcp"))
	for _, tc := range []struct {
		edit   func(*http.Request)
		status int
		want   string
		reason string
	}{
		{func(*http.Request) {}, 401, where + `, scope="mcp tasks"`, audit.Unauthorized},
		{func(req *http.Request) { req.Header.Set("Authorization", "Bearer "+expired) }, 401,
			where + `, error="invalid_token", error_description="the token has expired", scope="mcp tasks"`, audit.Unauthorized},
		{func(req *http.Request) { req.Header.Set("Authorization", "Bearer "+lacking) }, 403,
			where + `, error="insufficient_scope", scope="mcp tasks"`, audit.Scope},
		{func(req *http.Request) {
			req.Header.Set("Authorization", "Bearer "+i.Token(authtest.Scope("tasks mcp")))
		}, 200, "", ""},
	} {
		events = nil
		s := send(g, tc.edit)
		got := s.header.Get("WWW-Authenticate")
		if s.status != tc.status || got != tc.want {
			t.Errorf("%d %s\nwant %d %s", s.status, got, tc.status, tc.want)
		}
		if got != "" {
			challenges, err := oauthex.ParseWWWAuthenticate(s.header["Www-Authenticate"])
			if err != nil || len(challenges) != 1 || challenges[0].Params["resource_metadata"] == "" {
				t.Errorf("%s: %v %v", got, challenges, err)
			}
		}
		if tc.reason == "" {
			if len(events) != 0 {
				t.Errorf("recorded %v", events)
			}
			continue
		}
		if len(events) != 1 || events[0].Kind != audit.Refused || events[0].Reason != tc.reason || events[0].Address != "192.0.2.1" || events[0].Time.IsZero() {
			t.Errorf("recorded %+v", events)
		}
		said, _ := json.Marshal(events)
		for _, token := range []string{expired, lacking} {
			if part := strings.Split(token, "."); strings.Contains(string(said), part[1]) || strings.Contains(string(said), part[2]) {
				t.Errorf("recorded %s", said)
			}
		}
	}
	if g.Challenge() != where {
		t.Error(g.Challenge())
	}

	mux := http.NewServeMux()
	g.Mount(mux, "/mcp")
	server := httptest.NewServer(mux)
	defer server.Close()
	for path, status := range map[string]int{
		"/.well-known/oauth-protected-resource":          http.StatusOK,
		"/.well-known/oauth-protected-resource/mcp":      http.StatusOK,
		"/.well-known/oauth-protected-resource/some/mcp": http.StatusOK,
		"/.well-known/oauth-protected-resource/other":    http.StatusNotFound,
	} {
		resp, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		var metadata map[string]any
		_ = json.NewDecoder(resp.Body).Decode(&metadata)
		resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
		if status != http.StatusOK {
			continue
		}
		got, _ := json.Marshal(metadata)
		want := `{"authorization_servers":["` + i.URL + `"],"bearer_methods_supported":["header"],"resource":"https://coatcheck.test/some/mcp","scopes_supported":["mcp","tasks","tasks:read"]}`
		if string(got) != want || resp.Header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%s: %s\nwant %s", path, got, want)
		}
	}
}

// An address that has failed too often is told to wait, whatever it brings; others are not
// affected (SEC-5).
func TestFailures(t *testing.T) {
	i, at := authtest.New(t), newClock()
	c := jwtConfig(i)
	c.Now, c.Failures = at.now, limit.Rate{PerSecond: 0.1, Burst: 3}
	var over, failed int
	c.Audit = audit.SinkFunc(func(_ context.Context, ev audit.Event) {
		switch ev.Reason {
		case audit.OverLimit:
			over++
		case audit.Unauthorized:
			failed++
		}
	})
	g := newGuard(t, c)
	from := func(address, token string) seen {
		return send(g, func(req *http.Request) {
			req.RemoteAddr = address
			req.Header.Set("Authorization", "Bearer "+token)
		})
	}
	for n := range 3 {
		if s := from("[2001:db8::1]:1", i.Forged()); s.status != http.StatusUnauthorized {
			t.Errorf("%d: %d", n, s.status)
		}
	}
	for n, token := range []string{i.Forged(), i.Token(), i.Forged()} {
		if s := from("[2001:db8::2]:2", token); s.status != http.StatusTooManyRequests || s.header.Get("Retry-After") != "10" || s.info != nil {
			t.Errorf("%d: %d, %v", n, s.status, s.header)
		}
	}
	if over != 1 || failed != 3 {
		t.Errorf("recorded %d and %d", over, failed)
	}
	for _, address := range []string{"[2001:db8:0:1::1]:1", "192.0.2.7:1"} {
		if s := from(address, i.Token()); s.status != http.StatusOK {
			t.Errorf("%s: %d", address, s.status)
		}
	}
	at.pass(11 * time.Second)
	for range 10 { // what succeeds is not counted
		if s := from("[2001:db8::1]:1", i.Token()); s.status != http.StatusOK {
			t.Error(s.status)
		}
	}
}
