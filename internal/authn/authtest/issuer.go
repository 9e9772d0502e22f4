// Package authtest has an issuer of tokens for tests: an HTTP server of its own with metadata,
// keys, and key rotation, that also makes tokens which must be refused.
package authtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Audience is whom tokens are for, unless they say otherwise.
const Audience = "https://coatcheck.test/mcp"

// Issuer signs tokens, with ES256, and serves
//
//	/.well-known/openid-configuration  its metadata
//	/keys                              its keys
type Issuer struct {
	URL string // its name, and where it is

	t      testing.TB
	server *httptest.Server

	mu      sync.Mutex
	keys    []key
	down    bool
	asked   map[string]int // by path
	rotated int
}

type key struct {
	id      string
	private *ecdsa.PrivateKey
}

// New returns an issuer that ends with the test.
func New(t testing.TB) *Issuer {
	t.Helper()
	i := &Issuer{t: t, asked: map[string]int{}}
	i.server = httptest.NewServer(http.HandlerFunc(i.serve))
	t.Cleanup(i.server.Close)
	i.URL = i.server.URL
	i.Rotate()
	return i
}

func (i *Issuer) serve(w http.ResponseWriter, req *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.asked[req.URL.Path]++
	w.Header().Set("Connection", "close") // so that no client's goroutine outlives its test
	if i.down {
		http.Error(w, "down", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	switch req.URL.Path {
	case "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": i.URL, "jwks_uri": i.URL + "/keys", "authorization_endpoint": i.URL + "/authorize", "token_endpoint": i.URL + "/token",
		})
	case "/keys":
		_, _ = w.Write(i.set())
	default:
		http.NotFound(w, req)
	}
}

// Keys returns the JWK set that is served.
func (i *Issuer) Keys() []byte {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.set()
}

func (i *Issuer) set() []byte {
	all := []map[string]string{}
	for _, k := range i.keys {
		point, err := k.private.PublicKey.Bytes() // 4, x, y
		if err != nil {
			panic(err)
		}
		all = append(all, map[string]string{
			"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": k.id,
			"x": base64.RawURLEncoding.EncodeToString(point[1:33]), "y": base64.RawURLEncoding.EncodeToString(point[33:]),
		})
	}
	set, err := json.Marshal(map[string]any{"keys": all})
	if err != nil {
		panic(err)
	}
	return set
}

// Rotate signs with a new key from now on, and no longer serves the one before.
func (i *Issuer) Rotate() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.rotated++
	i.keys = []key{{fmt.Sprintf("key-%d", i.rotated), newKey()}}
}

func newKey() *ecdsa.PrivateKey {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return private
}

// Down has the issuer answer everything with 500, or no longer.
func (i *Issuer) Down(down bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.down = down
}

// Asked returns how often its keys were asked for.
func (i *Issuer) Asked() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked["/keys"]
}

// Claim sets a claim of a token; a nil Value leaves it out.
type Claim struct {
	Name  string
	Value any
}

// Subject is the claim "sub".
func Subject(name string) Claim { return Claim{"sub", name} }

// Client is the claim "client_id".
func Client(name string) Claim { return Claim{"client_id", name} }

// Scope is the claim "scope": names with spaces between them.
func Scope(names string) Claim { return Claim{"scope", names} }

// For is the claim "aud".
func For(audience ...string) Claim { return Claim{"aud", audience} }

// Expired is the claim "exp" of a token that expired an hour ago.
func Expired() Claim { return Claim{"exp", time.Now().Add(-time.Hour).Unix()} }

// NotYet is the claim "nbf" of a token that becomes valid in an hour.
func NotYet() Claim { return Claim{"nbf", time.Now().Add(time.Hour).Unix()} }

func (i *Issuer) token(method jwt.SigningMethod, claims []Claim) *jwt.Token {
	all := jwt.MapClaims{
		"iss": i.URL, "sub": "alice", "client_id": "app", "aud": Audience,
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(), "jti": rand.Text(),
	}
	for _, c := range claims {
		if all[c.Name] = c.Value; c.Value == nil {
			delete(all, c.Name)
		}
	}
	t := jwt.NewWithClaims(method, all)
	t.Header["kid"] = i.current().id
	return t
}

func (i *Issuer) current() key {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.keys[len(i.keys)-1]
}

func (i *Issuer) sign(t *jwt.Token, with any) string {
	i.t.Helper()
	signed, err := t.SignedString(with)
	if err != nil {
		i.t.Fatal(err)
	}
	return signed
}

// Token returns a token for alice, who uses app, valid for an hour, with claims instead of or
// beside its own.
func (i *Issuer) Token(claims ...Claim) string {
	i.t.Helper()
	return i.sign(i.token(jwt.SigningMethodES256, claims), i.current().private)
}

// WithHeader is Token with a header parameter; a nil value leaves it out.
func (i *Issuer) WithHeader(name string, value any, claims ...Claim) string {
	i.t.Helper()
	t := i.token(jwt.SigningMethodES256, claims)
	if t.Header[name] = value; value == nil {
		delete(t.Header, name)
	}
	return i.sign(t, i.current().private)
}

// Forged returns a token that says it is signed with the issuer's key, and is not.
func (i *Issuer) Forged(claims ...Claim) string {
	i.t.Helper()
	return i.sign(i.token(jwt.SigningMethodES256, claims), newKey())
}

// Unsigned returns a token with "alg": "none".
func (i *Issuer) Unsigned(claims ...Claim) string {
	i.t.Helper()
	return i.sign(i.token(jwt.SigningMethodNone, claims), jwt.UnsafeAllowNoneSignatureType)
}

// Symmetric returns tokens signed with HS256, whose secret is the issuer's public key in each of
// the forms that a careless verifier could hold it in.
func (i *Issuer) Symmetric(claims ...Claim) []string {
	i.t.Helper()
	public := i.current().private.Public()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		i.t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	var tokens []string
	for _, secret := range [][]byte{der, text, i.Keys()} {
		tokens = append(tokens, i.sign(i.token(jwt.SigningMethodHS256, claims), secret))
	}
	return tokens
}
