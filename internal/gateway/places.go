package gateway

import (
	"net/http"
	"sync"

	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/internal/wire"
)

// places bounds the HTTP sessions that have a process: in all, and to a quarter of that those
// of one holder.
type places struct {
	most int

	mu    sync.Mutex
	taken int
	of    map[string]int // by holder
}

func newPlaces(most int) *places { return &places{most: most, of: map[string]int{}} }

// take takes a place, if there is one, for a holder; "" is nobody in particular, and not bound
// to a quarter.
func (p *places) take(holder string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken >= p.most || holder != "" && p.of[holder] >= max(1, p.most/4) {
		return false
	}
	p.taken++
	p.of[holder]++
	return true
}

// give gives a holder's place back.
func (p *places) give(holder string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.of[holder]--; p.of[holder] == 0 {
		delete(p.of, holder)
	}
}

// holders returns who holds the session that a request begins: its principal if it has one of
// its own, else its address, unless that is this machine's.
func (c *Config) holders(opts *wire.HTTPOptions) func(*http.Request) string {
	return func(req *http.Request) string {
		if c.SingleUser {
			return ""
		}
		if p, identified := opts.Principal(req); identified {
			return "principal " + string(p)
		}
		if host := opts.Address(req); !wire.IsLoopback(host) {
			return "address " + limit.Place(host)
		}
		return ""
	}
}
