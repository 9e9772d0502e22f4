package wire

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
)

// carrying are the plain calls that the inner handler is at and that may become tasks, or have.
// A session that its client ends goes on until they are done.
type carrying struct {
	mu       sync.Mutex
	calls    map[wait]*carried
	sessions map[string]*carryingSession // by scope
}

type carryingSession struct {
	calls map[*carried]struct{}
	end   func() // ends the session; nil while its client is there
}

func newCarrying() *carrying {
	return &carrying{calls: map[wait]*carried{}, sessions: map[string]*carryingSession{}}
}

func (cs *carrying) add(c *carried) {
	if c.scope == "" {
		return
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.calls[wait{c.scope, string(c.id)}] = c
	s := cs.sessions[c.scope]
	if s == nil {
		s = &carryingSession{calls: map[*carried]struct{}{}}
		cs.sessions[c.scope] = s
	}
	s.calls[c] = struct{}{}
}

func (cs *carrying) remove(c *carried) {
	if c.scope == "" {
		return
	}
	cs.mu.Lock()
	if key := (wait{c.scope, string(c.id)}); cs.calls[key] == c {
		delete(cs.calls, key)
	}
	var end func()
	if s := cs.sessions[c.scope]; s != nil {
		delete(s.calls, c)
		if len(s.calls) == 0 {
			end = s.end
			delete(cs.sessions, c.scope)
		}
	}
	cs.mu.Unlock()
	if end != nil {
		end()
	}
}

// cancel tells a call that its client gave it up, and reports whether the server must not hear of
// that: the work goes on all the same, or is a task's by now.
func (cs *carrying) cancel(scope string, id json.RawMessage) bool {
	cs.mu.Lock()
	c := cs.calls[wait{scope, string(id)}]
	cs.mu.Unlock()
	switch {
	case c == nil:
		return false
	case !c.call.Keeps():
		return c.giveUp()
	}
	if c.lost() { // before a repeat can come
		close(c.gone)
	}
	return true
}

// answered notes that a client answers what a server asked in one of its calls.
func (cs *carrying) answered(scope string, id json.RawMessage) {
	cs.mu.Lock()
	var calls []*carried
	if s := cs.sessions[scope]; s != nil {
		for c := range s.calls {
			calls = append(calls, c)
		}
	}
	cs.mu.Unlock()
	for _, c := range calls {
		c.answered(id)
	}
}

// leave has a session end when its calls are done, and reports whether there are any.
func (cs *carrying) leave(scope string, end func()) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	s := cs.sessions[scope]
	if s == nil || scope == "" {
		return false
	}
	s.end = end
	return true
}

// left reports whether a session's client has ended it.
func (cs *carrying) left(scope string) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	s := cs.sessions[scope]
	return s != nil && s.end != nil
}

// delete ends a session: at once, or when the calls that go on in it are done.
func (h *handler) delete(w http.ResponseWriter, req *http.Request) {
	h.sessions.forget(header(req, sessionHeader))
	later := req.Clone(context.WithoutCancel(req.Context()))
	later.Body = http.NoBody
	if h.carrying.leave(h.scope(req), func() {
		ctx, cancel := context.WithTimeout(later.Context(), verifyPatience)
		defer cancel()
		h.inner.ServeHTTP(&recorder{header: http.Header{}}, later.WithContext(ctx))
	}) {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	h.inner.ServeHTTP(w, req)
}
