package authn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/coatcheck/coatcheck/task"
)

// Algorithms are those that a JWT may be signed with: asymmetric ones, since whoever can verify
// by a shared secret can also sign.
var Algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// defaultSkew is how far clocks may differ if nothing is said.
const defaultSkew = 30 * time.Second

// jwtVerifier verifies JWTs of some issuers.
type jwtVerifier struct {
	parser *jwt.Parser
	keys   map[string]*keys // by issuer
}

func newJWT(c *Config) (func(*http.Request) (*auth.TokenInfo, error), error) {
	if err := checkURL(c.Resource, true); err != nil {
		return nil, fmt.Errorf("the resource %q: %w", c.Resource, err)
	}
	algorithms, audiences, skew := c.Algorithms, c.Audiences, c.ClockSkew
	if len(algorithms) == 0 {
		algorithms = Algorithms
	}
	for _, name := range algorithms {
		if !slices.Contains(Algorithms, name) {
			return nil, fmt.Errorf("the algorithm %q is not one of %s", name, strings.Join(Algorithms, ", "))
		}
	}
	if len(audiences) == 0 {
		audiences = []string{c.Resource}
	}
	if slices.Contains(audiences, "") {
		return nil, errors.New("an audience cannot be empty")
	}
	if skew == 0 {
		skew = defaultSkew
	}
	switch {
	case len(c.Issuers) == 0:
		return nil, errors.New("at least one issuer is required")
	case len(c.Issuers) > 1 && c.JWKS != "":
		return nil, errors.New("with several issuers each one's own metadata says where its keys are")
	}
	v := &jwtVerifier{keys: map[string]*keys{}}
	for _, issuer := range c.Issuers {
		k, err := newKeys(c, issuer)
		if err != nil {
			return nil, err
		}
		v.keys[issuer] = k
	}
	v.parser = jwt.NewParser(
		jwt.WithValidMethods(algorithms),
		jwt.WithLeeway(max(0, skew)),
		jwt.WithExpirationRequired(),
		jwt.WithAudience(audiences...),
		jwt.WithTimeFunc(c.Now),
		jwt.WithStrictDecoding(),
	)
	return func(req *http.Request) (*auth.TokenInfo, error) {
		token, err := bearer(req)
		if err != nil {
			return nil, err
		}
		return v.verify(req.Context(), token)
	}, nil
}

func (v *jwtVerifier) verify(ctx context.Context, raw string) (*auth.TokenInfo, error) {
	arrived := time.Now()
	claims, issuer, err := v.parse(ctx, raw)
	if errors.Is(err, errUnknownKey) {
		// The issuer may have changed its keys.
		var fresh bool
		if fresh, err = v.keys[issuer].look(ctx, arrived); err != nil {
			return nil, err
		}
		if !fresh {
			return nil, errInvalid
		}
		claims, issuer, err = v.parse(ctx, raw)
	}
	switch {
	case err == nil:
	case errors.Is(err, errUnavailable):
		return nil, err
	// These claims have been seen only if the signature is right.
	case errors.Is(err, jwt.ErrTokenExpired):
		return nil, invalid("the token has expired")
	case errors.Is(err, jwt.ErrTokenNotValidYet):
		return nil, invalid("the token is not valid yet")
	case errors.Is(err, jwt.ErrTokenInvalidAudience):
		return nil, invalid("the token is for another audience")
	default:
		return nil, errInvalid
	}
	subject, err := text(claims, "sub")
	if err != nil {
		return nil, err
	}
	client, err := text(claims, "client_id")
	if err != nil {
		return nil, err
	}
	if client == "" {
		if client, err = text(claims, "azp"); err != nil {
			return nil, err
		}
	}
	scopes, err := scopesOf(claims)
	if err != nil {
		return nil, err
	}
	expires, err := claims.GetExpirationTime()
	if err != nil || expires == nil {
		return nil, errInvalid
	}
	return newInfo(task.Identity{Issuer: issuer, Subject: subject, Client: client}, scopes, expires.Time)
}

// parse verifies a token by the keys that are known. If errUnknownKey is returned, others may
// verify it. The claims are read from a map, whose keys are matched byte for byte.
func (v *jwtVerifier) parse(ctx context.Context, raw string) (claims jwt.MapClaims, issuer string, err error) {
	claims = jwt.MapClaims{}
	named := false
	_, err = v.parser.ParseWithClaims(raw, claims, func(t *jwt.Token) (any, error) {
		if _, ok := t.Header["crit"]; ok { // RFC 7515, 4.1.11: we understand none
			return nil, errInvalid
		}
		said, err := text(claims, "iss")
		if err != nil {
			return nil, err
		}
		k := v.keys[said]
		if k == nil {
			return nil, errInvalid
		}
		issuer = said
		_, named = t.Header["kid"]
		set, err := k.get(ctx)
		if err != nil {
			return nil, err
		}
		key, err := set.Keyfunc(t)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errUnknownKey, err)
		}
		return key, nil
	})
	if err != nil && issuer != "" && !named && errors.Is(err, jwt.ErrTokenSignatureInvalid) {
		err = errUnknownKey // any key might have been meant
	}
	return claims, issuer, err
}

// text returns a claim that must be a string if it is there.
func text(claims jwt.MapClaims, name string) (string, error) {
	switch value := claims[name].(type) {
	case nil:
		return "", nil
	case string:
		return value, nil
	}
	return "", errInvalid
}

// scopesOf returns the scopes in "scope", a list with spaces (RFC 8693, 4.2), or in "scp", which
// some issuers have instead, as an array or such a list.
func scopesOf(claims jwt.MapClaims) ([]string, error) {
	value := claims["scope"]
	if value == nil {
		value = claims["scp"]
	}
	switch value := value.(type) {
	case nil:
		return nil, nil
	case string:
		return strings.Fields(value), nil
	case []any:
		scopes := make([]string, 0, len(value))
		for _, one := range value {
			name, ok := one.(string)
			if !ok {
				return nil, errInvalid
			}
			scopes = append(scopes, name)
		}
		return scopes, nil
	}
	return nil, errInvalid
}
