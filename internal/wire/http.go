// Package wire holds the taps: they take task messages off a connection and leave every
// other byte as it was.
package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// DefaultMaxBody is the default bound on a request body, in bytes.
const DefaultMaxBody = 16 << 20

const (
	sessionHeader = "Mcp-Session-Id"
	versionHeader = "Mcp-Protocol-Version"
	keepAlive     = 15 * time.Second
	patience      = 20 * time.Millisecond // before a tasks/result that waits becomes a stream
)

// HTTPOptions configures Handler.
type HTTPOptions struct {
	// Principal returns who sent a request, and whether that tells the sender from all
	// others. Default: the user of the SDK's auth.TokenInfo; without one, nobody in
	// particular (SEC-1, SEC-3, SEC-4).
	Principal func(*http.Request) (p task.Principal, identified bool)
	MaxBody   int64 // bytes; default DefaultMaxBody
	// Address returns where a request came from, for limits and the audit. Default: the host of
	// its RemoteAddr.
	Address func(*http.Request) string
	// Challenge is the WWW-Authenticate header of a request whose token lacks scopes, to which
	// they are added. Default "Bearer".
	Challenge string
	// AnyHost lets requests pass that reach a loopback address under a foreign host name: from a
	// proxy on this machine, or from a web page that had its name point here.
	AnyHost bool
}

// TokenPrincipal is the default of HTTPOptions.Principal: the identity of the SDK's
// auth.TokenInfo, whose subject is UserID, and whose issuer and client are Extra["iss"] and
// Extra["client_id"], where they are strings.
func TokenPrincipal(req *http.Request) (task.Principal, bool) {
	info := auth.TokenInfoFromContext(req.Context())
	if info == nil {
		return "", false
	}
	who := task.Identity{Subject: info.UserID}
	who.Issuer, _ = info.Extra["iss"].(string)
	who.Client, _ = info.Extra["client_id"].(string)
	if who.Subject == "" && who.Client == "" { // an issuer alone is nobody
		return "", false
	}
	return who.Principal(), true
}

// RemoteHost is the default of HTTPOptions.Address.
func RemoteHost(req *http.Request) string {
	if host, _, err := net.SplitHostPort(req.RemoteAddr); err == nil {
		return host
	}
	return req.RemoteAddr
}

type handler struct {
	inner    http.Handler
	receiver *receiver.Receiver
	opts     HTTPOptions
	sessions *sessions
	waits    *waits
	carrying *carrying
	pings    atomic.Int64 // sent so far
}

// Handler returns a handler that answers task messages itself and leaves the rest to inner,
// which may be any handler of MCP's Streamable HTTP.
func Handler(inner http.Handler, r *receiver.Receiver, opts *HTTPOptions) http.Handler {
	h := &handler{inner: inner, receiver: r, sessions: newSessions(), waits: newWaits(), carrying: newCarrying()}
	if opts != nil {
		h.opts = *opts
	}
	if h.opts.Principal == nil {
		h.opts.Principal = TokenPrincipal
	}
	if h.opts.Address == nil {
		h.opts.Address = RemoteHost
	}
	if h.opts.Challenge == "" {
		h.opts.Challenge = "Bearer"
	}
	if h.opts.MaxBody <= 0 {
		h.opts.MaxBody = DefaultMaxBody
	}
	return h
}

func (h *handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if !h.opts.AnyHost && rebound(req) {
		http.Error(w, "Forbidden: invalid Host header", http.StatusForbidden)
		return
	}
	req, ok := h.bind(w, req)
	if !ok {
		return
	}
	switch {
	case h.carrying.left(h.scope(req)):
		http.Error(w, "session not found", http.StatusNotFound)
	case req.Method == http.MethodDelete:
		h.delete(w, req)
	case req.Method == http.MethodGet:
		h.listen(w, req)
	case req.Method == http.MethodPost && isJSON(req) && h.knows(header(req, versionHeader)):
		h.post(w, req)
	default:
		h.inner.ServeHTTP(w, req)
	}
}

// hasTasks reports whether a protocol version is the one with tasks in its core. A client
// that does not say is given the benefit of the doubt.
func hasTasks(version string) bool { return version == "" || version == protocol.Version20251125 }

// knows reports whether a protocol version is one whose messages may be ours.
func (h *handler) knows(version string) bool {
	return hasTasks(version) || h.receiver.Tickets() && version < protocol.Version20251125
}

// header returns a request header whose name is in canonical form.
func header(req *http.Request, name string) string {
	if values := req.Header[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

func isJSON(req *http.Request) bool {
	contentType := header(req, "Content-Type")
	if contentType == "application/json" {
		return true
	}
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && media == "application/json"
}

func (h *handler) post(w http.ResponseWriter, req *http.Request) {
	body, err := readBody(w, req, h.opts.MaxBody)
	if err != nil {
		if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
			writeError(w, http.StatusRequestEntityTooLarge, nil, protocol.CodeInvalidRequest,
				"request body exceeds "+strconv.FormatInt(tooLarge.Limit, 10)+" bytes")
			return
		}
		http.Error(w, "failed to read body", http.StatusBadRequest)
		return
	}
	m, err := protocol.ParseMessage(body)
	if errors.Is(err, protocol.ErrTooDeep) {
		writeError(w, http.StatusBadRequest, nil, protocol.CodeParseError, err.Error())
		return
	}
	known := h.sessions.get(header(req, sessionHeader))
	tasks := hasTasks(header(req, versionHeader)) && (known == nil || !known.negotiated || known.tasks)
	switch {
	case err == nil && m.IsResponse() && receiver.IsAnswer(m.ID):
		h.accept(w, req, m)
	case err != nil: // malformed: not ours
		h.pass(w, req, body)
	case m.IsResponse(): // to the server
		h.carrying.answered(h.scope(req), m.ID)
		h.pass(w, req, body)
	case !tasks && known.ticketing() == nil && known != nil && known.negotiated: // of another protocol revision
		h.pass(w, req, body)
	case !m.IsCall():
		if h.takes(req, m, tasks) {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		h.pass(w, req, body)
	case m.Method == protocol.MethodInitialize:
		h.initialize(w, req, body, m)
	case m.Method == protocol.MethodToolsList:
		h.rewrite(w, req, body, m.ID, h.declares(known, tasks))
	case h.ticket(w, req, body, m, known):
	case tasks && h.receiver.Takes(m):
		known.ticketing().UsesTasks()
		h.answer(w, req, m)
	default:
		if m.Method == protocol.MethodSetLevel && known != nil {
			if level, ok := protocol.Unquote(protocol.Get(m.Params, "level")); ok {
				known.logLevel.Store(&level)
			}
		}
		call := h.receiver.Plain(h.requestor(req, known), m)
		call.Name(req.Header)
		if call != nil {
			h.plain(w, req, body, call)
			return
		}
		h.pass(w, req, body)
	}
}

// takes reports whether a notification ends here.
func (h *handler) takes(req *http.Request, m *protocol.Message, tasks bool) bool {
	if m.Method != protocol.MethodCancelled {
		return tasks && h.receiver.Hears(m.Method)
	}
	scope, id := h.scope(req), protocol.Get(m.Params, "requestId")
	return h.waits.cancel(scope, id) || h.carrying.cancel(scope, id)
}

// declares returns what edits a session's tools/list results.
func (h *handler) declares(known *session, tasks bool) func(json.RawMessage) json.RawMessage {
	return func(result json.RawMessage) json.RawMessage {
		if tasks {
			result = h.receiver.DeclareTools(result)
		}
		if s := known.ticketing(); s != nil {
			result = s.List(result)
		}
		return result
	}
}

func readBody(w http.ResponseWriter, req *http.Request, limit int64) ([]byte, error) {
	if req.ContentLength > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	const trusted = 1 << 20 // bytes allocated because a header says so
	if req.ContentLength >= 0 && req.ContentLength <= trusted {
		body := make([]byte, req.ContentLength)
		_, err := io.ReadFull(req.Body, body)
		return body, err
	}
	return io.ReadAll(http.MaxBytesReader(w, req.Body, limit))
}

// pass hands the request on with the body it came with.
func (h *handler) pass(w http.ResponseWriter, req *http.Request, body []byte) {
	h.inner.ServeHTTP(w, withBody(req, body))
}

func withBody(req *http.Request, body []byte) *http.Request {
	req.Body = io.NopCloser(bytes.NewReader(body))
	req.ContentLength = int64(len(body))
	return req
}

// rewrite hands a call on and lets change edit the result that comes back.
func (h *handler) rewrite(w http.ResponseWriter, req *http.Request, body []byte, id json.RawMessage, change func(json.RawMessage) json.RawMessage) {
	req.Header.Del("Accept-Encoding") // the answer must be readable here
	rw := newRewriter(w, func(m *protocol.Message) json.RawMessage {
		if !bytes.Equal(m.ID, id) {
			return nil
		}
		return change(m.Result)
	})
	h.inner.ServeHTTP(rw, withBody(req, body))
	rw.finish()
}

// initialize learns a session and declares tasks to it.
func (h *handler) initialize(w http.ResponseWriter, req *http.Request, body []byte, m *protocol.Message) {
	from := h.requestor(req, nil)
	from.Initialize = bytes.Clone(m.Params)
	h.rewrite(w, req, body, m.ID, func(result json.RawMessage) json.RawMessage {
		rewritten, tasks := h.receiver.Negotiate(from, result)
		began := &session{owner: from.Principal, negotiated: true, tasks: tasks, tickets: h.receiver.Ticketing(from, result)}
		if len(from.Initialize) <= maxInitialize {
			began.initialize = from.Initialize
		}
		id := w.Header().Get(sessionHeader)
		h.sessions.learn(id, began)
		if id == "" { // of calls without a session nothing is known: they get no tickets
			return rewritten
		}
		return began.tickets.Instruct(rewritten)
	})
}

// replayed edits an answer that an inner handler sends again on a resumed stream, where the
// request it belongs to is no longer known: only tools/list answers have tools.
func (h *handler) replayed(known *session, tasks bool, m *protocol.Message) json.RawMessage {
	if protocol.Get(m.Result, "tools") == nil {
		return nil
	}
	return h.declares(known, tasks)(m.Result)
}

// scope tells a request's sender from others who use the same request ids: by the session and
// whose it is. A request without a session has none, and its wait ends with its connection.
func (h *handler) scope(req *http.Request) string {
	id := header(req, sessionHeader)
	if id == "" {
		return ""
	}
	principal, _ := h.opts.Principal(req)
	return id + "\x00" + string(principal)
}

func (h *handler) requestor(req *http.Request, s *session) *receiver.Requestor {
	principal, identified := h.opts.Principal(req)
	from := &receiver.Requestor{
		Caller: engine.Caller{
			Principal: principal, Identified: identified,
			TokenInfo: auth.TokenInfoFromContext(req.Context()),
			Header:    req.Header,
			Session:   header(req, sessionHeader),
			Address:   h.opts.Address(req),
		},
	}
	if s != nil {
		from.Initialize = s.initialize
		if level := s.logLevel.Load(); level != nil {
			from.LogLevel = *level
		}
	}
	return from
}

// answer serves a task message.
func (h *handler) answer(w http.ResponseWriter, req *http.Request, m *protocol.Message) {
	s, ok := h.verify(w, req)
	if !ok {
		return
	}
	from := h.requestor(req, s)
	if m.Method == protocol.MethodTasksResult {
		h.result(w, req, from, m)
		return
	}
	a, err := h.receiver.Handle(req.Context(), from, m)
	if err != nil {
		return
	}
	h.write(w, http.StatusOK, a, m.ID)
}

// accept takes an answer to a question that a task asked.
func (h *handler) accept(w http.ResponseWriter, req *http.Request, m *protocol.Message) {
	s, ok := h.verify(w, req)
	if !ok {
		return
	}
	id, _ := protocol.Unquote(m.ID)
	answer := task.Outcome{Result: m.Result, Error: m.Error}
	if answer.Error != nil {
		answer.Result = nil
	}
	if refused, ok := h.receiver.Accept(req.Context(), h.requestor(req, s), id, answer); !ok {
		h.write(w, http.StatusBadRequest, refused, m.ID) // without the id the SDK's client ends its session
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// result serves tasks/result.
func (h *handler) result(w http.ResponseWriter, req *http.Request, from *receiver.Requestor, m *protocol.Message) {
	waiting, a := h.receiver.Result(req.Context(), from, m)
	if waiting == nil {
		h.write(w, http.StatusOK, a, m.ID)
		return
	}
	defer waiting.Close()
	ctx, done := h.waits.begin(req.Context(), h.scope(req), m.ID)
	defer done()
	if !acceptsStream(req) {
		if a, err := waiting.Outcome(ctx); err == nil {
			h.write(w, http.StatusOK, a, m.ID)
		}
		return
	}
	h.await(ctx, w, waiting, m.ID)
}

// await answers a call that waits: as JSON if the answer is there or comes at once, else as a
// stream that is kept open until it is (RES-2), and carries what the task has to say (INP-5).
// Dropping it loses nothing (GET-5). It reports whether the answer was written.
func (h *handler) await(ctx context.Context, w http.ResponseWriter, waiting waiter, id json.RawMessage) bool {
	next := func(patience time.Duration) (receiver.Message, receiver.Answer, bool, error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return waiting.Next(ctx)
	}
	message, a, last, err := next(patience)
	if last {
		h.write(w, http.StatusOK, a, id)
		return ctx.Err() == nil
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache, no-transform")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	if err != nil { // nothing to say yet
		if flush() != nil {
			return false
		}
		message, a, last, err = next(keepAlive)
	}
	for ; ctx.Err() == nil; message, a, last, err = next(keepAlive) {
		event := []byte(": keep-alive\n\n")
		switch {
		case last:
			event = messageEvent(a.Append(nil, id))
		case err == nil:
			event = messageEvent(message.Append(nil))
		}
		_, err := w.Write(event)
		if err == nil {
			err = flush()
		}
		if err != nil || last {
			return err == nil
		}
	}
	return false
}

// waiter is a call that waits for its answer. Next returns what is to be sent next: a message, or
// at last the answer.
type waiter interface {
	Next(ctx context.Context) (m receiver.Message, a receiver.Answer, last bool, err error)
}

// write answers a call, with the status given unless the answer says another.
func (h *handler) write(w http.ResponseWriter, status int, a receiver.Answer, id json.RawMessage) {
	switch {
	case a.RetryAfter != 0:
		status = http.StatusTooManyRequests
		if a.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int((a.RetryAfter+time.Second-1)/time.Second)))
		}
	case a.Scope != "":
		status = http.StatusForbidden
		challenge := h.opts.Challenge + ` error="insufficient_scope", scope="` + a.Scope + `"`
		if h.opts.Challenge != "Bearer" {
			challenge = h.opts.Challenge + `, error="insufficient_scope", scope="` + a.Scope + `"`
		}
		w.Header().Set("WWW-Authenticate", challenge)
	}
	writeJSON(w, status, a.Append(make([]byte, 0, 512), id))
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	header := w.Header()
	header["Content-Type"] = contentTypeJSON
	if len(body) > 2<<10 { // net/http counts short ones itself
		header["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	if status != http.StatusOK {
		w.WriteHeader(status)
	}
	_, _ = w.Write(body)
}

var contentTypeJSON = []string{"application/json"}

func writeError(w http.ResponseWriter, status int, id json.RawMessage, code int64, message string) {
	writeJSON(w, status, protocol.AppendError(nil, id, protocol.Errorf(code, "%s", message).JSON()))
}
