package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/authn"
	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/task"
)

// Values of Config.UpstreamToken beside a file's name.
const (
	CallersToken = "caller" // the server is shown what the requestor's request says
	NoToken      = "none"   // it is shown no authorization
)

// guard returns what tells requestors apart; nil if nothing does. It refuses to serve everybody
// who can reach a listener unless that was asked for.
func (c *Config) guard(listener net.Listener, sink audit.Sink) (*authn.Guard, error) {
	at, err := netip.ParseAddrPort(listener.Addr().String())
	local := err == nil && at.Addr().IsLoopback()
	if c.Auth.Mode == authn.None {
		if !local && !c.Insecure {
			return nil, fmt.Errorf("without authentication whoever reaches %s could use the server: choose an --auth, or say --insecure", listener.Addr())
		}
		return nil, nil //nolint:nilnil // there is none, and nothing is wrong
	}
	if c.SingleUser {
		return nil, errors.New("--single-user says that all requestors are one, and --auth that they are not")
	}
	auth := c.Auth
	auth.Audit, auth.Logger, auth.PlainHTTP = sink, c.Logger, c.Insecure
	for _, scopes := range c.Scopes {
		auth.Offered = append(auth.Offered, strings.Fields(scopes)...)
	}
	if auth.Mode == authn.JWT && auth.Resource == "" {
		host, _, err := net.SplitHostPort(c.Listen)
		if err != nil || !local {
			return nil, errors.New("clients reach the server by another name than it knows: --resource says by which URL")
		}
		scheme := "http://"
		if c.Guard.TLS != nil {
			scheme = "https://"
		}
		auth.Resource = scheme + net.JoinHostPort(host, fmt.Sprint(at.Port())) + "/mcp"
	}
	return authn.New(auth)
}

// principal returns whose request one is.
func (c *Config) principal() func(*http.Request) (task.Principal, bool) {
	if c.SingleUser {
		return func(*http.Request) (task.Principal, bool) { return c.Principal, true }
	}
	return wire.TokenPrincipal
}

// upstreamToken returns what UpstreamToken is if nothing is said: a token that was made for
// the gateway is not passed on (MCP, Authorization: token passthrough).
func (c *Config) upstreamToken() string {
	switch {
	case c.UpstreamToken != "":
		return c.UpstreamToken
	case c.Auth.Mode == authn.None:
		return CallersToken
	}
	return NoToken
}

// withheld returns the headers of requests that the server at the URL is not shown: those
// that speak for a requestor.
func (c *Config) withheld() []string {
	if c.upstreamToken() == CallersToken {
		return nil
	}
	names := []string{"Authorization", "Cookie"}
	if c.Auth.Mode == authn.Header {
		names = append(names, c.Auth.Header)
	}
	return names
}

// web returns what reaches the server at the URL; nil for what does by default.
func (c *Config) web() (http.RoundTripper, error) {
	token := c.upstreamToken()
	if token == CallersToken || token == NoToken {
		return nil, nil //nolint:nilnil // the default will do
	}
	target, err := url.Parse(c.URL)
	if err != nil {
		return nil, errors.New("the URL of the server is malformed") // not which: it may have secrets
	}
	secret := authn.ReadSecret(token)
	if _, err := secret.Get(); err != nil {
		return nil, fmt.Errorf("the file of the server's token: %w", err)
	}
	return &ownToken{target: target, secret: secret}, nil
}

// ownToken authorizes requests to a server with the gateway's own token, which may change.
type ownToken struct {
	target *url.URL
	secret *authn.Secret
}

// RoundTrip implements http.RoundTripper.
func (t *ownToken) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != t.target.Scheme || req.URL.Host != t.target.Host { // a redirect elsewhere
		return http.DefaultTransport.RoundTrip(req)
	}
	secret, err := t.secret.Get()
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, fmt.Errorf("the file of the server's token: %w", err)
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+secret)
	return http.DefaultTransport.RoundTrip(req)
}
