package wire

import (
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"sync"

	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/protocol"
)

// listen serves a GET stream: that of the inner handler, with what the session's tasks have
// to say put between its events (INP-5, NOT-1).
func (h *handler) listen(w http.ResponseWriter, req *http.Request) {
	ctx, stop := context.WithCancel(req.Context())
	var speaking sync.WaitGroup
	defer speaking.Wait()
	defer stop()
	s := &sharedStream{ResponseWriter: w, boundary: make(chan struct{}, 1)}
	known := h.sessions.get(header(req, sessionHeader))
	tasks := hasTasks(header(req, versionHeader)) && (known == nil || !known.negotiated || known.tasks)
	if !tasks && known.ticketing() == nil {
		h.inner.ServeHTTP(w, req)
		return
	}
	s.opened = func() {
		if !tasks {
			return
		}
		outlet := h.receiver.Outlet(h.requestor(req, known))
		speaking.Go(func() {
			defer outlet.Close()
			for {
				m, err := outlet.Next(ctx)
				if err != nil || s.send(ctx, messageEvent(m.Append(nil))) != nil {
					return
				}
			}
		})
	}
	if req.Header.Get("Last-Event-ID") == "" {
		h.inner.ServeHTTP(s, req)
		return
	}
	// What is replayed may be an answer that was to be rewritten.
	rw := newRewriter(s, func(m *protocol.Message) json.RawMessage { return h.replayed(known, tasks, m) })
	h.inner.ServeHTTP(rw, req)
	rw.finish()
}

// plain serves a tools/call that runs plainly, with what its handler asks of the requestor's
// tasks put between the events of its own stream (REL-4).
func (h *handler) plain(w http.ResponseWriter, req *http.Request, body []byte, call *receiver.Plain) {
	defer call.Done()
	ctx, stop := context.WithCancel(req.Context())
	var speaking sync.WaitGroup
	defer speaking.Wait()
	defer stop()
	s := &sharedStream{ResponseWriter: w, opened: func() {}, boundary: make(chan struct{}, 1)}
	call.Speak()
	speaking.Go(func() {
		defer call.Silence()
		for {
			m, err := call.Next(ctx)
			if err != nil || s.send(ctx, messageEvent(m.Append(nil))) != nil {
				return
			}
		}
	})
	h.inner.ServeHTTP(s, withBody(req, body))
}

// sharedStream is an event stream of the inner handler to which events can be added. The inner
// handler's bytes pass as they come.
type sharedStream struct {
	http.ResponseWriter
	opened   func()        // called once the inner handler has begun an event stream
	boundary chan struct{} // receives when the inner handler may be between two events

	mu      sync.Mutex
	started bool
	state   sseState
}

func (s *sharedStream) WriteHeader(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin(status)
}

func (s *sharedStream) begin(status int) {
	if s.started {
		return
	}
	if status >= http.StatusOK {
		s.started = true
	}
	s.ResponseWriter.WriteHeader(status)
	if status == http.StatusOK && s.isStream() {
		s.opened()
	}
}

func (s *sharedStream) isStream() bool {
	media, _, _ := mime.ParseMediaType(s.Header().Get("Content-Type"))
	return media == "text/event-stream" && s.Header().Get("Content-Encoding") == ""
}

var errNoStream = errors.New("the answer is no event stream")

func (s *sharedStream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin(http.StatusOK)
	n, err := s.ResponseWriter.Write(p)
	s.state.passed(p[:n])
	if s.state.between() {
		select {
		case s.boundary <- struct{}{}:
		default:
		}
	}
	return n, err
}

// Flush implements http.Flusher.
func (s *sharedStream) Flush() { _ = s.FlushError() }

// FlushError is what http.ResponseController looks for.
func (s *sharedStream) FlushError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin(http.StatusOK)
	return http.NewResponseController(s.ResponseWriter).Flush()
}

// Unwrap lets http.ResponseController reach the connection's deadlines.
func (s *sharedStream) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// send adds an event, as soon as the inner handler is between two of its own. Of a stream that
// the inner handler has yet to begin, its headers say that it will be one.
func (s *sharedStream) send(ctx context.Context, event []byte) error {
	for {
		s.mu.Lock()
		if s.state.between() {
			defer s.mu.Unlock()
			if !s.isStream() {
				return errNoStream
			}
			s.begin(http.StatusOK)
			if _, err := s.ResponseWriter.Write(event); err != nil {
				return err
			}
			return http.NewResponseController(s.ResponseWriter).Flush()
		}
		s.mu.Unlock()
		select {
		case <-s.boundary:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sseState knows where in an event stream a writer stands.
type sseState struct {
	inLine  bool // a line has begun
	comment bool // it is a comment
	inEvent bool // the event has a line that is no comment
	cr      bool // the last byte was a CR, to which a LF may belong
}

func (s *sseState) passed(p []byte) {
	for _, b := range p {
		switch {
		case b == '\n' && s.cr: // the second half of a line's end
			s.cr = false
			continue
		case b == '\n', b == '\r':
			if !s.inLine {
				s.inEvent = false
			} else if !s.comment {
				s.inEvent = true
			}
			s.inLine, s.comment = false, false
		case !s.inLine:
			s.inLine, s.comment = true, b == ':'
		}
		s.cr = b == '\r'
	}
}

// between reports whether an event can be put here. After a CR it cannot: a LF may follow.
func (s *sseState) between() bool { return !s.inLine && !s.inEvent && !s.cr }
