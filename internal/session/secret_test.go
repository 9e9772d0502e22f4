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
