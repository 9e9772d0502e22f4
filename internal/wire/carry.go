package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// carried is a plain tools/call on its way between its client and the inner handler, until the
// client's patience is over: then the client gets a ticket, and what the inner handler still
// says goes to the task. Until then it passes as the inner handler writes it, event by event.
type carried struct {
	handler *handler
	call    *receiver.Call
	id      json.RawMessage
	scope   string        // see handler.scope
	request *http.Request // as it came, for others in its name
	abort   context.CancelFunc
	streams bool          // the client takes event streams
	gone    chan struct{} // closed when the client has given the call up, and it goes on

	mu      sync.Mutex
	state   carriedState
	givenUp bool                // by the client, and the work is to end with that
	missed  bool                // the client gave up while the call was being handed off
	w       http.ResponseWriter // the client's
	header  http.Header         // the inner handler's
	status  int                 // the same; 0: none yet
	sent    http.Header         // header, as it was with the status
	stream  bool                // the inner handler writes events
	began   bool                // the client has headers
	own     bool                // of an event stream that the inner handler did not begin
	over    bool                // the inner handler has returned
	pending bytes.Buffer        // an event, or a body, so far
	held    [][]byte            // events that came while the call was being handed off
	asked   []*protocol.Message // what the server asks and was not answered yet
}

type carriedState int

const (
	attached carriedState = iota // to the client
	handing                      // off
	handed
	settled // the client has its answer, or gets the bytes of one
	dropped // nobody hears any more
)

// maxHeld bounds what is kept of an answer that is not the client's yet, in bytes.
const maxHeld = 64 << 20

// carry serves a plain call that may become a task.
func (h *handler) carry(w http.ResponseWriter, req *http.Request, body []byte, m *protocol.Message, call *receiver.Call) {
	ctx, abort := context.WithCancel(context.WithoutCancel(req.Context()))
	c := &carried{
		handler: h, call: call, id: bytes.Clone(m.ID), scope: h.scope(req), abort: abort, w: w, header: http.Header{},
		streams: acceptsStream(req), gone: make(chan struct{}), request: req.Clone(ctx),
	}
	c.request.Header.Del("Accept-Encoding") // the answer must be readable here
	inner := withBody(c.request.Clone(ctx), body)
	h.carrying.add(c)
	done := make(chan any, 1)
	go func() {
		defer func() {
			p := recover()
			c.finish()
			h.carrying.remove(c)
			abort()
			done <- p
		}()
		h.inner.ServeHTTP(c, inner)
	}()
	c.wait(req, done)
}

func acceptsStream(req *http.Request) bool {
	return strings.Contains(strings.Join(req.Header.Values("Accept"), ","), "text/event-stream")
}

// wait returns when the client needs nothing more.
func (c *carried) wait(req *http.Request, done <-chan any) {
	timer := time.NewTimer(c.due())
	defer timer.Stop()
	for {
		select {
		case p := <-done:
			if p != nil {
				panic(p) // as it would have been without us
			}
			return
		case <-c.gone:
			return
		case <-req.Context().Done():
		case <-timer.C:
			if next := c.due(); next > 0 {
				timer.Reset(next)
				continue
			}
			if c.handOff(req.Context()) {
				return
			}
			timer.Reset(c.due())
			continue
		}
		if c.lost() {
			return
		}
		select { // the inner handler is at the last bytes of the answer
		case <-c.gone:
		case p := <-done:
			if p != nil {
				panic(p)
			}
		}
		return
	}
}

// due sends the heartbeat that is due, and returns when to look again; 0: the patience is over.
func (c *carried) due() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != attached || c.givenUp || c.missed {
		return time.Hour
	}
	beat, over, next := c.call.Due(time.Now())
	switch {
	case over:
		return 0
	case beat == nil || !c.streams || c.began && !c.own && !c.stream:
		return next
	}
	if !c.began {
		c.own = true
		c.begin(http.StatusOK, http.Header{"Content-Type": {"text/event-stream"}, "Cache-Control": {"no-cache, no-transform"}})
	}
	_, _ = c.w.Write(messageEvent(beat.Append(nil)))
	_ = http.NewResponseController(c.w).Flush()
	return next
}

// begin sends the client headers.
func (c *carried) begin(status int, header http.Header) {
	c.began = true
	maps.Copy(c.w.Header(), header)
	c.w.WriteHeader(status)
}

// respond has an attached client get what the inner handler has begun to answer, unless that goes
// into a stream which is there already.
func (c *carried) respond() {
	if c.began || c.status == 0 {
		return
	}
	if c.stream {
		c.sent.Del("Content-Length") // there may be events of ours
	}
	c.begin(c.status, c.sent)
	if !c.stream {
		c.state = settled
		_, _ = c.w.Write(c.pending.Bytes())
		c.pending.Reset()
	}
}

// handOff makes the call a task and answers the client with the ticket. It reports false if the
// client waits on.
func (c *carried) handOff(ctx context.Context) bool {
	if !c.hold() {
		return false
	}
	a, err := c.call.HandOff(ctx, c.stop)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.release()
		return false
	}
	if c.began {
		_, _ = c.w.Write(messageEvent(a.Append(nil, c.id)))
		_ = http.NewResponseController(c.w).Flush()
	} else {
		writeJSON(c.w, http.StatusOK, a.Append(nil, c.id))
	}
	switch {
	case ctx.Err() == nil:
	case c.call.Keeps():
		c.call.LoseTicket()
	default:
		c.givenUp = true
	}
	c.toTask()
	return true
}

// lost deals with a client that gave up the call or went away. It reports false if the answer
// is on its way all the same.
func (c *carried) lost() bool {
	if !c.call.Keeps() {
		c.mu.Lock()
		attachedStill := c.state == attached
		if attachedStill {
			c.state = dropped
		}
		c.mu.Unlock()
		if attachedStill {
			c.stop()
		}
		return attachedStill
	}
	if !c.hold() {
		c.mu.Lock()
		c.missed = true
		c.mu.Unlock()
		c.call.LoseTicket()
		return false
	}
	err := c.call.Lost(c.request.Context(), c.stop)
	c.mu.Lock()
	if err == nil {
		c.toTask()
	} else {
		c.state = dropped
	}
	c.mu.Unlock()
	if err != nil { // nowhere to keep it, and nothing that would bound it
		c.stop()
	}
	return true
}

// giveUp deals with a client that gave up a call whose work is to end with that. It reports false
// if the server must hear of it from the client.
func (c *carried) giveUp() bool {
	c.mu.Lock()
	state := c.state
	c.givenUp = true
	c.mu.Unlock()
	if state == handed {
		c.call.Cancel()
	}
	return state == handing || state == handed
}

// hold has what the inner handler says wait. It reports false if the client has its answer, or
// wants none.
func (c *carried) hold() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != attached || c.givenUp || c.missed || c.began && !c.own && !c.stream {
		return false
	}
	c.state = handing
	return true
}

// release has the client hear again.
func (c *carried) release() {
	c.state = attached
	c.respond()
	for _, event := range c.held {
		_ = c.pass(event) // fails only when nobody reads any more
	}
	c.held = nil
	if c.over {
		c.conclude()
	}
	if c.givenUp || c.missed { // nowhere to keep it, and nothing that would bound it
		go c.stop()
	}
}

// toTask has the task hear what the server says from here on, and what it asks already.
func (c *carried) toTask() {
	c.state = handed
	for _, m := range c.asked {
		c.call.Asked(m, c.answer(m.ID))
	}
	c.asked = nil
	for _, event := range c.held {
		c.tell(event)
	}
	c.held = nil
	if c.over {
		c.conclude()
	}
	if c.givenUp {
		go c.call.Cancel()
	}
}

// tell has the task hear an event.
func (c *carried) tell(event []byte) {
	m, err := protocol.ParseMessage(eventData(event))
	switch {
	case err != nil:
	case m.IsResponse():
		c.call.Ended(m.Result, m.Error)
	case m.IsCall():
		c.call.Asked(m, c.answer(m.ID))
	default:
		c.call.Notified(m)
	}
}

// answer returns what gives the inner handler an answer to what the server asked.
func (c *carried) answer(id json.RawMessage) func(task.Outcome) {
	id = bytes.Clone(id)
	return func(answer task.Outcome) {
		a := receiver.Answer{Result: answer.Result, Error: answer.Error}
		go c.send(a.Append(nil, id))
	}
}

// send sends the inner handler a message in the call's session.
func (c *carried) send(message []byte) {
	c.handler.deliver(withBody(c.request.Clone(context.WithoutCancel(c.request.Context())), message))
}

// deliver gives the inner handler a request whose answer is for nobody.
func (h *handler) deliver(req *http.Request) {
	ctx, cancel := context.WithTimeout(req.Context(), verifyPatience)
	defer cancel()
	defer func() { _ = recover() }() // as the server behind a proxy goes away: there is nobody to tell
	h.inner.ServeHTTP(&recorder{header: http.Header{}}, req.WithContext(ctx))
}

// stop ends the work.
func (c *carried) stop() {
	params := append(append([]byte(`{"requestId":`), c.id...), '}')
	c.send(receiver.Message{Method: protocol.MethodCancelled, Params: params}.Append(nil))
	c.abort()
}

// Header implements http.ResponseWriter.
func (c *carried) Header() http.Header { return c.header }

// WriteHeader implements http.ResponseWriter.
func (c *carried) WriteHeader(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeHeader(status)
}

func (c *carried) writeHeader(status int) {
	if c.status != 0 || status < http.StatusOK {
		return
	}
	c.status, c.sent = status, c.header.Clone()
	media, _, _ := mime.ParseMediaType(c.header.Get("Content-Type"))
	c.stream = status == http.StatusOK && media == "text/event-stream" && c.header.Get("Content-Encoding") == ""
	if c.state == attached {
		c.respond()
	}
}

// Write implements http.ResponseWriter.
func (c *carried) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeHeader(http.StatusOK)
	if c.stream && c.pending.Len()+len(p) > maxHeld && (c.state == attached || c.state == settled) {
		c.state, c.stream = settled, false // so long an event can only be the answer
		_, err := c.w.Write(c.pending.Bytes())
		c.pending.Reset()
		if err != nil {
			return 0, err
		}
	}
	switch {
	case c.state == dropped:
		return len(p), nil
	case c.state == settled && !c.stream:
		return c.w.Write(p)
	case c.pending.Len()+len(p) > maxHeld:
		return 0, errTooLong
	}
	inLine := c.pending.Len() > 0 && c.pending.Bytes()[c.pending.Len()-1] != '\r'
	c.pending.Write(p)
	if !c.stream || inLine && bytes.IndexByte(p, '\n') < 0 && bytes.IndexByte(p, '\r') < 0 { // a long line is not looked at again and again
		return len(p), nil
	}
	for {
		end := eventEnd(c.pending.Bytes())
		if end == 0 {
			return len(p), nil
		}
		if err := c.event(c.pending.Next(end)); err != nil {
			return 0, err
		}
	}
}

var errTooLong = errors.New("the answer is too long")

// event takes a whole event of the inner handler's.
func (c *carried) event(event []byte) error {
	switch c.state {
	case attached, settled:
		return c.pass(event)
	case handing:
		c.held = append(c.held, bytes.Clone(event))
	case handed:
		c.tell(event)
	case dropped:
	}
	return nil
}

// pass passes an event on to the client, unless it is progress that would go back.
func (c *carried) pass(event []byte) error {
	if m, err := protocol.ParseMessage(eventData(event)); err == nil {
		switch {
		case m.IsResponse():
			c.state = settled
		case m.IsCall():
			c.asked = append(c.asked, &protocol.Message{ID: bytes.Clone(m.ID), Method: m.Method, Params: bytes.Clone(m.Params)})
		case c.call.IsProgress(m) && !c.call.Progress(m.Params):
			return nil
		case m.Method == protocol.MethodCancelled:
			c.forget(protocol.Get(m.Params, "requestId"))
		}
	}
	_, err := c.w.Write(event)
	return err
}

func (c *carried) forget(id json.RawMessage) bool {
	before := len(c.asked)
	c.asked = slices.DeleteFunc(c.asked, func(m *protocol.Message) bool { return bytes.Equal(m.ID, id) })
	return len(c.asked) < before
}

// answered notes that the client answers what the server asked, by itself.
func (c *carried) answered(id json.RawMessage) {
	c.mu.Lock()
	forgotten := c.forget(id)
	c.mu.Unlock()
	if !forgotten {
		c.call.Answered(id)
	}
}

// Flush implements http.Flusher.
func (c *carried) Flush() { _ = c.FlushError() }

// FlushError is what http.ResponseController looks for.
func (c *carried) FlushError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != attached && c.state != settled {
		return nil
	}
	c.writeHeader(http.StatusOK)
	return http.NewResponseController(c.w).Flush()
}

// finish ends the answer: the inner handler has returned.
func (c *carried) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.conclude()
}

// conclude gives the end of the answer to whoever is to have it.
func (c *carried) conclude() {
	body := c.pending.Bytes()
	switch c.state {
	case attached:
		if c.own && !c.stream { // a body, to a client that was given a stream meanwhile
			_, _ = c.w.Write(messageEvent(c.wholeAnswer(body)))
			_ = http.NewResponseController(c.w).Flush()
		} else {
			c.writeHeader(http.StatusOK)
			_, _ = c.w.Write(body)
		}
		c.state = settled
	case handed:
		if c.stream {
			c.call.Ended(nil, nil) // if it had an answer, nothing changes
		} else {
			c.tell(messageEvent(c.wholeAnswer(body)))
		}
	case settled: // the bytes after its last event
		_, _ = c.w.Write(body)
	case handing, dropped: // whoever hands it off concludes it
	}
}

// wholeAnswer returns the response that is a body of the inner handler's, or an error.
func (c *carried) wholeAnswer(body []byte) []byte {
	if m, err := protocol.ParseMessage(body); err == nil && m.IsResponse() {
		return body
	}
	return c.noAnswer()
}

func (c *carried) noAnswer() []byte {
	return protocol.AppendError(nil, c.id, protocol.Errorf(protocol.CodeInternalError, "The server gave no answer").JSON())
}
