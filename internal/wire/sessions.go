package wire

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/task"
)

const (
	// maxSessions bounds what is remembered of sessions; a forgotten one is verified again.
	maxSessions = 10_000
	// maxShare bounds it for one principal once there are so many, so that nobody can have
	// those of others forgotten.
	maxShare = maxSessions / 10
	// maxInitialize bounds what is kept of a session's initialize request, in bytes.
	maxInitialize = 64 << 10
	// verifyEvery is how often a session that only sends task messages is shown to the inner
	// handler, which never sees them, so that it does not count the session as idle.
	verifyEvery = 30 * time.Second
	// verifyPatience is how long the inner handler may take to answer.
	verifyPatience = 2 * time.Second
)

// session is what the tap knows of a session of the inner handler.
type session struct {
	owner      task.Principal          // who began it, or was first seen with it
	initialize json.RawMessage         // params, if they are known and not too long to keep
	negotiated bool                    // this process saw the session begin
	tasks      bool                    // tasks were declared to it
	tickets    *receiver.TicketSession // nil if its calls get none
	logLevel   atomic.Pointer[string]
	verified   time.Time
}

// ticketing returns what is known of a session's tickets, or nil.
func (s *session) ticketing() *receiver.TicketSession {
	if s == nil {
		return nil
	}
	return s.tickets
}

type sessions struct {
	mu   sync.Mutex
	byID map[string]*session
	of   map[task.Principal]int // how many each has
}

func newSessions() *sessions {
	return &sessions{byID: map[string]*session{}, of: map[task.Principal]int{}}
}

// keyOf is what a session is known by: a server may put much into an id.
func keyOf(id string) string {
	if len(id) <= 256 {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return string(sum[:])
}

// learn notes a session that has begun.
func (s *sessions) learn(id string, learned *session) {
	id = keyOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(id)
	s.add(id, learned)
}

// claim notes a session of unknown beginning, unless it is known, and returns what is.
func (s *sessions) claim(id string, owner task.Principal) *session {
	id = keyOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.byID[id]; known != nil {
		return known
	}
	claimed := &session{owner: owner}
	s.add(id, claimed)
	return claimed
}

func (s *sessions) add(id string, added *session) {
	if id == "" {
		return
	}
	if len(s.byID) >= maxSessions {
		own := s.of[added.owner] >= maxShare
		for old, known := range s.byID { // any one
			if !own || known.owner == added.owner {
				s.remove(old)
				break
			}
		}
	}
	added.verified = time.Now()
	s.byID[id] = added
	s.of[added.owner]++
}

func (s *sessions) remove(id string) {
	known := s.byID[id]
	if known == nil {
		return
	}
	delete(s.byID, id)
	if s.of[known.owner]--; s.of[known.owner] == 0 {
		delete(s.of, known.owner)
	}
}

func (s *sessions) get(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[keyOf(id)]
}

func (s *sessions) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(keyOf(id))
}

// due reports whether a session should be shown to the inner handler now. Of many requests
// at that moment one does it.
func (s *sessions) due(known *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(known.verified) < verifyEvery {
		return false
	}
	known.verified = time.Now()
	return true
}

// bind makes sure that a request's session is that of its principal: a session id is no
// identity, so another's does not help (SEC-1). The request then goes on with an id that nobody
// has, and is answered exactly like one with an unknown id. If ok is false, the request has been
// answered.
func (h *handler) bind(w http.ResponseWriter, req *http.Request) (bound *http.Request, ok bool) {
	ids := req.Header[sessionHeader]
	if len(ids) == 0 {
		return req, true
	}
	if len(ids) > 1 { // the inner handler might take another one than we do
		http.Error(w, "Bad Request: more than one Mcp-Session-Id header", http.StatusBadRequest)
		return nil, false
	}
	who, identified := h.opts.Principal(req)
	known := h.sessions.get(ids[0])
	if known == nil && identified && ids[0] != "" {
		switch req.Method {
		case http.MethodPost, http.MethodGet, http.MethodDelete:
			if known, ok = h.verify(w, req); !ok {
				return nil, false
			}
		}
	}
	if known == nil || known.owner == who {
		return req, true
	}
	bound = req.Clone(req.Context())
	bound.Header[sessionHeader] = []string{rand.Text()}
	return bound, true
}

// verify makes sure that the request's session exists for the inner handler. If not, it
// has answered the request as the inner handler does, and ok is false. A request without
// a session id needs none: a task belongs to a principal. For the same reason a session
// passes that the inner handler cannot tell of, because the server behind it is down.
func (h *handler) verify(w http.ResponseWriter, req *http.Request) (known *session, ok bool) {
	id := header(req, sessionHeader)
	if id == "" {
		return nil, true
	}
	known = h.sessions.get(id)
	if known != nil && !h.sessions.due(known) {
		return known, true
	}
	who, identified := h.opts.Principal(req)
	ctx, cancel := context.WithTimeout(req.Context(), verifyPatience)
	defer cancel()
	ping := req.Clone(ctx)
	ping.Method = http.MethodPost // whatever the request is: it goes on by itself
	ping.Header.Set("Content-Type", "application/json")
	ping.Header.Set("Accept", "application/json, text/event-stream")
	ping.Header.Del("Accept-Encoding")
	ping.Header.Del("Last-Event-Id")
	answer := &recorder{header: http.Header{}}
	h.inner.ServeHTTP(answer, withBody(ping, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"coatcheck-ping-%d","method":"ping"}`, h.pings.Add(1))))
	switch {
	case answer.status >= http.StatusInternalServerError, answer.status == 0: // down, or too busy to say
		if known == nil && identified {
			known = h.sessions.claim(id, who)
		}
		return known, req.Context().Err() == nil
	case answer.status >= http.StatusMultipleChoices:
		h.sessions.forget(id)
		maps.Copy(w.Header(), answer.header)
		w.WriteHeader(answer.status)
		_, _ = w.Write(answer.body.Bytes())
		return nil, false
	}
	if known == nil {
		known = h.sessions.claim(id, who)
	}
	return known, true
}

// recorder takes an answer of the inner handler that is not for the client, or not yet.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *recorder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.body.Len()+len(p) > DefaultMaxBody {
		return 0, io.ErrShortWrite
	}
	return r.body.Write(p)
}

func (r *recorder) Flush() {}
