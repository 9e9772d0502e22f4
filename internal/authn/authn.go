// Package authn tells who sends an HTTP request: by a JWT, by a token from a file, or by the
// header of a proxy that is trusted (SEC-1, X-13).
package authn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/task"
)

// Mode is how a request says who sends it.
type Mode string

// The modes.
const (
	None   Mode = ""       // it does not
	JWT    Mode = "jwt"    // by a bearer token that an issuer has signed
	Tokens Mode = "tokens" // by a bearer token whose digest is in a file
	Header Mode = "header" // by a header that a proxy sets
)

// Config says how a Guard works.
type Config struct {
	Mode   Mode
	Scopes []string // that every request needs; not in mode Header
	// TrustedProxies are believed what they say of their clients: the address in
	// X-Forwarded-For, and in mode Header, where they are required, the identity.
	TrustedProxies []netip.Prefix

	Issuers    []string      // JWT: who may sign, byte for byte; at least one
	Audiences  []string      // JWT: for whom a token must be, one of them; default Resource
	JWKS       string        // JWT: URL or file of the one issuer's keys; default what the issuer's metadata says
	Algorithms []string      // JWT: that are accepted; default Algorithms
	ClockSkew  time.Duration // JWT: how far clocks may differ; default 30 s, negative for none
	Resource   string        // JWT: the URL by which clients know the server; required
	Offered    []string      // JWT: scopes that the metadata names beside Scopes
	PlainHTTP  bool          // JWT: keys may come over http from other machines

	TokenFile string // Tokens: see ParseTokens
	Header    string // Header: the name

	// Failures is how often one address (of IPv6, one /64) may fail. Default 2 per s, 100 at once.
	Failures limit.Rate
	Audit    audit.Sink       // takes what is refused; default none
	Logger   *slog.Logger     // default: discards
	Client   *http.Client     // fetches keys; default one with a timeout of 5 s
	Now      func() time.Time // default time.Now
}

// A Guard lets those requests pass whose sender is known.
type Guard struct {
	config   Config
	verify   func(*http.Request) (*auth.TokenInfo, error)
	failures *limit.Buckets
	noted    *limit.Buckets // of refusals over the limit, which are not all recorded
}

// notes is how often a refusal of one address over the limit is recorded.
var notes = limit.Rate{PerSecond: 1, Burst: 1}

// New returns a Guard for a mode other than None.
func New(c Config) (*Guard, error) {
	if c.Failures == (limit.Rate{}) {
		c.Failures = limit.Rate{PerSecond: 2, Burst: 100}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	for _, scope := range slices.Concat(c.Scopes, c.Offered) {
		if !isScope(scope) {
			return nil, fmt.Errorf("%q is no scope: a word of printable ASCII without \" and \\", scope)
		}
	}
	g := &Guard{config: c, failures: limit.NewBuckets(c.Failures), noted: limit.NewBuckets(notes)}
	var err error
	switch c.Mode {
	case JWT:
		g.verify, err = newJWT(&g.config)
	case Tokens:
		g.verify, err = newTokens(&g.config)
	case Header:
		g.verify, err = newHeader(&g.config)
	default:
		err = fmt.Errorf("unknown mode %q", c.Mode)
	}
	if err != nil {
		return nil, err
	}
	return g, nil
}

// What verify returns beside other errors, which mean that it cannot tell.
var (
	errMissing = errors.New("a token is required")
	errInvalid = errors.New("the token is not valid")
)

// invalid is errInvalid with a reason that its sender may know.
type invalid string

func (e invalid) Error() string      { return string(e) }
func (invalid) Is(target error) bool { return target == errInvalid }

// Handler returns a handler that lets requests pass to inner, whose context then has an
// auth.TokenInfo, and answers others: 401 without a valid token, 403 with one that lacks a
// scope, 429 where too many have failed before, 503 if nobody can tell now.
func (g *Guard) Handler(inner http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		address := g.Address(req)
		key, now := network(address), g.config.Now()
		if wait := g.failures.Empty(key, g.config.Failures, now); wait > 0 {
			g.tooMany(w, req, address, wait)
			return
		}
		info, err := g.verify(req)
		switch {
		case errors.Is(err, errMissing), errors.Is(err, errInvalid):
			if wait := g.failures.Take(key, now); wait > 0 { // many at once: none is told more
				g.tooMany(w, req, address, wait)
				return
			}
			g.unauthorized(w, req, address, err)
		case err != nil:
			g.config.Logger.Error("nobody can be authenticated now", "error", err)
			w.Header().Set("Retry-After", "2")
			http.Error(w, "Service Unavailable: tokens cannot be verified now", http.StatusServiceUnavailable)
		default:
			for _, scope := range g.config.Scopes {
				if !slices.Contains(info.Scopes, scope) {
					g.insufficient(w, req, address, info)
					return
				}
			}
			inner.ServeHTTP(w, req.WithContext(withTokenInfo(req.Context(), info)))
		}
	})
}

func (g *Guard) tooMany(w http.ResponseWriter, req *http.Request, address string, wait time.Duration) {
	if g.noted.Take(network(address), g.config.Now()) == 0 {
		g.record(req, audit.Event{Reason: audit.OverLimit, Limit: "failed authentications", Address: address})
	}
	w.Header().Set("Retry-After", strconv.Itoa(int((wait+time.Second-1)/time.Second)))
	http.Error(w, "Too Many Requests: too many without a valid token", http.StatusTooManyRequests)
}

func (g *Guard) unauthorized(w http.ResponseWriter, req *http.Request, address string, why error) {
	g.record(req, audit.Event{Reason: audit.Unauthorized, Address: address})
	var params []string
	if !errors.Is(why, errMissing) { // RFC 6750, 3.1: no error code for a request without a token
		params = append(params, `error="invalid_token"`, `error_description="`+why.Error()+`"`)
	}
	if len(g.config.Scopes) > 0 {
		params = append(params, `scope="`+strings.Join(g.config.Scopes, " ")+`"`)
	}
	w.Header().Set("WWW-Authenticate", g.challenge(params...))
	http.Error(w, "Unauthorized: "+why.Error(), http.StatusUnauthorized)
}

func (g *Guard) insufficient(w http.ResponseWriter, req *http.Request, address string, info *auth.TokenInfo) {
	g.record(req, audit.Event{Reason: audit.Scope, Address: address, Principal: identity(info).Principal()})
	w.Header().Set("WWW-Authenticate", g.challenge(`error="insufficient_scope"`, `scope="`+strings.Join(g.config.Scopes, " ")+`"`))
	http.Error(w, "Forbidden: the token lacks a scope", http.StatusForbidden)
}

func (g *Guard) record(req *http.Request, ev audit.Event) {
	if g.config.Audit == nil {
		return
	}
	ev.Time, ev.Kind = g.config.Now(), audit.Refused
	if session := req.Header.Get("Mcp-Session-Id"); len(session) <= 256 {
		ev.Session = session
	}
	g.config.Audit.Record(req.Context(), ev)
}

// Challenge returns the WWW-Authenticate header of a 401 or 403 without parameters of its own.
func (g *Guard) Challenge() string { return g.challenge() }

func (g *Guard) challenge(params ...string) string {
	if g.config.Mode == JWT {
		params = append([]string{`resource_metadata="` + metadataURL(g.config.Resource) + `"`}, params...)
	}
	return strings.TrimSpace("Bearer " + strings.Join(params, ", "))
}

// bearer returns the token of a request.
func bearer(req *http.Request) (string, error) {
	values := req.Header["Authorization"]
	switch len(values) {
	case 0:
		return "", errMissing
	case 1:
	default:
		return "", invalid("more than one Authorization header")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	switch {
	case !strings.EqualFold(scheme, "Bearer"):
		return "", errMissing
	case token == "" || len(token) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return "", errInvalid
	}
	return token, nil
}

// maxToken bounds a token, in bytes.
const maxToken = 16 << 10

// newInfo returns what is known of a sender. It refuses what would make two senders one.
func newInfo(who task.Identity, scopes []string, expires time.Time) (*auth.TokenInfo, error) {
	if who.Subject == "" && who.Client == "" {
		return nil, invalid("the token names neither a subject nor a client")
	}
	if !isName(who.Subject) || !isName(who.Client) {
		return nil, errInvalid
	}
	info := &auth.TokenInfo{UserID: who.Subject, Scopes: scopes, Expiration: expires, Extra: map[string]any{}}
	if who.Issuer != "" {
		info.Extra["iss"] = who.Issuer
	}
	if who.Client != "" {
		info.Extra["client_id"] = who.Client
	}
	return info, nil
}

// identity is what newInfo was told.
func identity(info *auth.TokenInfo) task.Identity {
	who := task.Identity{Subject: info.UserID}
	who.Issuer, _ = info.Extra["iss"].(string)
	who.Client, _ = info.Extra["client_id"].(string)
	return who
}

// isName reports whether s can be a part of an identity: not too long, and of characters that
// say something. Decoders put U+FFFD where they cannot tell.
func isName(s string) bool {
	return len(s) <= 1024 && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return r == utf8.RuneError || unicode.IsControl(r)
	})
}

// isScope reports whether s is a scope (RFC 6749, 3.3).
func isScope(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '"' || r == '\\' })
}

// withTokenInfo returns a context with an auth.TokenInfo, which only the SDK's middleware can
// put there. It has been verified here.
func withTokenInfo(ctx context.Context, info *auth.TokenInfo) context.Context {
	verified := func(context.Context, string, *http.Request) (*auth.TokenInfo, error) { return info, nil }
	opts := &auth.RequireBearerTokenOptions{AllowMissingExpiration: true, ClockSkew: math.MaxInt64}
	var with *http.Request
	auth.RequireBearerToken(verified, opts)(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		with = req
	})).ServeHTTP(nil, verifiedRequest.WithContext(ctx))
	return with.Context()
}

var verifiedRequest = &http.Request{Header: http.Header{"Authorization": {"Bearer verified"}}}
