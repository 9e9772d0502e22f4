package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// processSession bridges one HTTP session and one process. The HTTP side is the SDK's
// transport, which knows streams, sessions and their rules, but takes only methods that it
// knows: so it sees each call as a ping, and the process gets the message as it was.
type processSession struct {
	transport *mcp.StreamableServerTransport
	front     mcp.Connection // the transport's other side
	back      mcp.Connection // the process
	idle      time.Duration
	forget    func() // called when the session ends
	gone      func() // called when the process has ended
	owner     task.Principal

	ctx   context.Context // of the session
	stop  context.CancelFunc
	pumps sync.WaitGroup

	mu        sync.Mutex
	ended     bool
	calls     map[jsonrpc.ID]*call
	order     []*call // the calls, oldest first
	listeners int     // open GET streams
	open      int     // requests being served
	timer     *time.Timer
}

// call is a request on its way.
type call struct {
	message  *jsonrpc.Request
	progress string // its progress token as it was written, or ""
	stream   *eventWriter
}

func newProcessSession(transport *mcp.StreamableServerTransport, front, back mcp.Connection, idle time.Duration, forget, gone func()) *processSession {
	s := &processSession{
		transport: transport, front: front, back: back, idle: idle, forget: forget, gone: gone,
		calls: map[jsonrpc.ID]*call{},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.timer = time.AfterFunc(idle, s.endIfIdle)
	s.pumps.Go(s.toProcess)
	s.pumps.Go(s.fromProcess)
	return s
}

// post serves one message of the client.
func (s *processSession) post(w http.ResponseWriter, req *http.Request, m *protocol.Message, body []byte) {
	defer s.use()()
	msg, err := jsonrpc.DecodeMessage(body)
	if err != nil {
		writeError(w, http.StatusBadRequest, m.ID, protocol.CodeInvalidRequest, err.Error())
		return
	}
	message, isRequest := msg.(*jsonrpc.Request)
	if !isRequest || !message.IsCall() {
		if err := s.back.Write(s.ctx, msg); err != nil {
			http.Error(w, "session is closing", http.StatusNotFound)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		return
	}
	c := &call{
		message:  message,
		progress: string(protocol.Get(protocol.Get(m.Params, "_meta"), "progressToken")),
		stream:   &eventWriter{ResponseWriter: w},
	}
	defer c.stream.close()
	if !s.begin(c) {
		writeError(w, http.StatusBadRequest, m.ID, protocol.CodeInvalidRequest, "a request with this id is in flight, or the session has ended")
		return
	}
	defer s.finish(c)
	if m.Method != protocol.MethodInitialize { // which the transport must see
		stand := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":"ping"}`, m.ID)
		req = req.Clone(req.Context())
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(stand)), int64(len(stand))
	}
	s.transport.ServeHTTP(c.stream, req)
}

// listen serves a GET stream.
func (s *processSession) listen(w http.ResponseWriter, req *http.Request) {
	defer s.use()()
	s.listening(1)
	defer s.listening(-1)
	s.transport.ServeHTTP(w, req)
}

func (s *processSession) listening(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners += n
}

func (s *processSession) begin(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.calls[c.message.ID] != nil {
		return false
	}
	s.calls[c.message.ID] = c
	s.order = append(s.order, c)
	return true
}

// finish takes a call whose client has its answer, or has gone.
func (s *processSession) finish(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[c.message.ID] == c {
		delete(s.calls, c.message.ID)
	}
	for i, other := range s.order {
		if other == c {
			s.order = append(s.order[:i:i], s.order[i+1:]...)
			break
		}
	}
}

// use notes that the session is used until the function it returns is called.
func (s *processSession) use() (unused func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open--; s.open == 0 {
			s.timer.Reset(s.idle)
		}
	}
}

func (s *processSession) endIfIdle() {
	s.mu.Lock()
	used := s.open > 0 // the timer is set again when it no longer is
	s.mu.Unlock()
	if !used {
		s.end(fmt.Errorf("the session was idle for %v", s.idle))
	}
}

// toProcess hands on what the transport took from the client.
func (s *processSession) toProcess() {
	for {
		msg, err := s.front.Read(s.ctx)
		if err != nil {
			s.end(err)
			return
		}
		if stand, ok := msg.(*jsonrpc.Request); ok {
			s.mu.Lock()
			if c := s.calls[stand.ID]; c != nil {
				msg = c.message
				c.stream.ready()
			}
			s.mu.Unlock()
		}
		if err := s.back.Write(s.ctx, msg); err != nil {
			s.end(err)
			return
		}
	}
}

// fromProcess hands on what the process says, on the stream that it belongs to.
func (s *processSession) fromProcess() {
	for {
		msg, err := s.back.Read(s.ctx)
		if err != nil {
			s.end(err)
			return
		}
		stream := s.streamFor(msg)
		if stream == nil || !stream.send(msg) {
			err = s.front.Write(s.ctx, msg) // to the GET stream, or the answer to its call
		}
		if req, ok := msg.(*jsonrpc.Request); ok && req.IsCall() && err != nil {
			// Nobody hears the question: better an answer than silence.
			_ = s.back.Write(s.ctx, &jsonrpc.Response{ID: req.ID, Error: &jsonrpc.Error{
				Code: protocol.CodeInternalError, Message: "the client has no stream open",
			}})
		}
	}
}

// streamFor returns the call's stream that a notification or question should go out on:
// progress on that of its call, anything else on the oldest call's if the client does not
// listen. nil leaves it to the transport.
func (s *processSession) streamFor(msg jsonrpc.Message) *eventWriter {
	req, ok := msg.(*jsonrpc.Request)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if req.Method == protocol.MethodProgress {
		token := string(protocol.Get(req.Params, "progressToken"))
		for _, c := range s.order {
			if c.progress != "" && c.progress == token {
				return c.stream
			}
		}
	}
	if s.listeners == 0 && len(s.order) > 0 {
		return s.order[0].stream
	}
	return nil
}

// end ends the session: its open calls are answered, its streams closed, its process ended.
func (s *processSession) end(why error) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.ended = true
	s.timer.Stop()
	open := s.order
	s.order = nil
	s.mu.Unlock()
	s.forget()
	for _, c := range open {
		_ = s.front.Write(s.ctx, &jsonrpc.Response{ID: c.message.ID, Error: &jsonrpc.Error{
			Code: protocol.CodeInternalError, Message: "no answer: " + why.Error(),
		}}) // fails for one that was answered just now
	}
	s.stop()
	_ = s.front.Close()
	go func() {
		_ = s.back.Close() // waits for the process
		s.pumps.Wait()
		s.gone()
	}()
}

// eventWriter is the response to a call. The transport writes whole events to it, so that
// others can be put between them.
type eventWriter struct {
	http.ResponseWriter

	mu     sync.Mutex
	usable bool // the transport has set the header
	over   bool
}

func (w *eventWriter) ready() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.usable = true
}

func (w *eventWriter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
}

func (w *eventWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return 0, http.ErrHandlerTimeout
	}
	return w.ResponseWriter.Write(p)
}

// FlushError is what http.ResponseController looks for.
func (w *eventWriter) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Flush implements http.Flusher.
func (w *eventWriter) Flush() { _ = w.FlushError() }

// send puts a message of its own on the stream, and reports whether it could.
func (w *eventWriter) send(msg jsonrpc.Message) bool {
	data, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over || !w.usable {
		return false
	}
	event := append(append([]byte("event: message\ndata: "), data...), "\n\n"...)
	if _, err := w.ResponseWriter.Write(event); err != nil {
		return false
	}
	return http.NewResponseController(w.ResponseWriter).Flush() == nil
}
