package gateway

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/protocol"
)

// Guard says how the HTTP endpoint guards itself. The zero Guard has all defaults.
type Guard struct {
	// Origins are those of web pages that may use the endpoint, as ParseOrigin returns them.
	// Pages of the endpoint's own origin may always, and those of a loopback address if they
	// reach the endpoint at one.
	Origins []string
	// Hosts are the names, with a port or for any, under which the endpoint may be reached.
	// Default: any, but at a loopback address only the names of one.
	Hosts []string

	Connections int  // open at once; more wait to be accepted; default 4096
	Sessions    int  // of HTTP with a process each; default 64
	TLS         *TLS // default: plain HTTP

	Times Times
}

// Times are how long clients may take. The zero Times has all defaults.
type Times struct {
	Header time.Duration // to send a request's header, or for the TLS handshake; default 10 s
	Body   time.Duration // to send a body, plus a second for each 16 KiB of it, and between two parts of it; default 30 s
	Write  time.Duration // to take 64 KiB of an answer; default 30 s
	Idle   time.Duration // for which a connection without requests stays open; default 2 min
	Files  time.Duration // from a look at the files of TLS to the next; default 1 s
}

const (
	maxHeader = 64 << 10 // bytes of a request's header
	bodyRate  = 16 << 10 // bytes a second in which a body comes, at least
	writeSize = 64 << 10 // bytes that are written with one deadline
	streams   = 256      // of one HTTP/2 connection
)

func (g *Guard) setDefaults() {
	for _, d := range []struct {
		value     *time.Duration
		otherwise time.Duration
	}{
		{&g.Times.Header, 10 * time.Second}, {&g.Times.Body, 30 * time.Second}, {&g.Times.Write, 30 * time.Second},
		{&g.Times.Idle, 2 * time.Minute}, {&g.Times.Files, time.Second},
	} {
		if *d.value <= 0 {
			*d.value = d.otherwise
		}
	}
	if g.Connections <= 0 {
		g.Connections = 4096
	}
	if g.Sessions <= 0 {
		g.Sessions = 64
	}
}

// ParseOrigin returns an origin as browsers write it: "https://app.example", with a port if it
// is not the scheme's.
func ParseOrigin(text string) (string, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme == "" || u.Hostname() == "":
		return "", errors.New("an origin is a scheme and a host, as in https://app.example")
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return "", errors.New("an origin has only a scheme, a host and a port")
	case strings.Contains(u.Host, "*"):
		return "", errors.New("an origin is exact: * stands for nothing else")
	}
	return u.Scheme + "://" + withoutPort(strings.ToLower(u.Host), u.Scheme), nil
}

// withoutPort returns a host without a port that is the scheme's own.
func withoutPort(host, scheme string) string {
	switch scheme {
	case "http":
		return strings.TrimSuffix(host, ":80")
	case "https":
		return strings.TrimSuffix(host, ":443")
	}
	return host
}

// guarded stands before everything that the endpoint serves: it refuses what comes from web
// pages that have no business here, and holds clients to their times.
type guarded struct {
	Guard
	anyHost bool
	inner   http.Handler
	audit   audit.Sink // takes what is refused; nil for none
	address func(*http.Request) string
	unnamed http.CrossOriginProtection // for requests that do not name their origin
}

func (g *guarded) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	paced := pace(w, req, &g.Times)
	defer paced.hurry() // what is left in buffers
	w = paced
	if !g.mayReach(req) {
		g.refuse(w, req, audit.Host, "invalid Host header")
		return
	}
	origins := req.Header.Values("Origin")
	if len(origins) == 0 {
		if g.unnamed.Check(req) != nil { // Sec-Fetch-Site says that a page elsewhere made it
			g.refuse(w, req, audit.Origin, "cross-origin request")
			return
		}
		g.inner.ServeHTTP(w, req)
		return
	}
	own, allowed := g.mayUse(req, origins[0])
	if !allowed || len(origins) > 1 {
		g.refuse(w, req, audit.Origin, "invalid Origin header")
		return
	}
	if own {
		g.inner.ServeHTTP(w, req)
		return
	}
	header := w.Header()
	header.Add("Vary", "Origin")
	header.Set("Access-Control-Allow-Origin", origins[0])
	if req.Method == http.MethodOptions && req.Header.Get("Access-Control-Request-Method") != "" {
		header.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
		header.Set("Access-Control-Allow-Headers", pageHeaders)
		header.Set("Access-Control-Max-Age", "600")
		w.WriteHeader(http.StatusNoContent)
		return
	}
	header.Set("Access-Control-Expose-Headers", "Mcp-Session-Id, WWW-Authenticate, Retry-After")
	g.inner.ServeHTTP(w, req)
}

func (g *guarded) refuse(w http.ResponseWriter, req *http.Request, reason, why string) {
	if g.audit != nil {
		g.audit.Record(req.Context(), audit.Event{Time: time.Now(), Kind: audit.Refused, Reason: reason, Address: g.address(req)})
	}
	writeError(w, http.StatusForbidden, nil, protocol.CodeInvalidRequest, "Forbidden: "+why)
}

// pageHeaders are the request headers that an allowed page may set. Those by which a proxy
// tells who the requestor is are not among them.
const pageHeaders = "Accept, Authorization, Content-Type, Last-Event-ID, Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name, " +
	"Traceparent, Tracestate, Baggage"

// mayReach reports whether the endpoint may be reached under the request's host name.
func (g *guarded) mayReach(req *http.Request) bool {
	host := strings.ToLower(req.Host)
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	if slices.ContainsFunc(g.Hosts, func(h string) bool {
		h = strings.ToLower(h)
		return h == host || strings.Trim(h, "[]") == strings.Trim(name, "[]")
	}) {
		return true
	}
	if atLoopback(req) {
		return g.anyHost || wire.IsLoopback(host)
	}
	return len(g.Hosts) == 0
}

// mayUse reports whether a page of an origin may use the endpoint, and whether the origin is
// the endpoint's own.
func (g *guarded) mayUse(req *http.Request, origin string) (own, allowed bool) {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return false, false // "null" is one
	}
	secure := u.Scheme == "https" // beyond a proxy, perhaps, that ends TLS
	if (secure || u.Scheme == "http" && req.TLS == nil) && strings.EqualFold(withoutPort(u.Host, u.Scheme), withoutPort(req.Host, u.Scheme)) {
		return true, true
	}
	local := atLoopback(req) && wire.IsLoopback(req.Host) && wire.IsLoopback(u.Host)
	return false, local || slices.Contains(g.Origins, origin)
}

// atLoopback reports whether a request was sent to a loopback address.
func atLoopback(req *http.Request) bool {
	local, ok := req.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || local == nil {
		return false
	}
	at, err := netip.ParseAddrPort(local.String())
	return err == nil && at.Addr().Unmap().IsLoopback()
}
