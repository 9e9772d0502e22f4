package session_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/coatcheck/coatcheck/internal/session"
)

// The secrets of a URL are sent to it, with every request, but not where it redirects to, and
// are not in the error when that fails.
func TestSecretsOfURL(t *testing.T) {
	var mu sync.Mutex
	var there, elsewhere []string
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		elsewhere = append(elsewhere, req.URL.String()+req.Header.Get("Authorization"))
		http.Error(w, "gone", http.StatusInternalServerError)
	}))
	defer other.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		user, password, _ := req.BasicAuth()
		there = append(there, user+":"+password+"@"+req.URL.String())
		http.Redirect(w, req, other.URL+"/new", http.StatusTemporaryRedirect)
	}))
	url := strings.Replace(server.URL, "http://", "http://u:SECRET%40@", 1) + "/a%2Fb?key=SECRET"
	for _, up := range []bool{true, false} {
		s, err := session.Connect(t.Context(), &session.HTTP{URL: url}, nil)
		if err == nil {
			_ = s.Close()
		}
		if err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("up %v: %v", up, err)
		}
		server.Close()
	}
	http.DefaultClient.CloseIdleConnections()
	mu.Lock()
	defer mu.Unlock()
	if len(there) == 0 || there[0] != "u:SECRET@@/a%2Fb?key=SECRET" {
		t.Errorf("the server was asked as %q", there)
	}
	if len(elsewhere) == 0 || elsewhere[0] != "/new" {
		t.Errorf("elsewhere was asked as %q", elsewhere)
	}
	if _, err := session.Connect(t.Context(), &session.HTTP{URL: "http://u:SECRET@h:port/"}, nil); err == nil || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("of a malformed URL: %v", err)
	}
}

// Headers are for the scheme and host they were given for: they do not follow a redirect from
// https to http.
func TestHeadersStayEncrypted(t *testing.T) {
	asked := make(chan string, 10)
	transport := roundTripper(func(req *http.Request) (*http.Response, error) {
		asked <- req.URL.Scheme + " " + req.Header.Get("Authorization")
		w := httptest.NewRecorder()
		if req.URL.Scheme == "https" {
			http.Redirect(w, req, "http://server.test/mcp", http.StatusTemporaryRedirect)
		} else {
			http.Error(w, "gone", http.StatusInternalServerError)
		}
		resp := w.Result()
		resp.Request = req
		return resp, nil
	})
	s, err := session.Connect(t.Context(), &session.HTTP{
		URL: "https://server.test/mcp", Client: &http.Client{Transport: transport}, Header: http.Header{"Authorization": {"Bearer SECRET"}},
	}, nil)
	if err == nil {
		_ = s.Close()
	}
	if first, second := <-asked, <-asked; first != "https Bearer SECRET" || second != "http " {
		t.Errorf("asked %q, then %q", first, second)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
