package coatcheck_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
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

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/internal/authn"
	"github.com/coatcheck/coatcheck/internal/authn/authtest"
	"github.com/coatcheck/coatcheck/internal/gateway"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// guarded are the faces whose requestors have tokens: what serves them, and how.
var guarded = []struct {
	name string
	open func(t *testing.T, s settings, auth authn.Config) (url string)
}{
	{"http", openGuarded},
	{"gateway to a command", func(t *testing.T, s settings, auth authn.Config) string {
		t.Setenv(plainServer, "1")
		return openGuardedGateway(t, s, auth, gateway.Config{Command: []string{os.Args[0]}})
	}},
	{"gateway to a URL", func(t *testing.T, s settings, auth authn.Config) string {
		return openGuardedGateway(t, s, auth, gateway.Config{URL: openPlainURL(t)})
	}},
}

// operationScopes are what tokens need to name.
var operationScopes = map[coatcheck.Operation]string{
	coatcheck.Create: "tasks:create", coatcheck.Read: "tasks:read", coatcheck.Cancel: "tasks:cancel",
}

func openGuarded(t *testing.T, s settings, auth authn.Config) string {
	guard, err := authn.New(auth)
	if err != nil {
		t.Fatal(err)
	}
	opts := s.options()
	opts.Scopes = operationScopes
	server := newServer()
	rt, err := coatcheck.Open(t.Context(), server, opts)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(guard.Handler(rt.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))))
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
		if err := rt.Close(context.Background()); err != nil {
			t.Error(err)
		}
		for session := range server.Sessions() {
			_ = session.Close()
		}
	})
	return web.URL
}

func openGuardedGateway(t *testing.T, s settings, auth authn.Config, c gateway.Config) string {
	c.Auth, c.Scopes = auth, operationScopes
	return openGatewayURL(t, s, c)
}

// answered is what an HTTP request came to.
type answered struct {
	status    int
	challenge string
	session   string
	reply
	body string
}

// ask sends one message with a token, in a session, and reads one answer.
func ask(t *testing.T, url, token, session, method, message string) answered {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
		req.Header.Set("Mcp-Protocol-Version", protocol.Version20251125)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	a := answered{status: resp.StatusCode, challenge: resp.Header.Get("Www-Authenticate"), session: resp.Header.Get("Mcp-Session-Id")}
	if method == http.MethodGet && a.status == http.StatusOK {
		return a // a stream without end
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(body) { // of a stream
		if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok && protocol.Get(data, "id") != nil && protocol.Get(data, "method") == nil {
			body = bytes.TrimSpace(data)
		}
	}
	a.body = string(body)
	if m, err := protocol.ParseMessage(body); err == nil {
		a.Result = bytes.Clone(m.Result)
		if m.Error != nil {
			a.Error = &protocol.Error{Data: protocol.Get(m.Error, "data")}
			_, _ = fmt.Sscan(string(protocol.Get(m.Error, "code")), &a.Error.Code)
			a.Error.Message, _ = protocol.Unquote(protocol.Get(m.Error, "message"))
		}
	}
	return a
}

// begin initializes a session and returns its id.
func begin(t *testing.T, url, token string) string {
	t.Helper()
	a := ask(t, url, token, "", http.MethodPost,
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"t","version":"1"}}}`)
	if a.status != http.StatusOK || a.session == "" {
		t.Fatalf("initialize: HTTP %d %s", a.status, a.body)
	}
	ask(t, url, token, a.session, http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return a.session
}

// verdict is how an operation is answered.
type verdict string

const (
	served    verdict = "served"
	unknown   verdict = "unknown"      // the task does not exist: -32602
	nothing   verdict = "nothing"      // served, with nothing of the owner's in it
	noSession verdict = "no session"   // the session does not exist: 404
	noToken   verdict = "unauthorized" // 401 with a challenge
	noScope   verdict = "scope"        // 403, -32033 and a challenge
)

func verdictOf(a answered, owners []string) verdict {
	switch {
	case a.status == http.StatusUnauthorized && strings.HasPrefix(a.challenge, "Bearer ") && strings.Contains(a.challenge, "resource_metadata="):
		return noToken
	case a.status == http.StatusForbidden && strings.Contains(a.challenge, `error="insufficient_scope"`) && a.Error != nil && a.Error.Code == protocol.CodeInsufficientScope:
		return noScope
	case a.status == http.StatusNotFound:
		return noSession
	case a.Error != nil && a.Error.Code == protocol.CodeInvalidParams && strings.HasSuffix(a.Error.Message, "Task not found"):
		return unknown
	case a.Error != nil || a.status >= 300:
		return verdict(fmt.Sprintf("HTTP %d %s", a.status, a.body))
	}
	for _, id := range owners {
		if strings.Contains(a.body, id) {
			return served
		}
	}
	if a.body == "" {
		return served
	}
	return nothing
}

// SEC-1, SEC-2, C.6, C.8: who may do what. Each operation is tried on a task of alice's by
// each kind of requestor, in a session of its own, and in hers.
func TestWhoMayDoWhat(t *testing.T) {
	one, two := authtest.New(t), authtest.New(t)
	allScopes := authtest.Scope("tasks:create tasks:read tasks:cancel")
	auth := authn.Config{
		Mode: authn.JWT, Issuers: []string{one.URL, two.URL}, Resource: authtest.Audience,
		Failures: coatcheck.Rate{PerSecond: coatcheck.NoLimit},
	}
	operations := []string{"create", "key", "get", "result", "list", "answer", "cancel", "session", "listen", "end session"}
	callers := []struct {
		name     string
		token    string
		stranger bool               // has a session of its own, and none of alice's things
		want     map[string]verdict // by operation; "" for those not named
	}{
		{"other client", one.Token(allScopes, authtest.Client("other")), true, nil},
		{"other subject", one.Token(allScopes, authtest.Subject("mallory")), true, nil},
		{"other issuer", two.Token(allScopes), true, nil},
		{"no client", one.Token(allScopes, authtest.Claim{Name: "client_id"}), true, nil},
		{"no token", "", false, map[string]verdict{"": noToken}},
		{"expired", one.Token(allScopes, authtest.Expired()), false, map[string]verdict{"": noToken}},
		{"not valid yet", one.Token(allScopes, authtest.NotYet()), false, map[string]verdict{"": noToken}},
		{"wrong audience", one.Token(allScopes, authtest.For("https://elsewhere.test/")), false, map[string]verdict{"": noToken}},
		{"forged", one.Forged(allScopes), false, map[string]verdict{"": noToken}},
		{"unsigned", one.Unsigned(allScopes), false, map[string]verdict{"": noToken}},
		{"symmetric", one.Symmetric(allScopes)[0], false, map[string]verdict{"": noToken}},
		{"may not create", one.Token(authtest.Scope("tasks:read tasks:cancel")), false,
			map[string]verdict{"": served, "create": noScope, "key": noScope, "answer": noScope}},
		{"may not read", one.Token(authtest.Scope("tasks:create tasks:cancel")), false,
			map[string]verdict{"": served, "get": noScope, "result": noScope, "list": noScope}},
		{"may not cancel", one.Token(authtest.Scope("tasks:create tasks:read")), false,
			map[string]verdict{"": served, "cancel": noScope}},
		{"the owner", one.Token(allScopes), false, map[string]verdict{"": served}}, // last: it ends things
	}
	strangers := map[string]verdict{
		"create": served, "key": nothing, "get": unknown, "result": unknown, "list": nothing, "answer": unknown, "cancel": unknown,
		"session": noSession, "listen": noSession, "end session": noSession,
	}
	for _, f := range guarded {
		t.Run(f.name, func(t *testing.T) {
			url := f.open(t, settings{Database: "sqlite:" + filepath.Join(t.TempDir(), "tasks.db"), NoLimits: true, PushInput: true}, auth)
			alice := one.Token(allScopes)
			for _, caller := range callers {
				for _, operation := range operations {
					home := begin(t, url, alice)
					call := func(method, params string) answered {
						return ask(t, url, alice, home, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params))
					}
					idOf := func(a answered) string {
						id, ok := protocol.Unquote(protocol.Get(protocol.Get(a.Result, "task"), "taskId"))
						if !ok {
							t.Fatalf("create: HTTP %d %s", a.status, a.body)
						}
						return id
					}
					key := `"_meta":{"coatcheck/idempotency-key":"` + caller.name + operation + `"}`
					done := idOf(call("tools/call", `{"name":"echo","arguments":{},"task":{},`+key+`}`))
					if a := call("tasks/result", idParams(done)); a.Error != nil {
						t.Fatal(a.body)
					}
					open := idOf(call("tools/call", script("ask")))

					session := home
					if caller.stranger && strangers[operation] != noSession {
						session = begin(t, url, caller.token)
					}
					post := func(message string) answered { return ask(t, url, caller.token, session, http.MethodPost, message) }
					request := func(method, params string) answered {
						return post(fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":%q,"params":%s}`, method, params))
					}
					var got answered
					owners := []string{done, open}
					switch operation {
					case "create":
						got = request("tools/call", `{"name":"echo","arguments":{},"task":{}}`)
						if got.Error == nil && got.status == http.StatusOK {
							owners = []string{idOf(got)}
						}
					case "key":
						got = request("tools/call", `{"name":"echo","arguments":{},"task":{},`+key+`}`)
					case "get":
						got = request("tasks/get", idParams(done))
					case "result":
						got = request("tasks/result", idParams(done))
					case "list":
						got = request("tasks/list", `{}`)
					case "cancel":
						got = request("tasks/cancel", idParams(open))
					case "answer":
						got = post(fmt.Sprintf(`{"jsonrpc":"2.0","id":"coatcheck/%s/1/ABCDEFGH","result":{"action":"accept","content":{"n":1}}}`, open))
					case "session":
						got = request("ping", `{}`)
						if got.Error == nil && got.status == http.StatusOK {
							owners = []string{"result"}
						}
					case "listen":
						got = ask(t, url, caller.token, session, http.MethodGet, "")
					case "end session":
						got = ask(t, url, caller.token, session, http.MethodDelete, "")
					}
					want := cmp.Or(caller.want[operation], caller.want[""])
					if caller.stranger {
						want = strangers[operation]
					}
					if v := verdictOf(got, owners); v != want {
						t.Errorf("%s by %s: %s, want %s (HTTP %d %s)", operation, caller.name, v, want, got.status, got.body)
					}
					home = begin(t, url, alice) // hers may be over
					call("tasks/cancel", idParams(open))
				}
			}
		})
	}
}

// SEC-1: a token that was made anew, and one signed with a new key, are the same requestor's; a
// task stays with it in its next session.
func TestAPrincipalOutlivesItsTokensAndSessions(t *testing.T) {
	issuer := authtest.New(t)
	var later atomic.Int64 // an issuer's keys are not looked for at once again
	auth := authn.Config{
		Mode: authn.JWT, Issuers: []string{issuer.URL}, Resource: authtest.Audience,
		Now: func() time.Time { return time.Now().Add(time.Duration(later.Load())) },
	}
	scopes := authtest.Scope("tasks:create tasks:read tasks:cancel")
	for _, f := range guarded {
		t.Run(f.name, func(t *testing.T) {
			url := f.open(t, settings{Database: "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")}, auth)
			old := issuer.Token(scopes)
			created := ask(t, url, old, begin(t, url, old), http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{},"task":{}}}`)
			id, _ := protocol.Unquote(protocol.Get(protocol.Get(created.Result, "task"), "taskId"))
			issuer.Rotate()
			later.Add(int64(time.Minute))
			renewed := issuer.Token(scopes)
			got := ask(t, url, renewed, begin(t, url, renewed), http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tasks/result","params":`+idParams(id)+`}`)
			if got.Error != nil || protocol.Get(got.Result, "content") == nil {
				t.Errorf("HTTP %d %s", got.status, got.body)
			}
		})
	}
}

// The principal of a token is what the documentation's table says.
func TestWhatEqualsWhat(t *testing.T) {
	for name, tc := range map[string]struct {
		a, b  task.Identity
		equal bool
	}{
		"the same":              {task.Identity{Issuer: "i", Subject: "s", Client: "c"}, task.Identity{Issuer: "i", Subject: "s", Client: "c"}, true},
		"another issuer":        {task.Identity{Issuer: "i", Subject: "s", Client: "c"}, task.Identity{Issuer: "j", Subject: "s", Client: "c"}, false},
		"another subject":       {task.Identity{Issuer: "i", Subject: "s", Client: "c"}, task.Identity{Issuer: "i", Subject: "t", Client: "c"}, false},
		"another client":        {task.Identity{Issuer: "i", Subject: "s", Client: "c"}, task.Identity{Issuer: "i", Subject: "s", Client: "d"}, false},
		"no client":             {task.Identity{Issuer: "i", Subject: "s", Client: "c"}, task.Identity{Issuer: "i", Subject: "s"}, false},
		"no issuer":             {task.Identity{Issuer: "i", Subject: "s"}, task.Identity{Subject: "s"}, false},
		"a client, not subject": {task.Identity{Client: "x"}, task.Identity{Subject: "x"}, false},
		"another case":          {task.Identity{Subject: "Alice"}, task.Identity{Subject: "alice"}, false},
	} {
		if (tc.a.Principal() == tc.b.Principal()) != tc.equal {
			t.Errorf("%s: %q and %q", name, tc.a.Principal(), tc.b.Principal())
		}
	}
}
