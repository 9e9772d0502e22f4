package authn

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/MicahParks/keyfunc/v3"
)

const (
	fetchTimeout = 5 * time.Second
	refreshEvery = 10 * time.Minute // while keys are used
	lookEvery    = 10 * time.Second // for a key that is not known, at most
	retryEvery   = 2 * time.Second  // while there are no keys at all
	keepFor      = 24 * time.Hour   // keys of an issuer that cannot be reached
	maxDocument  = 1 << 20          // bytes
	minRSA       = 2048             // bits
)

var (
	errUnknownKey  = errors.New("the token is signed with a key that is not known")
	errUnavailable = errors.New("the keys of the issuer cannot be had")
)

// keys are those of one issuer. They are fetched when they are first needed, and again from
// time to time, by whoever needs them then: there is no goroutine.
type keys struct {
	issuer string
	file   *watchedFile[keyfunc.Keyfunc] // or else
	url    string                        // "" if the issuer's metadata says it
	plain  bool                          // http is allowed
	client *http.Client
	now    func() time.Time

	fetching chan struct{} // holds a token while nobody fetches

	mu      sync.Mutex
	set     keyfunc.Keyfunc // nil before there are any
	fetched time.Time       // when they were
	tried   time.Time       // when anybody last began to
	ended   time.Time       // when that was over, by time.Now
	err     error           // of that
}

func newKeys(c *Config, issuer string) (*keys, error) {
	k := &keys{issuer: issuer, client: c.Client, plain: c.PlainHTTP, now: c.Now, fetching: make(chan struct{}, 1)}
	k.fetching <- struct{}{}
	if k.client == nil {
		k.client = &http.Client{}
	}
	at, isURL := c.JWKS, strings.HasPrefix(c.JWKS, "http://") || strings.HasPrefix(c.JWKS, "https://")
	switch {
	case isURL:
		k.url = at
	case at != "":
		k.file = &watchedFile[keyfunc.Keyfunc]{path: at, parse: parseKeys, now: c.Now}
		if _, err := k.file.get(); err != nil {
			return nil, fmt.Errorf("the file of keys: %w", err)
		}
		if issuer == "" {
			return nil, errors.New("an issuer cannot be empty")
		}
		return k, nil
	default:
		at = issuer
	}
	if err := checkURL(at, k.plain); err != nil {
		return nil, fmt.Errorf("the issuer's keys at %q: %w", at, err)
	}
	if issuer == "" {
		return nil, errors.New("an issuer cannot be empty")
	}
	return k, nil
}

// checkURL refuses what is no http or https URL, and, unless plain, http to another machine.
func checkURL(raw string, plain bool) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Fragment != "" ||
		strings.ContainsAny(raw, "\"\\ "):
		return errors.New("it must be an https URL")
	case u.Scheme == "http" && !plain && !isLoopback(u.Hostname()):
		return errors.New("it must be an https URL: whoever is between could put other keys in")
	}
	return nil
}

func isLoopback(host string) bool {
	at, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && at.IsLoopback()
}

// get returns the keys, which may be fetched first.
func (k *keys) get(ctx context.Context) (keyfunc.Keyfunc, error) {
	if k.file != nil {
		set, err := k.file.get()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errUnavailable, err)
		}
		return set, nil
	}
	k.mu.Lock()
	set, fetched, tried := k.set, k.fetched, k.tried
	k.mu.Unlock()
	now := k.now()
	switch {
	case set == nil || now.Sub(fetched) >= keepFor:
		if _, err := k.fetch(ctx, time.Now(), retryEvery); err != nil {
			return nil, err
		}
	case now.Sub(fetched) >= refreshEvery && now.Sub(tried) >= lookEvery:
		select { // one request refreshes, the others go on with what there is
		case <-k.fetching:
			k.fetching <- struct{}{}
			_, _ = k.fetch(ctx, time.Now(), lookEvery)
		default:
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.set == nil || k.now().Sub(k.fetched) >= keepFor {
		return nil, errUnavailable
	}
	return k.set, nil
}

// look fetches the keys for a token that arrived at a time, signed with a key that is not
// among them, and reports whether they may have changed since. It does not always fetch: bad
// tokens must not become requests to the issuer.
func (k *keys) look(ctx context.Context, arrived time.Time) (fresh bool, err error) {
	if k.file != nil {
		return false, nil // it is never older than a second
	}
	fresh, err = k.fetch(ctx, arrived, lookEvery)
	if err != nil && ctx.Err() == nil {
		return false, nil // by the keys that there are, it is not valid
	}
	return fresh, err
}

// fetch fetches the keys, unless somebody did so after a time, or began to within pause.
func (k *keys) fetch(ctx context.Context, since time.Time, pause time.Duration) (fresh bool, err error) {
	select {
	case <-k.fetching:
		defer func() { k.fetching <- struct{}{} }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	k.mu.Lock()
	ended, tried, last := k.ended, k.tried, k.err
	now := k.now()
	if ended.After(since) {
		k.mu.Unlock()
		return last == nil, last
	}
	if passed := now.Sub(tried); !tried.IsZero() && passed >= 0 && passed < pause {
		k.mu.Unlock()
		return false, last
	}
	k.tried = now
	k.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
	defer cancel()
	set, err := k.load(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = time.Now()
	if k.err = nil; err != nil {
		k.err = fmt.Errorf("%w: %w", errUnavailable, err)
		return false, k.err
	}
	k.set, k.fetched = set, now
	return true, nil
}

func (k *keys) load(ctx context.Context) (keyfunc.Keyfunc, error) {
	at := k.url
	if at == "" {
		var err error
		if at, err = k.discover(ctx); err != nil {
			return nil, err
		}
	}
	document, err := k.document(ctx, at)
	if err != nil {
		return nil, err
	}
	return parseKeys(document)
}

// discover reads the issuer's metadata (OpenID Connect Discovery 1.0, RFC 8414).
func (k *keys) discover(ctx context.Context) (string, error) {
	u, err := url.Parse(k.issuer)
	if err != nil {
		return "", err
	}
	path := strings.TrimSuffix(u.EscapedPath(), "/")
	host := u.Scheme + "://" + u.Host
	var failed error
	for _, at := range []string{
		host + path + "/.well-known/openid-configuration",
		host + "/.well-known/oauth-authorization-server" + path,
		host + "/.well-known/openid-configuration" + path,
	} {
		document, err := k.document(ctx, at)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		var metadata map[string]json.RawMessage
		if err := json.Unmarshal(document, &metadata); err != nil {
			return "", fmt.Errorf("%s: %w", at, err)
		}
		var issuer, location string
		if json.Unmarshal(metadata["issuer"], &issuer) != nil || issuer != k.issuer {
			return "", fmt.Errorf("%s is the metadata of another issuer", at)
		}
		if json.Unmarshal(metadata["jwks_uri"], &location) != nil || checkURL(location, k.plain) != nil {
			return "", fmt.Errorf("%s has no usable jwks_uri", at)
		}
		return location, nil
	}
	return "", failed
}

func (k *keys) document(ctx context.Context, at string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	client := *k.client
	client.CheckRedirect = func(to *http.Request, via []*http.Request) error {
		if len(via) >= 5 {
			return errors.New("too many redirects")
		}
		return checkURL(to.URL.String(), k.plain)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", at, resp.Status)
	}
	document, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err == nil && len(document) > maxDocument {
		return nil, fmt.Errorf("%s is larger than %d bytes", at, maxDocument)
	}
	return document, err
}

// parseKeys reads a JWK set (RFC 7517). Keys for something else than signatures, of a kind that
// is not known, and weak ones are left out. One that is private is as good as its public half.
func parseKeys(document []byte) (keyfunc.Keyfunc, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(document, &set); err != nil {
		return nil, fmt.Errorf("no JWK set: %w", err)
	}
	storage := jwkset.NewMemoryStorage()
	usable := 0
	for _, raw := range set.Keys {
		key, err := jwkset.NewJWKFromRawJSON(raw, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
		if err != nil {
			continue
		}
		switch public := key.Key().(type) {
		case []byte:
			continue
		case *rsa.PublicKey:
			if public.N.BitLen() < minRSA {
				continue
			}
		}
		if err := storage.KeyWrite(context.Background(), key); err != nil {
			return nil, err
		}
		usable++
	}
	if usable == 0 {
		return nil, errors.New("no usable key in the JWK set")
	}
	return keyfunc.New(keyfunc.Options{Storage: storage, UseWhitelist: []jwkset.USE{"", jwkset.UseSig}})
}
