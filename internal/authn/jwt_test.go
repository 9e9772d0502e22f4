package authn_test

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck/internal/authn"
	"github.com/coatcheck/coatcheck/internal/authn/authtest"
)

// jwtConfig is that of a server which trusts an issuer.
func jwtConfig(i *authtest.Issuer) authn.Config {
	return authn.Config{Mode: authn.JWT, Issuers: []string{i.URL}, Resource: authtest.Audience}
}

// A token is what its issuer says, or nothing (SEC-1).
func TestJWT(t *testing.T) {
	i, other := authtest.New(t), authtest.New(t)
	g := newGuard(t, jwtConfig(i))
	long := strings.Repeat("x", 1025)
	for _, tc := range []struct {
		name, token string
		who         string // "" for 401
	}{
		{"valid", i.Token(), i.URL + "|alice|app"},
		{"another client", i.Token(authtest.Client("cli")), i.URL + "|alice|cli"},
		{"azp", i.Token(authtest.Claim{Name: "client_id"}, authtest.Claim{Name: "azp", Value: "web"}), i.URL + "|alice|web"},
		{"no client", i.Token(authtest.Claim{Name: "client_id"}), i.URL + "|alice|"},
		{"no subject", i.Token(authtest.Claim{Name: "sub"}), i.URL + "||app"},
		{"separator in the subject", i.Token(authtest.Subject("a|b")), i.URL + "|a%7Cb|app"},
		{"one audience of several", i.Token(authtest.For("x", authtest.Audience)), i.URL + "|alice|app"},
		{"within the clock skew", i.Token(authtest.Claim{Name: "exp", Value: time.Now().Add(-20 * time.Second).Unix()}), i.URL + "|alice|app"},
		{"early, within the clock skew", i.Token(authtest.Claim{Name: "nbf", Value: time.Now().Add(20 * time.Second).Unix()}), i.URL + "|alice|app"},

		{"nobody", i.Token(authtest.Claim{Name: "sub"}, authtest.Claim{Name: "client_id"}), ""},
		{"a number as subject", i.Token(authtest.Claim{Name: "sub", Value: 7}), ""},
		{"a number as client", i.Token(authtest.Claim{Name: "client_id", Value: 7}), ""},
		{"a subject no decoder can tell", i.Token(authtest.Subject("a\ufffd")), ""},
		{"a control character", i.Token(authtest.Subject("a\x00")), ""},
		{"a long subject", i.Token(authtest.Subject(long)), ""},
		{"subject in other letters", i.Token(authtest.Claim{Name: "sub"}, authtest.Claim{Name: "client_id"}, authtest.Claim{Name: "Sub", Value: "alice"}), ""},
		{"expired", i.Token(authtest.Expired()), ""},
		{"beyond the clock skew", i.Token(authtest.Claim{Name: "exp", Value: time.Now().Add(-40 * time.Second).Unix()}), ""},
		{"no expiry", i.Token(authtest.Claim{Name: "exp"}), ""},
		{"expiry is a string", i.Token(authtest.Claim{Name: "exp", Value: "later"}), ""},
		{"not yet valid", i.Token(authtest.NotYet()), ""},
		{"wrong audience", i.Token(authtest.For("https://elsewhere.test/mcp")), ""},
		{"audience with a slash", i.Token(authtest.For(authtest.Audience + "/")), ""},
		{"no audience", i.Token(authtest.Claim{Name: "aud"}), ""},
		{"another issuer", other.Token(), ""},
		{"another issuer that says it is this one", other.Token(authtest.Claim{Name: "iss", Value: i.URL}), ""},
		{"issuer with a slash", i.Token(authtest.Claim{Name: "iss", Value: i.URL + "/"}), ""},
		{"no issuer", i.Token(authtest.Claim{Name: "iss"}), ""},
		{"a list of issuers", i.Token(authtest.Claim{Name: "iss", Value: []string{i.URL}}), ""},
		{"forged", i.Forged(), ""},
		{"unsigned", i.Unsigned(), ""},
		{"scope is a number", i.Token(authtest.Claim{Name: "scope", Value: 1}), ""},
		{"unknown kid", i.WithHeader("kid", "none"), ""},
		{"kid is a number", i.WithHeader("kid", 1), ""},
		{"critical extension", i.WithHeader("crit", []string{"x"}), ""},
		{"an unknown algorithm", i.WithHeader("alg", "XX"), ""},
		{"no kid", i.WithHeader("kid", nil), i.URL + "|alice|app"},
		{"nothing", "", ""},
		{"two parts", "a.b", ""},
		{"cut", i.Token()[:40], ""},
		{"signature cut", strings.TrimRight(i.Token(), "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"), ""},
		{"too long", i.Token(authtest.Claim{Name: "x", Value: strings.Repeat("x", 20<<10)}), ""},
	} {
		s := sendToken(g, tc.token)
		switch {
		case tc.who == "" && (s.status != http.StatusUnauthorized || s.info != nil):
			t.Errorf("%s: %d, %+v", tc.name, s.status, s.info)
		case tc.who == "" && !strings.Contains(s.header.Get("WWW-Authenticate"), `error="invalid_token"`):
			t.Errorf("%s: %s", tc.name, s.header.Get("WWW-Authenticate"))
		case tc.who != "" && (s.status != http.StatusOK || s.who != tc.who):
			t.Errorf("%s: %d, %q, %s", tc.name, s.status, s.who, s.header.Get("WWW-Authenticate"))
		}
	}
	for n, token := range i.Symmetric() {
		if s := sendToken(g, token); s.status != http.StatusUnauthorized || s.info != nil {
			t.Errorf("HS256 with the public key, form %d: %d", n, s.status)
		}
	}

	token := i.Token(authtest.Scope("read write"))
	s := sendToken(g, token)
	if s.info == nil || s.info.UserID != "alice" || s.info.Extra["iss"] != i.URL || s.info.Extra["client_id"] != "app" ||
		strings.Join(s.info.Scopes, ",") != "read,write" || time.Until(s.info.Expiration) < 50*time.Minute {
		t.Errorf("%+v", s.info)
	}
	for _, scp := range []any{"read write", []string{"read", "write"}} {
		if s := sendToken(g, i.Token(authtest.Claim{Name: "scp", Value: scp})); s.info == nil || strings.Join(s.info.Scopes, ",") != "read,write" {
			t.Errorf("scp %v: %+v", scp, s.info)
		}
	}
	for _, edit := range []func(http.Header){
		func(h http.Header) { h.Add("Authorization", "Bearer "+token); h.Add("Authorization", "Bearer "+token) },
		func(h http.Header) { h.Set("Authorization", token) },
		func(h http.Header) { h.Set("Authorization", "Basic "+token) },
		func(h http.Header) { h.Set("Authorization", "Bearer "+token+" "+token) },
		func(h http.Header) { h.Set("Authorization", "Bearer") },
		func(h http.Header) { h.Set("Authorization", "Bearer "+token+",") },
		func(h http.Header) { h.Set("Cookie", "token="+token) },
	} {
		if s := send(g, func(req *http.Request) { edit(req.Header) }); s.status != http.StatusUnauthorized || s.info != nil {
			t.Errorf("%d, %+v", s.status, s.info)
		}
	}
	for _, scheme := range []string{"bearer ", "BEARER   "} {
		if s := send(g, func(req *http.Request) { req.Header.Set("Authorization", scheme+token) }); s.status != http.StatusOK {
			t.Errorf("%q: %d", scheme, s.status)
		}
	}
	if s := send(g, func(req *http.Request) { req.URL.RawQuery = "access_token=" + token }); s.status != http.StatusUnauthorized {
		t.Errorf("in the query: %d", s.status)
	}
}

// Keys are fetched when they are needed, and again when a token has one that is not known: but
// not for each.
func TestKeyRotation(t *testing.T) {
	i, at := authtest.New(t), newClock()
	c := jwtConfig(i)
	c.Now, c.JWKS = at.now, i.URL+"/keys"
	g := newGuard(t, c)
	if i.Asked() != 0 {
		t.Error("keys were fetched before they were needed")
	}
	check := func(what, token string, status, asked int) {
		t.Helper()
		if s := sendToken(g, token); s.status != status || i.Asked() != asked {
			t.Errorf("%s: %d, keys were asked for %d times, not %d", what, s.status, i.Asked(), asked)
		}
	}
	old := i.Token()
	check("the first", old, http.StatusOK, 1)
	check("the second", i.Token(), http.StatusOK, 1)
	for range 100 {
		check("an unknown key, soon after", i.WithHeader("kid", "none"), http.StatusUnauthorized, 1)
		check("no key named, soon after", i.WithHeader("kid", nil, authtest.Claim{Name: "iss", Value: "x"}), http.StatusUnauthorized, 1)
	}
	at.pass(time.Minute)
	for range 100 {
		check("an unknown key", i.WithHeader("kid", "none"), http.StatusUnauthorized, 2)
		check("forged", i.Forged(), http.StatusUnauthorized, 2)
	}
	i.Rotate()
	check("a new key, too soon", i.Token(), http.StatusUnauthorized, 2)
	at.pass(time.Minute)
	check("a new key", i.Token(), http.StatusOK, 3)
	check("the old key", old, http.StatusUnauthorized, 3)
	i.Rotate()
	at.pass(time.Minute)
	check("a new key that is not named", i.WithHeader("kid", nil), http.StatusOK, 4)

	i.Down(true)
	at.pass(15 * time.Minute) // time to refresh
	check("the issuer is down", i.Token(), http.StatusOK, 5)
	check("the issuer is down, soon after", i.Token(), http.StatusOK, 5)
	i.Down(false)
	i.Rotate()
	revoked := i.Token()
	at.pass(time.Minute)
	check("the issuer is back", i.Token(), http.StatusOK, 6)
	i.Rotate()
	at.pass(11 * time.Minute)
	check("a key that is no longer there, when keys are refreshed", revoked, http.StatusUnauthorized, 7)

	i.Down(true)
	at.pass(25 * time.Hour)
	long := i.Token(authtest.Claim{Name: "exp", Value: time.Now().Add(1000 * time.Hour).Unix()})
	check("the issuer is down for a day", long, http.StatusServiceUnavailable, 8)
	check("the issuer is down for a day, soon after", long, http.StatusServiceUnavailable, 8)
	i.Down(false)
	at.pass(3 * time.Second)
	check("the issuer is back after a day", long, http.StatusOK, 9)
}

// Requests that need the same keys at the same time cause one fetch, also those of a new key.
func TestKeysOnce(t *testing.T) {
	i, at := authtest.New(t), newClock()
	c := jwtConfig(i)
	c.Now = at.now
	g := newGuard(t, c)
	for round := 1; round <= 3; round++ {
		token := i.Token()
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if s := sendToken(g, token); s.status != http.StatusOK {
					t.Errorf("round %d: %d", round, s.status)
				}
			})
		}
		all.Wait()
		if i.Asked() != round {
			t.Errorf("round %d: keys were asked for %d times", round, i.Asked())
		}
		i.Rotate()
		at.pass(time.Minute)
	}
}

// Each algorithm verifies with a key of its kind, and only those of the list.
func TestAlgorithms(t *testing.T) {
	set, tokens := allAlgorithms(t)
	file := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(file, set, 0o600); err != nil {
		t.Fatal(err)
	}
	c := authn.Config{Mode: authn.JWT, Issuers: []string{"https://issuer.test"}, JWKS: file, Resource: authtest.Audience}
	g := newGuard(t, c)
	if len(tokens) != len(authn.Algorithms) {
		t.Fatalf("%d tokens", len(tokens))
	}
	for name, token := range tokens {
		if s := sendToken(g, token); s.status != http.StatusOK || s.who != "https://issuer.test|alice|" {
			t.Errorf("%s: %d %s", name, s.status, s.who)
		}
		c.Algorithms = []string{name}
		only := newGuard(t, c)
		for other, token := range tokens {
			if s := sendToken(only, token); (s.status == http.StatusOK) != (other == name) {
				t.Errorf("only %s: %s: %d", name, other, s.status)
			}
		}
	}
	for _, bad := range []string{"none", "HS256", "hs256", "rs256", ""} {
		c.Algorithms = []string{"RS256", bad}
		if _, err := authn.New(c); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// A file of keys may change.
func TestKeyFile(t *testing.T) {
	i, at := authtest.New(t), newClock()
	file := filepath.Join(t.TempDir(), "keys.json")
	write := func(content []byte) {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := jwtConfig(i)
	c.JWKS, c.Now = file, at.now
	if _, err := authn.New(c); err == nil {
		t.Error("a file that is not there was taken")
	}
	for _, bad := range []string{``, `{}`, `{"keys":[]}`, `[]`, `{"keys":[{"kty":"oct","k":"c2VjcmV0","kid":"key-1","alg":"HS256"}]}`} {
		write([]byte(bad))
		if _, err := authn.New(c); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
	write(i.Keys())
	g := newGuard(t, c)
	old := i.Token()
	if s := sendToken(g, old); s.status != http.StatusOK {
		t.Error(s.status)
	}
	i.Rotate()
	write(i.Keys())
	at.pass(2 * time.Second)
	if s := sendToken(g, i.Token()); s.status != http.StatusOK {
		t.Error(s.status)
	}
	if s := sendToken(g, old); s.status != http.StatusUnauthorized {
		t.Error(s.status)
	}
	if i.Asked() != 0 {
		t.Error("the issuer was asked")
	}
}

// Several issuers have their own keys, and the same subject of two is two principals.
func TestIssuers(t *testing.T) {
	a, b, stranger := authtest.New(t), authtest.New(t), authtest.New(t)
	g := newGuard(t, authn.Config{Mode: authn.JWT, Issuers: []string{a.URL, b.URL}, Resource: authtest.Audience})
	for _, i := range []*authtest.Issuer{a, b} {
		if s := sendToken(g, i.Token()); s.who != i.URL+"|alice|app" {
			t.Errorf("%d %s", s.status, s.who)
		}
	}
	for _, token := range []string{
		stranger.Token(), a.Token(authtest.Claim{Name: "iss", Value: b.URL}), b.Token(authtest.Claim{Name: "iss", Value: a.URL}),
	} {
		if s := sendToken(g, token); s.status != http.StatusUnauthorized {
			t.Error(s.status)
		}
	}
}

// The issuer's metadata must be its own, and lead to keys that nobody in between can change.
func TestDiscovery(t *testing.T) {
	i := authtest.New(t)
	for _, tc := range []struct {
		name, path string
		metadata   func(self string) string
		status     int
	}{
		{"OpenID", "/tenant/.well-known/openid-configuration", func(self string) string { return `{"issuer":"` + self + `","jwks_uri":"` + i.URL + `/keys"}` }, http.StatusOK},
		{"RFC 8414", "/.well-known/oauth-authorization-server/tenant", func(self string) string { return `{"issuer":"` + self + `","jwks_uri":"` + i.URL + `/keys"}` }, http.StatusOK},
		{"another's", "/tenant/.well-known/openid-configuration", func(string) string { return `{"issuer":"` + i.URL + `","jwks_uri":"` + i.URL + `/keys"}` }, http.StatusServiceUnavailable},
		{"no keys", "/tenant/.well-known/openid-configuration", func(self string) string { return `{"issuer":"` + self + `"}` }, http.StatusServiceUnavailable},
		{"keys over http", "/tenant/.well-known/openid-configuration", func(self string) string { return `{"issuer":"` + self + `","jwks_uri":"http://192.0.2.1/keys"}` }, http.StatusServiceUnavailable},
		{"a file", "/tenant/.well-known/openid-configuration", func(self string) string { return `{"issuer":"` + self + `","jwks_uri":"file:///etc/keys"}` }, http.StatusServiceUnavailable},
		{"no JSON", "/tenant/.well-known/openid-configuration", func(string) string { return `<html>` }, http.StatusServiceUnavailable},
		{"nothing", "/elsewhere", func(string) string { return `` }, http.StatusServiceUnavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var self string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Connection", "close")
				if req.URL.Path != tc.path {
					http.NotFound(w, req)
					return
				}
				_, _ = w.Write([]byte(tc.metadata(self)))
			}))
			defer server.Close()
			self = server.URL + "/tenant"
			g := newGuard(t, authn.Config{Mode: authn.JWT, Issuers: []string{self}, Resource: authtest.Audience})
			if s := sendToken(g, i.Token(authtest.Claim{Name: "iss", Value: self})); s.status != tc.status {
				t.Errorf("%d", s.status)
			}
		})
	}
}

// FuzzToken sends anything as an Authorization header: it is refused.
func FuzzToken(f *testing.F) {
	i := authtest.New(f)
	g := newGuard(f, jwtConfig(i))
	valid := i.Token()
	for _, seed := range []string{
		"", "Bearer", "Bearer ", "bearer " + i.Forged(), "Bearer " + i.Unsigned(), "Bearer " + i.Symmetric()[0], "Basic YTpi", "Bearer a.b.c",
		"Bearer " + base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","kid":"key-1"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"`+i.URL+`"}`)) + ".AAAA",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		s := send(g, func(req *http.Request) { req.Header["Authorization"] = []string{value} })
		if s.info != nil || s.status != http.StatusUnauthorized && s.status != http.StatusServiceUnavailable {
			t.Errorf("%q: %d, %+v", value, s.status, s.info)
		}
		if s := sendToken(g, valid); s.status != http.StatusOK {
			t.Errorf("a valid one, after %q: %d", value, s.status)
		}
	})
}
