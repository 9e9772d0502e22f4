package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxSessions bounds what is remembered of sessions; a forgotten one is verified again.
	maxSessions = 10_000
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
	initialize json.RawMessage // params, if they are known and not too long to keep
	negotiated bool            // this process saw the session begin
	tasks      bool            // tasks were declared to it
	logLevel   atomic.Pointer[string]
	verified   time.Time
}

type sessions struct {
	mu   sync.Mutex
	byID map[string]*session
}

func newSessions() *sessions { return &sessions{byID: map[string]*session{}} }

func (s *sessions) learn(id string, learned *session) {
	if id == "" || len(id) > 256 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byID) >= maxSessions {
		for old := range s.byID { // any one
			delete(s.byID, old)
			break
		}
	}
	learned.verified = time.Now()
	s.byID[id] = learned
}

func (s *sessions) get(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id]
}

func (s *sessions) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, id)
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
	ctx, cancel := context.WithTimeout(req.Context(), verifyPatience)
	defer cancel()
	ping := req.Clone(ctx)
	ping.Header.Del("Accept-Encoding")
	answer := &recorder{header: http.Header{}}
	h.inner.ServeHTTP(answer, withBody(ping, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"coatcheck-ping-%d","method":"ping"}`, h.pings.Add(1))))
	switch {
	case answer.status >= http.StatusInternalServerError, answer.status == 0: // down, or too busy to say
		return known, req.Context().Err() == nil
	case answer.status >= http.StatusMultipleChoices:
		h.sessions.forget(id)
		maps.Copy(w.Header(), answer.header)
		w.WriteHeader(answer.status)
		_, _ = w.Write(answer.body.Bytes())
		return nil, false
	}
	if known == nil {
		known = &session{}
		h.sessions.learn(id, known)
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
