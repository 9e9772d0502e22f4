package authn

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/coatcheck/coatcheck/task"
)

// Token is what a file says of a token. The token itself is not in it.
type Token struct {
	Subject string
	Client  string    // "" for none
	Scopes  []string  // of the token
	Expires time.Time // zero for never
	digest  [sha256.Size]byte
}

// NewToken makes a token of 130 random bits, whose secret goes to its user and whose String
// into the file.
func NewToken(t Token) (Token, string, error) {
	secret := "cct_" + rand.Text()
	t.digest = sha256.Sum256([]byte(secret))
	_, err := parseToken(t.String())
	return t, secret, err
}

// String is the token as a line of the file.
func (t Token) String() string {
	line := t.Subject + " sha256=" + hex.EncodeToString(t.digest[:])
	if t.Client != "" {
		line += " client=" + t.Client
	}
	if len(t.Scopes) > 0 {
		line += " scopes=" + strings.Join(t.Scopes, ",")
	}
	if !t.Expires.IsZero() {
		line += " expires=" + t.Expires.UTC().Format(time.RFC3339)
	}
	return line
}

// ParseTokens reads a file of tokens, one a line; empty lines and those that begin with # say
// nothing:
//
//	SUBJECT sha256=HEX [client=NAME] [scopes=A,B] [expires=2027-01-31T00:00:00Z]
func ParseTokens(file []byte) ([]Token, error) {
	var all []Token
	at := 0
	for line := range strings.Lines(string(file)) {
		at++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		t, err := parseToken(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", at, err)
		}
		for _, other := range all {
			if other.digest == t.digest {
				return nil, fmt.Errorf("line %d: the token of %s is there twice", at, t.Subject)
			}
		}
		all = append(all, t)
	}
	return all, nil
}

func parseToken(line string) (t Token, err error) {
	fields := strings.Fields(line)
	if len(fields) == 0 || strings.ContainsAny(fields[0], "=#") || !isName(fields[0]) {
		return t, errors.New("it must begin with a subject, without spaces, = and #")
	}
	t.Subject = fields[0]
	said := map[string]bool{}
	for _, field := range fields[1:] {
		name, value, _ := strings.Cut(field, "=")
		if said[name] || value == "" {
			return t, fmt.Errorf("%s= must be there once, with a value", name)
		}
		said[name] = true
		switch name {
		case "sha256":
			digest, err := hex.DecodeString(value)
			if err != nil || len(digest) != sha256.Size {
				return t, errors.New("sha256= must be 64 hexadecimal digits")
			}
			t.digest = [sha256.Size]byte(digest)
		case "client":
			if t.Client = value; !isName(value) {
				return t, errors.New("client= is no name")
			}
		case "scopes":
			t.Scopes = strings.Split(value, ",")
			for _, scope := range t.Scopes {
				if !isScope(scope) {
					return t, errors.New("scopes= must be scopes, separated by commas")
				}
			}
		case "expires":
			if t.Expires, err = time.Parse(time.RFC3339, value); err != nil {
				return t, errors.New("expires= must be a time such as 2027-01-31T00:00:00Z")
			}
		default:
			return t, errors.New("only sha256=, client=, scopes= and expires= are known")
		}
	}
	if !said["sha256"] {
		return t, errors.New("sha256= is missing; coatcheck token makes such a line")
	}
	return t, nil
}

// newTokens verifies bearer tokens by a file, which may change.
func newTokens(c *Config) (func(*http.Request) (*auth.TokenInfo, error), error) {
	file := &watchedFile[[]Token]{path: c.TokenFile, parse: ParseTokens, now: c.Now}
	if _, err := file.get(); err != nil {
		return nil, fmt.Errorf("the file of tokens: %w", err)
	}
	if info, err := os.Stat(c.TokenFile); err == nil && info.Mode().Perm()&0o007 != 0 {
		c.Logger.Warn("the file of tokens is open to all users of this machine", "file", c.TokenFile, "mode", info.Mode().Perm().String())
	}
	return func(req *http.Request) (*auth.TokenInfo, error) {
		secret, err := bearer(req)
		if err != nil {
			return nil, err
		}
		tokens, err := file.get()
		if err != nil {
			return nil, fmt.Errorf("the file of tokens: %w", err)
		}
		at := find(tokens, secret)
		if at < 0 {
			return nil, errInvalid
		}
		t := tokens[at]
		if !t.Expires.IsZero() && !c.Now().Before(t.Expires) {
			return nil, invalid("the token has expired")
		}
		return newInfo(task.Identity{Subject: t.Subject, Client: t.Client}, t.Scopes, t.Expires)
	}, nil
}

// find returns which of the tokens has a secret, or -1. It takes as long for one as for another.
func find(tokens []Token, secret string) int {
	digest := sha256.Sum256([]byte(secret))
	found := -1
	for i := range tokens {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(digest[:], tokens[i].digest[:]), i, found)
	}
	return found
}

// ReadSecret returns a secret that stands in a file, alone, and may change (a Secret is asked
// for each time it is used).
func ReadSecret(path string) *Secret {
	return &Secret{file: watchedFile[string]{path: path, now: time.Now, parse: func(content []byte) (string, error) {
		secret := strings.TrimSpace(string(content))
		if secret == "" || strings.ContainsFunc(secret, func(r rune) bool { return unicode.IsSpace(r) || r <= ' ' || r >= 0x7f }) {
			return "", fmt.Errorf("%s must hold a token and nothing else", path)
		}
		return secret, nil
	}}}
}

// Secret is a secret in a file.
type Secret struct{ file watchedFile[string] }

// Get returns the secret.
func (s *Secret) Get() (string, error) { return s.file.get() }
