package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/session"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

const (
	sessionHeader = "Mcp-Session-Id"
	maxBody       = 16 << 20 // bytes of a request
)

// processes serves Streamable HTTP in front of a command that speaks stdio: each HTTP
// session has a process of its own.
type processes struct {
	command func() *exec.Cmd
	idle    time.Duration // after which a session without requests ends
	places  *places
	holder  func(*http.Request) string // of a session's place
	log     *slog.Logger
	// principal returns whose request it is: only who began a session has it (SEC-1).
	principal func(*http.Request) (task.Principal, bool)

	mu      sync.Mutex
	byID    map[string]*processSession
	closed  bool
	running sync.WaitGroup // processes, those of sessions that have ended included
}

func newProcesses(command func() *exec.Cmd, idle time.Duration, places *places, holder func(*http.Request) string, principal func(*http.Request) (task.Principal, bool), log *slog.Logger) *processes {
	return &processes{command: command, idle: idle, places: places, holder: holder, principal: principal, log: log, byID: map[string]*processSession{}}
}

// Close ends all sessions and their processes.
func (p *processes) Close() {
	p.mu.Lock()
	p.closed = true
	all := make([]*processSession, 0, len(p.byID))
	for _, s := range p.byID {
		all = append(all, s)
	}
	p.mu.Unlock()
	for _, s := range all {
		s.end(errors.New("the gateway is shutting down"))
	}
	p.running.Wait()
}

// count returns how many sessions live.
func (p *processes) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.byID)
}

func (p *processes) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	id := req.Header.Get(sessionHeader)
	who, _ := p.principal(req)
	p.mu.Lock()
	s := p.byID[id]
	p.mu.Unlock()
	if s != nil && s.owner != who {
		s = nil
	}
	switch {
	case id != "" && s == nil:
		http.Error(w, "session not found", http.StatusNotFound)
	case req.Method == http.MethodPost:
		p.post(w, req, s, who)
	case req.Method == http.MethodGet && s != nil:
		if !strings.Contains(strings.Join(req.Header.Values("Accept"), ","), "text/event-stream") {
			http.Error(w, "Accept must contain 'text/event-stream' for GET requests", http.StatusBadRequest)
			return
		}
		s.listen(w, req)
	case req.Method == http.MethodDelete && s != nil:
		s.end(session.ErrClosed)
		w.WriteHeader(http.StatusNoContent)
	case req.Method == http.MethodGet || req.Method == http.MethodDelete:
		http.Error(w, "Bad Request: an Mcp-Session-Id header is required", http.StatusBadRequest)
	default:
		w.Header().Set("Allow", "GET, POST, DELETE")
		http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
	}
}

func (p *processes) post(w http.ResponseWriter, req *http.Request, s *processSession, who task.Principal) {
	if media, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); err != nil || media != "application/json" {
		http.Error(w, "Content-Type must be 'application/json'", http.StatusUnsupportedMediaType)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			writeError(w, http.StatusRequestEntityTooLarge, nil, protocol.CodeInvalidRequest, "request body is too large")
			return
		}
		http.Error(w, "failed to read body", http.StatusBadRequest)
		return
	}
	m, err := protocol.ParseMessage(body)
	switch {
	case errors.Is(err, protocol.ErrTooDeep):
		writeError(w, http.StatusBadRequest, nil, protocol.CodeParseError, err.Error())
		return
	case err != nil:
		writeError(w, http.StatusBadRequest, nil, protocol.CodeParseError, "malformed payload: "+err.Error())
		return
	case s == nil && (m.Method != protocol.MethodInitialize || !m.IsCall()):
		writeError(w, http.StatusBadRequest, m.ID, protocol.CodeInvalidRequest, "Bad Request: the first request of a session must be initialize")
		return
	case s == nil:
		holder := p.holder(req)
		if !p.places.take(holder) {
			refuseSession(w, m.ID)
			return
		}
		if s, err = p.start(req.Context(), who, func() { p.places.give(holder) }); err != nil {
			p.log.Error("starting a server process failed", "error", err)
			writeError(w, http.StatusBadGateway, m.ID, protocol.CodeInternalError, "the server process cannot be started")
			return
		}
	}
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	s.post(w, req, m, body)
}

// sessionWait is after how many seconds a client may ask again for a session.
const sessionWait = 30

// refuseSession answers an initialize for which there is no place.
func refuseSession(w http.ResponseWriter, id []byte) {
	w.Header().Set("Retry-After", strconv.Itoa(sessionWait))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusServiceUnavailable)
	refused := protocol.Errorf(protocol.CodeLimitExceeded, "Too many sessions are open: end one, or try again later")
	refused.Data = fmt.Appendf(nil, `{"limit":"sessions","retryAfterMs":%d}`, sessionWait*1000)
	_, _ = w.Write(protocol.AppendError(nil, id, refused.JSON()))
}

// start begins a principal's session with a new process. gone is called when the process has
// ended, or there will be none.
func (p *processes) start(ctx context.Context, owner task.Principal, gone func()) (*processSession, error) {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.running.Add(1)
	}
	p.mu.Unlock()
	if closed {
		gone()
		return nil, session.ErrClosed
	}
	ended := func() {
		gone()
		p.running.Done()
	}
	back, err := session.CommandTransport(p.command()).Connect(context.WithoutCancel(ctx))
	if err != nil {
		ended()
		return nil, err
	}
	transport := &mcp.StreamableServerTransport{SessionID: rand.Text()}
	front, err := transport.Connect(context.WithoutCancel(ctx))
	if err != nil {
		defer ended()
		return nil, errors.Join(err, back.Close())
	}
	s := newProcessSession(transport, front, back, p.idle, func() { p.forget(transport.SessionID) }, ended)
	s.owner = owner
	p.mu.Lock()
	closed = p.closed
	if !closed {
		p.byID[transport.SessionID] = s
	}
	p.mu.Unlock()
	if closed {
		s.end(session.ErrClosed)
		return nil, session.ErrClosed
	}
	return s, nil
}

func (p *processes) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byID, id)
}
