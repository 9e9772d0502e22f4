package session

import (
	"net/http"
	"net/url"
)

// WithoutSecrets returns a URL without the parts that are known to hold secrets: user, password,
// query and fragment. It is what may be shown of it.
func WithoutSecrets(u *url.URL) *url.URL {
	return &url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
}

// reveal adds the secrets of the URL to a request. Errors of all above, which name the URL, go
// into logs and to clients: so those above never see them.
func (t *tripper) reveal(req *http.Request) {
	if t.secret == nil || req.URL.Host != t.secret.Host || req.URL.Scheme != t.secret.Scheme {
		return
	}
	if user := t.secret.User; user != nil && req.Header.Get("Authorization") == "" {
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
	}
	if req.URL.EscapedPath() == t.secret.EscapedPath() && req.URL.RawQuery == "" {
		req.URL.RawQuery = t.secret.RawQuery // of the clone
	}
}
