package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/authn"
	"github.com/coatcheck/coatcheck/internal/authn/authtest"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/protocol"
)

// jwtAuth trusts an issuer's tokens for authtest.Audience.
func jwtAuth(i *authtest.Issuer) authn.Config {
	return authn.Config{Mode: authn.JWT, Issuers: []string{i.URL}, Audiences: []string{authtest.Audience}}
}

func withToken(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

// lockedBuffer is a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Tasks and sessions are their principal's alone, in front of a command and of a URL (SEC-1,
// SEC-2): to others they do not exist.
func TestPrincipals(t *testing.T) {
	for name, c := range map[string]Config{
		"command": {Command: []string{"raw"}},
		"URL":     {URL: exampleURL(t, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			i := authtest.New(t)
			c.Auth = jwtAuth(i)
			gw := serve(t, c)
			alice := newClientWith(t, gw, withToken(i.Token()))
			id := alice.create(`{"name":"slow_compute","arguments":{"seconds":0},"task":{}}`)
			if result, fault := alice.call("tasks/result", ref(id)); fault != nil {
				t.Errorf("alice's result: %s %s", result, fault)
			}
			next := newClientWith(t, gw, withToken(i.Token())) // another token, another session
			if result, fault := next.call("tasks/get", ref(id)); fault != nil {
				t.Errorf("from alice's next session: %s %s", result, fault)
			}
			for who, token := range map[string]string{
				"another client":  i.Token(authtest.Client("other")),
				"another subject": i.Token(authtest.Subject("bob")),
			} {
				other := newClientWith(t, gw, withToken(token))
				for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel"} {
					_, foreign := other.call(method, ref(id))
					_, unknown := other.call(method, ref("NOSUCHTASK"))
					if string(foreign) != string(unknown) || string(protocol.Get(foreign, "code")) != "-32602" {
						t.Errorf("%s, %s: %s, of an unknown one %s", who, method, foreign, unknown)
					}
				}
				if result, _ := other.call("tasks/list", `{}`); strings.Contains(string(result), id) {
					t.Errorf("%s lists %s", who, result)
				}
				for _, kind := range []struct{ method, body string }{
					{http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"ping"}`},
					{http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow_compute","task":{}}}`},
					{http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tasks/list"}`},
					{http.MethodPost, `{"jsonrpc":"2.0","id":"theirs","result":{}}`},
					{http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/vendor"}`},
					{http.MethodGet, ""},
					{http.MethodDelete, ""},
				} {
					say := func(session string) string {
						other.session = session
						r := other.do(kind.method, kind.body)
						return fmt.Sprint(r.status, r.header.Get("Content-Type"), r.body)
					}
					foreign, unknown := say(alice.session), say("NOSUCHSESSION")
					if foreign != unknown || !strings.HasPrefix(foreign, "404") {
						t.Errorf("%s, %s %s: %s, of an unknown session %s", who, kind.method, kind.body, foreign, unknown)
					}
				}
			}
			if r := alice.post(`{"jsonrpc":"2.0","id":1,"method":"ping"}`); r.status != http.StatusOK {
				t.Errorf("alice's session: %d %s", r.status, r.body)
			}
			for _, c := range []*client{alice, next} { // the URL's server outlives the gateway
				c.do(http.MethodDelete, "")
			}
		})
	}
}

// A token is asked for in the way that MCP's clients understand, and what it may not do is
// refused with the scope that it lacks.
func TestChallenge(t *testing.T) {
	i := authtest.New(t)
	var mu sync.Mutex
	var events []audit.Event
	c := Config{Command: []string{"raw"}, Auth: jwtAuth(i), Scopes: map[receiver.Operation]string{receiver.Cancel: "tasks:cancel"}}
	c.Auth.Scopes = []string{"mcp"}
	c.Auth.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	c.Audit = audit.SinkFunc(func(_ context.Context, ev audit.Event) {
		mu.Lock()
		defer mu.Unlock()
		if ev.Kind == audit.Refused {
			events = append(events, ev)
		}
	})
	gw := serve(t, c)
	stranger := &client{t: t, url: gw, web: http.DefaultClient, header: http.Header{"X-Forwarded-For": {"198.51.100.7"}}}
	r := stranger.post(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	at := strings.TrimSuffix(gw, "/mcp") + "/.well-known/oauth-protected-resource"
	challenges, err := oauthex.ParseWWWAuthenticate(r.header["Www-Authenticate"])
	if r.status != http.StatusUnauthorized || err != nil || len(challenges) != 1 || challenges[0].Params["resource_metadata"] != at+"/mcp" {
		t.Fatalf("%d %v %v", r.status, r.header, err)
	}
	for _, at := range []string{at, at + "/mcp"} {
		metadata, err := oauthex.GetProtectedResourceMetadata(t.Context(), at, gw, http.DefaultClient)
		if err != nil || metadata.AuthorizationServers[0] != i.URL || strings.Join(metadata.ScopesSupported, " ") != "mcp tasks:cancel" {
			t.Errorf("%+v %v", metadata, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()

	alice := newClientWith(t, gw, withToken(i.Token(authtest.Scope("mcp"))))
	id := alice.create(`{"name":"x","task":{}}`)
	r = alice.post(`{"jsonrpc":"2.0","id":1,"method":"tasks/cancel","params":` + ref(id) + `}`)
	if r.status != http.StatusForbidden || !strings.Contains(r.header.Get("WWW-Authenticate"), `oauth-protected-resource/mcp", error="insufficient_scope", scope="tasks:cancel"`) ||
		!strings.Contains(r.body, "-32033") {
		t.Errorf("%d %v %s", r.status, r.header, r.body)
	}
	alice.header = withToken(i.Token())
	if r := alice.post(`{"jsonrpc":"2.0","id":1,"method":"ping"}`); r.status != http.StatusForbidden || !strings.Contains(r.header.Get("WWW-Authenticate"), `error="insufficient_scope", scope="mcp"`) {
		t.Errorf("%d %v", r.status, r.header)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(events) != 3 || events[0].Reason != audit.Unauthorized || events[0].Address != "198.51.100.7" || events[1].Reason != audit.Scope ||
		events[2].Reason != audit.Scope || events[2].Address != "127.0.0.1" || string(events[2].Principal) != i.URL+"|alice|app" {
		t.Errorf("%+v", events)
	}
}

// What the server at a URL is shown is what was asked for, in a task's own requests, in
// discovery and in plain traffic. Nobody's token is in what is stored or logged.
func TestUpstreamToken(t *testing.T) {
	i := authtest.New(t)
	own := filepath.Join(t.TempDir(), "own")
	write := func(secret string) {
		if err := os.WriteFile(own, []byte(secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("own-token-1")
	target, err := url.Parse(exampleURL(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	byHeader := authn.Config{Mode: authn.Header, Header: "X-User", TrustedProxies: loopback}
	const callers, users = "caller", "user"
	for _, tc := range []struct {
		name    string
		auth    authn.Config
		setting string
		want    string // what is seen of the authorization: callers, "", or a token
		user    bool   // whether the identity header and the cookie are
	}{
		{"no auth", authn.Config{}, "", callers, true},
		{"no auth, none", authn.Config{}, NoToken, "", true},
		{"no auth, own", authn.Config{}, own, "Bearer own-token-1", true},
		{"jwt", jwtAuth(i), "", "", true},
		{"jwt, caller", jwtAuth(i), CallersToken, callers, true},
		{"jwt, none", jwtAuth(i), NoToken, "", true},
		{"jwt, own", jwtAuth(i), own, "Bearer own-token-1", true},
		{"header", byHeader, "", "", false},
		{"header, caller", byHeader, CallersToken, callers, true},
		{"header, own", byHeader, own, "Bearer own-token-1", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			token := i.Token()
			var mu sync.Mutex
			seen := map[string]bool{}
			proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				mu.Lock()
				seen[fmt.Sprintf("%q %q %q", req.Header["Authorization"], req.Header["X-User"], req.Header["Cookie"])] = true
				mu.Unlock()
				proxy.ServeHTTP(w, req)
			}))
			defer web.Close()
			folder, log := t.TempDir(), &lockedBuffer{}
			gw, stop := start(t, Config{
				URL: web.URL, Auth: tc.auth, UpstreamToken: tc.setting,
				Support: protocol.Forbidden, Tools: map[string]protocol.TaskSupport{"slow_compute": protocol.Optional}, Store: "sqlite:" + filepath.Join(folder, "tasks.db"),
				Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			})
			defer stop()
			header := withToken(token)
			header["X-User"], header["Cookie"] = []string{users}, []string{"session=secret-cookie"}
			c := newClientWith(t, gw, header)
			if _, fault := c.call("tools/call", `{"name":"failing_job","task":{}}`); fault == nil { // the server is asked for its tools
				t.Error("a tool that does not run as a task did")
			}
			c.call("tools/list", `{}`)
			c.call("tools/call", `{"name":"slow_compute","arguments":{"seconds":0}}`)
			id := c.create(`{"name":"slow_compute","arguments":{"seconds":0},"task":{}}`)
			if _, fault := c.call("tasks/result", ref(id)); fault != nil {
				t.Errorf("%s", fault)
			}
			c.do(http.MethodDelete, "")
			stop()
			web.CloseClientConnections()

			mu.Lock()
			defer mu.Unlock()
			of := map[string]string{"": "[]", callers: fmt.Sprintf("%q", []string{"Bearer " + token}), "Bearer own-token-1": `["Bearer own-token-1"]`}
			user, cookie := "[]", "[]"
			if tc.user {
				user = `["user"]`
			}
			if tc.want == callers {
				cookie = `["session=secret-cookie"]`
			}
			want := of[tc.want] + " " + user + " " + cookie
			discovery := of[tc.want] + " [] []" // is for nobody in particular
			if tc.want == callers {
				discovery = "[] [] []"
			}
			for got := range seen {
				if got != want && got != discovery {
					t.Errorf("the server saw %s, not %s", got, want)
				}
			}
			if !seen[want] || !seen[discovery] {
				t.Errorf("the server saw only %v", seen)
			}
			signature := token[strings.LastIndex(token, ".")+1:]
			files, err := os.ReadDir(folder)
			if err != nil || len(files) == 0 {
				t.Fatal(files, err)
			}
			stored := log.String()
			for _, file := range files {
				content, err := os.ReadFile(filepath.Join(folder, file.Name()))
				if err != nil {
					t.Fatal(err)
				}
				stored += string(content)
			}
			if !strings.Contains(stored, id) {
				t.Error("what was stored is not there to be looked at")
			}
			for _, secret := range []string{signature, "own-token-1", "secret-cookie"} {
				if strings.Contains(stored, secret) {
					t.Errorf("%.12s… was stored or logged", secret)
				}
			}
		})
	}
}

// A token of the gateway's own may change, and a server that refuses it is not the client's
// matter: a 401 would have it look for another token of its own.
func TestOwnTokenChanges(t *testing.T) {
	own := filepath.Join(t.TempDir(), "own")
	write := func(secret string) {
		if err := os.WriteFile(own, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	var mu sync.Mutex
	valid := "first"
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if req.Header.Get("Authorization") != "Bearer "+valid {
			w.Header().Set("WWW-Authenticate", "Bearer")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`))
	}))
	defer web.Close()
	i := authtest.New(t)
	c := newClientWith(t, serve(t, Config{URL: web.URL, Auth: jwtAuth(i), UpstreamToken: own}), withToken(i.Token()))
	ping := func() response { return c.post(`{"jsonrpc":"2.0","id":7,"method":"ping"}`) }
	if r := ping(); r.status != http.StatusOK {
		t.Fatalf("%d %s", r.status, r.body)
	}
	mu.Lock()
	valid = "second"
	mu.Unlock()
	r := ping()
	if r.status != http.StatusBadGateway || r.header.Get("WWW-Authenticate") != "" || !strings.Contains(r.body, `"id":7,"error"`) {
		t.Errorf("%d %v %s", r.status, r.header, r.body)
	}
	write("second")
	eventually(t, "the new token", func() bool { return ping().status == http.StatusOK })
	web.CloseClientConnections()
}

// Without authentication nobody is served who is not on this machine, unless it is said.
func TestOpenToAll(t *testing.T) {
	i := authtest.New(t)
	serveOn := func(edit func(*Config)) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := Config{Command: []string{os.Args[0]}, Store: "memory:", Support: protocol.Optional, Listen: "0.0.0.0:0", Ready: func(string) { cancel() }}
		edit(&c)
		return Serve(ctx, c)
	}
	for name, edit := range map[string]func(*Config){
		"IPv4":        func(*Config) {},
		"all":         func(c *Config) { c.Listen = ":0" },
		"single user": func(c *Config) { c.SingleUser = true },
		"jwt with no name that clients know it by": func(c *Config) { c.Auth = jwtAuth(i) },
		"jwt and a single user":                    func(c *Config) { c.Auth, c.SingleUser, c.Listen = jwtAuth(i), true, "127.0.0.1:0" },
		"a token that is not there": func(c *Config) {
			c.Listen, c.URL, c.UpstreamToken = "127.0.0.1:0", "http://127.0.0.1:1/", filepath.Join(t.TempDir(), "none")
		},
	} {
		if err := serveOn(edit); err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, edit := range map[string]func(*Config){
		"insecure":     func(c *Config) { c.Insecure = true },
		"IPv6 of here": func(c *Config) { c.Listen = "[::1]:0" },
		"localhost":    func(c *Config) { c.Listen = "localhost:0" },
		"jwt":          func(c *Config) { c.Auth = jwtAuth(i); c.Auth.Resource = authtest.Audience },
	} {
		if err := serveOn(edit); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
