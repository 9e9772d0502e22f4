package authn

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/coatcheck/coatcheck/task"
)

// newHeader verifies requests by what a proxy says in a header.
func newHeader(c *Config) (func(*http.Request) (*auth.TokenInfo, error), error) {
	name := http.CanonicalHeaderKey(c.Header)
	switch {
	case !isScope(name) || strings.ContainsAny(name, "()<>@,;:/[]?={} "):
		return nil, fmt.Errorf("%q is no name of a header", c.Header)
	case len(c.TrustedProxies) == 0:
		return nil, errors.New("a header says who somebody is only if a trusted proxy sets it: name the proxy's addresses")
	case len(c.Scopes) > 0:
		return nil, errors.New("a header has no scopes")
	case ownHeaders[name]:
		return nil, fmt.Errorf("the header %s has a meaning of its own", name)
	}
	return func(req *http.Request) (*auth.TokenInfo, error) {
		if at, ok := remote(req); !ok || !c.trusts(at) {
			return nil, errMissing // whatever it says
		}
		values := req.Header[name]
		if len(values) == 0 {
			return nil, errMissing
		}
		who := strings.TrimSpace(values[0])
		if len(values) > 1 || who == "" || strings.Contains(who, ",") { // proxies join what came twice
			return nil, errInvalid
		}
		return newInfo(task.Identity{Subject: who}, nil, time.Time{})
	}, nil
}

// ownHeaders cannot name anybody.
var ownHeaders = map[string]bool{
	"": true, "Host": true, "Content-Type": true, "Content-Length": true, "Accept": true, "Connection": true, "Origin": true,
	"Mcp-Session-Id": true, "Mcp-Protocol-Version": true, "X-Forwarded-For": true, "Forwarded": true,
}

// remote returns the address at the other end of a request's connection.
func remote(req *http.Request) (netip.Addr, bool) { return address(req.RemoteAddr) }

// address reads an IP address, with or without a port.
func address(s string) (netip.Addr, bool) {
	s = strings.TrimSpace(s)
	if at, err := netip.ParseAddrPort(s); err == nil {
		return at.Addr().Unmap().WithZone(""), true
	}
	at, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	return at.Unmap().WithZone(""), err == nil
}

func (c *Config) trusts(at netip.Addr) bool {
	for _, prefix := range c.TrustedProxies {
		if prefix.Contains(at) {
			return true
		}
	}
	return false
}

// Address returns where a request comes from: the other end of its connection, or, if that is
// a trusted proxy, the last address in X-Forwarded-For that is not.
func (g *Guard) Address(req *http.Request) string { return Address(g.config.TrustedProxies)(req) }

// Address is Guard.Address without a Guard.
func Address(trusted []netip.Prefix) func(*http.Request) string {
	c := &Config{TrustedProxies: trusted}
	return func(req *http.Request) string {
		at, ok := remote(req)
		if !ok {
			if host, _, err := net.SplitHostPort(req.RemoteAddr); err == nil {
				return host
			}
			return req.RemoteAddr
		}
		if !c.trusts(at) {
			return at.String()
		}
		hops := strings.Split(strings.Join(req.Header["X-Forwarded-For"], ","), ",")
		for _, hop := range slices.Backward(hops) {
			before, ok := address(hop)
			if !ok { // nothing before it can be believed
				break
			}
			if at = before; !c.trusts(at) {
				break
			}
		}
		return at.String()
	}
}

// network is what an address is counted by: IPv6 addresses are given out by the /64.
func network(address string) string {
	at, err := netip.ParseAddr(address)
	if err != nil || at.Is4() {
		return address
	}
	prefix, err := at.Prefix(64)
	if err != nil {
		return address
	}
	return prefix.String()
}
