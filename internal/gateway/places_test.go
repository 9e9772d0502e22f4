package gateway

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// No more sessions than allowed have a process, in all and of one holder, however they race.
func TestPlaces(t *testing.T) {
	p := newPlaces(40)
	var got atomic.Int32
	race := func(holder string) int32 {
		got.Store(0)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if p.take(holder) {
					got.Add(1)
				}
			})
		}
		wg.Wait()
		return got.Load()
	}
	if n := race("a"); n != 10 {
		t.Errorf("a has %d places of 40", n)
	}
	if n := race(""); n != 30 {
		t.Errorf("others have %d places of 30", n)
	}
	for range 10 {
		p.give("a")
	}
	if n := race("b"); n != 10 || len(p.of) != 2 {
		t.Errorf("b has %d places; holders: %v", n, p.of)
	}
	if single := newPlaces(2); !single.take("a") || single.take("a") {
		t.Error("the least that one may have is not 1")
	}
}

// Who holds a session is who is known to.
func TestHolders(t *testing.T) {
	opts := &wire.HTTPOptions{Address: wire.RemoteHost, Principal: func(req *http.Request) (task.Principal, bool) {
		return task.Principal(req.Header.Get("Who")), req.Header.Get("Who") != ""
	}}
	for _, tc := range []struct{ who, from, want string }{
		{"a", "192.0.2.1:5", "principal a"}, {"a", "127.0.0.1:5", "principal a"}, {"", "192.0.2.1:5", "address 192.0.2.1"},
		{"", "127.0.0.1:5", ""}, {"", "[::1]:5", ""},
	} {
		req := httptest.NewRequest(http.MethodPost, "/mcp", nil)
		req.RemoteAddr = tc.from
		req.Header.Set("Who", tc.who)
		if got := new(Config).holders(opts)(req); got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
		if got := (&Config{SingleUser: true}).holders(opts)(req); got != "" {
			t.Errorf("a single user is %q", got)
		}
	}
}

// Beyond --max-sessions initialize is refused, with what a client needs to try again, until the
// process of another session has ended.
func TestMaxSessions(t *testing.T) {
	url := serve(t, Config{Command: []string{"raw"}, Guard: Guard{Sessions: 2}})
	first, second := newClient(t, url), newClient(t, url)
	third := &client{t: t, url: url, web: second.web}
	r := third.post(initialize)
	m, err := protocol.ParseMessage([]byte(r.body))
	if err != nil || r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") != "30" || string(m.ID) != "0" {
		t.Fatalf("the third session: %d %v %s, %v", r.status, r.header, r.body, err)
	}
	if want := `"code":-32029`; !strings.Contains(string(m.Error), want) || !strings.Contains(string(m.Error), `"data":{"limit":"sessions","retryAfterMs":30000}`) {
		t.Errorf("refused with %s", m.Error)
	}
	if result, _ := second.call("vendor/x", `{}`); result == nil {
		t.Error("those who have a session are not served")
	}
	first.do(http.MethodDelete, "")
	eventually(t, "there is a place again", func() bool { return third.post(initialize).status == http.StatusOK })
	if r := (&client{t: t, url: url, web: second.web}).post(initialize); r.status != http.StatusServiceUnavailable {
		t.Errorf("one more than there are places: %d", r.status)
	}
}

// A process that does not start takes no place.
func TestNoPlaceForFailure(t *testing.T) {
	url := serve(t, Config{Command: []string{"/bin/false"}, Guard: Guard{Sessions: 1}})
	c := &client{t: t, url: url, web: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	for range 3 {
		eventually(t, "the place is free", func() bool { return c.post(initialize).status != http.StatusServiceUnavailable })
	}
}
