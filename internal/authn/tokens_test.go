package authn_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"

	"github.com/coatcheck/coatcheck/internal/authn"
	"github.com/coatcheck/coatcheck/internal/authn/authtest"
)

// allAlgorithms returns a JWK set with a key of each kind, one of them with neither kid nor alg,
// some that are of no use, and a token of each algorithm.
func allAlgorithms(t *testing.T) (set []byte, tokens map[string]string) {
	t.Helper()
	made := func(key crypto.Signer, err error) crypto.Signer {
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	strong := made(rsa.GenerateKey(rand.Reader, 2048))
	weak := made(rsa.GenerateKey(rand.Reader, 1024))
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var keys []json.RawMessage
	add := func(key crypto.Signer, id string, use jwkset.USE) {
		k, err := jwkset.NewJWKFromKey(key.Public(), jwkset.JWKOptions{Metadata: jwkset.JWKMetadataOptions{KID: id, USE: use}})
		if err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(k.Marshal())
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, raw)
	}
	keys = append(keys, json.RawMessage(`{"kty":"new","kid":"rsa"}`), json.RawMessage(`7`), json.RawMessage(`{"kty":"oct","k":"c2VjcmV0","kid":"oct"}`))
	add(weak, "rsa", jwkset.UseSig)
	add(strong, "rsa", "")
	tokens = map[string]string{}
	sign := func(method jwt.SigningMethod, key crypto.Signer, id string) {
		token := jwt.NewWithClaims(method, jwt.MapClaims{"iss": "https://issuer.test", "sub": "alice", "aud": authtest.Audience, "exp": time.Now().Add(time.Hour).Unix()})
		if id != "" {
			token.Header["kid"] = id
		}
		signed, err := token.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		tokens[method.Alg()] = signed
	}
	for _, method := range []jwt.SigningMethod{
		jwt.SigningMethodRS256, jwt.SigningMethodRS384, jwt.SigningMethodRS512, jwt.SigningMethodPS256, jwt.SigningMethodPS384, jwt.SigningMethodPS512,
	} {
		sign(method, strong, "rsa")
	}
	for _, curve := range []struct {
		method jwt.SigningMethod
		curve  elliptic.Curve
	}{{jwt.SigningMethodES256, elliptic.P256()}, {jwt.SigningMethodES384, elliptic.P384()}, {jwt.SigningMethodES512, elliptic.P521()}} {
		key := made(ecdsa.GenerateKey(curve.curve, rand.Reader))
		add(key, curve.method.Alg(), jwkset.UseSig)
		sign(curve.method, key, curve.method.Alg())
	}
	add(edwards, "", "")
	sign(jwt.SigningMethodEdDSA, edwards, "")
	encryption := made(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	add(encryption, "enc", jwkset.UseEnc)
	set, err = json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		t.Fatal(err)
	}
	return set, tokens
}

func line(t *testing.T, token authn.Token) (line, secret string) {
	t.Helper()
	token, secret, err := authn.NewToken(token)
	if err != nil {
		t.Fatal(err)
	}
	return token.String(), secret
}

// A token from a file is who the file says, for as long as the file says it.
func TestTokens(t *testing.T) {
	at := newClock()
	file := filepath.Join(t.TempDir(), "tokens")
	write := func(lines ...string) {
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	alice, aliceSecret := line(t, authn.Token{Subject: "alice"})
	second, secondSecret := line(t, authn.Token{Subject: "alice", Client: "ci", Scopes: []string{"mcp", "tasks:read"}})
	brief, briefSecret := line(t, authn.Token{Subject: "bob", Expires: at.now().Add(time.Minute)})
	write("# of a small team", "", alice, second, "  "+brief+"\r")
	c := authn.Config{Mode: authn.Tokens, TokenFile: file, Now: at.now}
	g := newGuard(t, c)
	check := func(what, secret string, status int, who string) {
		t.Helper()
		if s := sendToken(g, secret); s.status != status || s.who != who {
			t.Errorf("%s: %d %q", what, s.status, s.who)
		}
	}
	check("alice", aliceSecret, http.StatusOK, "alice")
	check("alice's other", secondSecret, http.StatusOK, "|alice|ci")
	check("bob", briefSecret, http.StatusOK, "bob")
	if s := sendToken(g, secondSecret); strings.Join(s.info.Scopes, ",") != "mcp,tasks:read" || s.info.Extra["iss"] != nil {
		t.Errorf("%+v", s.info)
	}
	if s := sendToken(g, ""); s.header.Get("WWW-Authenticate") != `Bearer error="invalid_token", error_description="the token is not valid"` {
		t.Error(s.header.Get("WWW-Authenticate"))
	}
	if s := send(g, func(*http.Request) {}); s.header.Get("WWW-Authenticate") != "Bearer" || s.status != http.StatusUnauthorized {
		t.Error(s.header.Get("WWW-Authenticate"))
	}
	digest := sha256.Sum256([]byte(aliceSecret))
	for _, wrong := range []string{"x", aliceSecret + "x", aliceSecret[:len(aliceSecret)-1], strings.ToLower(aliceSecret), "alice", hex.EncodeToString(digest[:])} {
		check("wrong", wrong, http.StatusUnauthorized, "")
	}

	at.pass(2 * time.Minute)
	check("bob's has expired", briefSecret, http.StatusUnauthorized, "")
	write(second)
	at.pass(time.Second)
	check("alice's is revoked", aliceSecret, http.StatusUnauthorized, "")
	check("alice's other", secondSecret, http.StatusOK, "|alice|ci")
	write(alice, "what")
	at.pass(2 * time.Second)
	check("the file is broken", aliceSecret, http.StatusServiceUnavailable, "")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	at.pass(2 * time.Second)
	check("the file is gone", secondSecret, http.StatusServiceUnavailable, "")
	write(alice)
	at.pass(2 * time.Second)
	check("the file is back", aliceSecret, http.StatusOK, "alice")

	c.Scopes = []string{"mcp"}
	write(alice, second)
	g = newGuard(t, c)
	check("without a scope", aliceSecret, http.StatusForbidden, "")
	check("with it", secondSecret, http.StatusOK, "|alice|ci")
}

func TestParseTokens(t *testing.T) {
	sum := strings.Repeat("0a", 32)
	for _, bad := range []string{
		"alice", "alice sha256=", "alice sha256=00", "alice sha256=" + sum + "00", "sha256=" + sum, "a=b sha256=" + sum, "alice sha256=" + sum + " sha256=" + sum,
		"alice sha256=" + sum + " client=", "alice sha256=" + sum + " scopes=a,,b", `alice sha256=` + sum + ` scopes=a"b`, "alice sha256=" + sum + " expires=2027",
		"alice sha256=" + sum + " admin=true", "alice bob sha256=" + sum, "alice token=x sha256=" + sum, "a\x00 sha256=" + sum, "\xff sha256=" + sum,
		"alice sha256=" + sum + "\nbob sha256=" + strings.ToUpper(sum),
	} {
		_, err := authn.ParseTokens([]byte(bad))
		if err == nil {
			t.Errorf("%q was taken", bad)
		} else if strings.Contains(strings.ToLower(err.Error()), sum) {
			t.Errorf("the error tells the digest: %v", err)
		}
	}
	for _, bad := range []authn.Token{{}, {Subject: "a b"}, {Subject: "a", Client: "b c"}, {Subject: "#a"}, {Subject: "a", Scopes: []string{"b,c d"}}} {
		if _, _, err := authn.NewToken(bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

// FuzzTokenFile parses anything: what it takes it can write, and take again.
func FuzzTokenFile(f *testing.F) {
	sum := strings.Repeat("0a", 32)
	for _, seed := range []string{"", "# x\n\n", "alice sha256=" + sum, "alice sha256=" + sum + " client=c scopes=a,b expires=2027-01-31T00:00:00Z\r\n", "x y", "a sha256=" + sum + " expires=2027-01-31T00:00:00+01:00"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		tokens, err := authn.ParseTokens(content)
		if err != nil {
			return
		}
		var lines []string
		for _, token := range tokens {
			if token.Subject == "" {
				t.Errorf("a token of nobody in %q", content)
			}
			lines = append(lines, token.String())
		}
		again, err := authn.ParseTokens([]byte(strings.Join(lines, "\n")))
		if err != nil || len(again) != len(tokens) {
			t.Fatalf("%q: %v", lines, err)
		}
		for n := range again {
			if again[n].String() != lines[n] {
				t.Errorf("%q became %q", lines[n], again[n].String())
			}
		}
	})
}

// A secret in a file is that of now.
func TestSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if _, err := authn.ReadSecret(file).Get(); err == nil {
		t.Error("a file that is not there was taken")
	}
	for content, want := range map[string]string{"abc\n": "abc", " abc\r\n": "abc", "": "", "\n": "", "a b": "", "a\nb": "", "ü": ""} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := authn.ReadSecret(file).Get()
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q %v", content, got, err)
		}
		if err != nil && content != "" && strings.TrimSpace(content) != "" && strings.Contains(err.Error(), strings.TrimSpace(content)) {
			t.Errorf("the error tells the secret: %v", err)
		}
	}
}
