package authn_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/coatcheck/coatcheck/internal/authn"
)

func prefixes(t testing.TB, all ...string) []netip.Prefix {
	t.Helper()
	var out []netip.Prefix
	for _, s := range all {
		prefix, err := netip.ParsePrefix(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, prefix)
	}
	return out
}

var everywhere = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}

// A header names somebody if a trusted proxy sets it, once.
func TestHeader(t *testing.T) {
	g := newGuard(t, authn.Config{Mode: authn.Header, Header: "x-user", TrustedProxies: prefixes(t, "10.0.0.0/8", "2001:db8::/32")})
	for _, tc := range []struct {
		from   string
		values []string
		who    string
	}{
		{"10.1.2.3:4", []string{"alice"}, "alice"},
		{"[2001:db8::1]:4", []string{" alice@example.com "}, "alice@example.com"},
		{"[::ffff:10.1.2.3]:4", []string{"Zoë"}, "Zoë"},
		{"10.1.2.3:4", []string{"a|b"}, "a%7Cb"},
		{"10.1.2.3:4", nil, ""},
		{"10.1.2.3:4", []string{}, ""},
		{"10.1.2.3:4", []string{""}, ""},
		{"10.1.2.3:4", []string{" "}, ""},
		{"10.1.2.3:4", []string{"alice", "alice"}, ""},
		{"10.1.2.3:4", []string{"alice", ""}, ""},
		{"10.1.2.3:4", []string{"mallory, alice"}, ""},
		{"10.1.2.3:4", []string{"al\x00ice"}, ""},
		{"10.1.2.3:4", []string{"al\xffice"}, ""},
		{"10.1.2.3:4", []string{strings.Repeat("x", 1025)}, ""},
		{"11.1.2.3:4", []string{"alice"}, ""},
		{"[::ffff:11.1.2.3]:4", []string{"alice"}, ""},
		{"[2001:db9::1]:4", []string{"alice"}, ""},
		{"@", []string{"alice"}, ""},
		{"", []string{"alice"}, ""},
	} {
		s := send(g, func(req *http.Request) {
			req.RemoteAddr = tc.from
			req.Header["X-User"] = tc.values
			req.Header.Set("Authorization", "Bearer alice") // means nothing here
		})
		if s.who != tc.who || (s.status == http.StatusOK) != (tc.who != "") || s.status != http.StatusOK && s.status != http.StatusUnauthorized {
			t.Errorf("%s, %q: %d %q", tc.from, tc.values, s.status, s.who)
		}
	}
	s := send(g, func(req *http.Request) {
		req.RemoteAddr = "11.1.2.3:4"
		req.Header.Set("X-User", "alice")
		req.Header.Set("X-Forwarded-For", "10.1.2.3") // anybody can say so
	})
	if s.status != http.StatusUnauthorized {
		t.Error(s.status)
	}
}

// The address of a request is the last one that no trusted proxy has.
func TestAddress(t *testing.T) {
	for _, tc := range []struct {
		from  string
		lines []string
		want  string
	}{
		{"192.0.2.1:5", nil, "192.0.2.1"},
		{"192.0.2.1:5", []string{"198.51.100.1"}, "192.0.2.1"},
		{"10.0.0.1:5", nil, "10.0.0.1"},
		{"10.0.0.1:5", []string{"198.51.100.1"}, "198.51.100.1"},
		{"[::ffff:10.0.0.1]:5", []string{"198.51.100.1"}, "198.51.100.1"},
		{"10.0.0.1:5", []string{"198.51.100.9, 198.51.100.1, 10.0.0.2"}, "198.51.100.1"},
		{"10.0.0.1:5", []string{"198.51.100.9", "198.51.100.1,10.0.0.2"}, "198.51.100.1"},
		{"10.0.0.1:5", []string{"198.51.100.1", "10.0.0.2"}, "198.51.100.1"},
		{"10.0.0.1:5", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"10.0.0.1:5", []string{"198.51.100.1:99"}, "198.51.100.1"},
		{"10.0.0.1:5", []string{"[2001:db8::1]:99"}, "2001:db8::1"},
		{"10.0.0.1:5", []string{"[2001:db8::1]"}, "2001:db8::1"},
		{"10.0.0.1:5", []string{"fe80::1%eth0"}, "fe80::1"},
		{"10.0.0.1:5", []string{"198.51.100.1, unknown, 10.0.0.2"}, "10.0.0.2"},
		{"10.0.0.1:5", []string{"198.51.100.1,"}, "10.0.0.1"},
		{"10.0.0.1:5", []string{""}, "10.0.0.1"},
		{"pipe", []string{"198.51.100.1"}, "pipe"},
	} {
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.RemoteAddr = tc.from
		req.Header["X-Forwarded-For"] = tc.lines
		if got := authn.Address(prefixes(t, "10.0.0.0/8"))(req); got != tc.want {
			t.Errorf("%s %q: %s, not %s", tc.from, tc.lines, got, tc.want)
		}
		if got := authn.Address(nil)(req); tc.from[0] == '1' && got != strings.TrimSuffix(tc.from, ":5") {
			t.Errorf("%s %q, without proxies: %s", tc.from, tc.lines, got)
		}
	}
}

// FuzzHeaders sends anything that a proxy and those before it could: nobody is let through whom
// the proxy did not name, and the address is one.
func FuzzHeaders(f *testing.F) {
	for _, seed := range [][3]string{
		{"10.0.0.1:1", "alice", "198.51.100.1, 10.0.0.2"}, {"192.0.2.1:1", "alice", "10.0.0.1"}, {"", "", ""}, {"[::1]:1", "a,b", ",,"},
		{"10.0.0.1:1", "\xff", "[::1%25]:1"}, {"10.0.0.1:1", "al\nice", "[[::1]]"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	g := newGuard(f, authn.Config{Mode: authn.Header, Header: "X-User", TrustedProxies: prefixes(f, "10.0.0.0/8")})
	f.Fuzz(func(t *testing.T, from, user, forwarded string) {
		var address string
		s := send(g, func(req *http.Request) {
			req.RemoteAddr = from
			req.Header["X-User"] = []string{user}
			req.Header["X-Forwarded-For"] = []string{forwarded, forwarded}
			address = g.Address(req)
		})
		if s.status == http.StatusOK && (s.who == "" || !strings.Contains(from, "10.") || s.info.UserID != strings.TrimSpace(user)) {
			t.Errorf("%q from %q: %q", user, from, s.who)
		}
		if at, err := netip.ParseAddr(address); err != nil && !strings.Contains(from, address) || err == nil && at.Zone() != "" {
			t.Errorf("%q, %q: address %q", from, forwarded, address)
		}
	})
}
