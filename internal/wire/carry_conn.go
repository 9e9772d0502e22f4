package wire

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/protocol"
)

// lines are the plain calls of a connection that the server is at and that may become tasks, or
// have.
type lines struct {
	mu      sync.Mutex
	calls   map[jsonrpc.ID]*line
	stopped map[jsonrpc.ID]json.RawMessage // whose answer nobody waits for any more, with their progress tokens
	empty   chan struct{}                  // closed when there are no calls; nil if nobody waits for that
}

func newLines() *lines {
	return &lines{calls: map[jsonrpc.ID]*line{}, stopped: map[jsonrpc.ID]json.RawMessage{}}
}

// line is carried for a connection. What a server asks is not told apart by call there: it passes.
type line struct {
	conn  *conn
	id    jsonrpc.ID
	call  *receiver.Call
	timer *time.Timer

	mu      sync.Mutex
	state   carriedState
	givenUp bool              // by the client, and the work is to end with that
	missed  bool              // the client gave up while the call was being handed off
	held    []jsonrpc.Message // that came while the call was being handed off
}

func (ls *lines) add(l *line) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.calls[l.id] = l
	delete(ls.stopped, l.id)
}

func (ls *lines) get(id jsonrpc.ID) *line {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.calls[id]
}

// reporting returns the call whose progress a notification is about, if there is one, and whether
// that was stopped.
func (ls *lines) reporting(m *protocol.Message) (l *line, stopped bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.calls {
		if l.call.IsProgress(m) {
			return l, false
		}
	}
	about := protocol.Get(m.Params, "progressToken")
	for _, token := range ls.stopped {
		if token != nil && engine.SameToken(about, token) {
			return nil, true
		}
	}
	return nil, false
}

// answered reports whether a call was stopped whose answer this is.
func (ls *lines) answered(id jsonrpc.ID) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	_, ok := ls.stopped[id]
	delete(ls.stopped, id)
	return ok
}

// maxStopped bounds what is remembered of calls whose server may never answer them.
const maxStopped = 1024

// stop takes out a call whose client has its answer: that of the server is no longer for it.
func (ls *lines) stop(l *line) {
	ls.mu.Lock()
	if ls.calls[l.id] == l {
		if len(ls.stopped) >= maxStopped {
			for id := range ls.stopped { // any one
				delete(ls.stopped, id)
				break
			}
		}
		ls.stopped[l.id] = l.call.Token()
	}
	ls.mu.Unlock()
	ls.remove(l.id)
}

func (ls *lines) remove(id jsonrpc.ID) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.calls, id)
	if len(ls.calls) == 0 && ls.empty != nil {
		close(ls.empty)
		ls.empty = nil
	}
}

// all returns the calls, and a channel that is closed when there are none any more.
func (ls *lines) all() (calls []*line, empty <-chan struct{}) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.calls {
		calls = append(calls, l)
	}
	if ls.empty == nil {
		ls.empty = make(chan struct{})
		if len(ls.calls) == 0 {
			close(ls.empty)
			defer func() { ls.empty = nil }()
		}
	}
	return calls, ls.empty
}

// carry has a call that goes on to the server become a task if it takes long.
func (c *conn) carry(id jsonrpc.ID, call *receiver.Call) {
	l := &line{conn: c, id: id, call: call}
	c.lines.add(l)
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _, next := call.Due(time.Now())
	l.timer = time.AfterFunc(next, l.tick)
}

// tick does what is due: a heartbeat, or handing the call off.
func (l *line) tick() {
	l.mu.Lock()
	if l.state != attached {
		l.mu.Unlock()
		return
	}
	beat, over, next := l.call.Due(time.Now())
	if beat != nil {
		_ = l.conn.send(*beat) // fails only when nobody reads any more
	}
	if !over {
		l.timer.Reset(next)
		l.mu.Unlock()
		return
	}
	l.state = handing
	l.mu.Unlock()
	l.handOff()
}

func (l *line) handOff() {
	a, err := l.call.HandOff(l.conn.ctx, l.stop)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.release()
		return
	}
	switch {
	case l.conn.Connection.Write(l.conn.ctx, response(l.id, a)) == nil:
	case l.call.Keeps():
		l.call.LoseTicket()
	default:
		l.givenUp = true
	}
	l.toTask()
}

// lose makes the call a task without an answer, unless its client has one.
func (l *line) lose() {
	l.mu.Lock()
	before := l.state
	switch before {
	case attached:
		l.state = handing
		l.timer.Stop()
	case handing:
		l.missed = true
	case handed, settled, dropped:
	}
	l.mu.Unlock()
	switch before {
	case handing, handed:
		l.call.LoseTicket()
		return
	case settled, dropped:
		return
	case attached:
	}
	err := l.call.Lost(l.conn.ctx, l.stop)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.missed = true
		l.release()
		return
	}
	l.toTask()
}

// giveUp deals with a client that gave up a call whose work is to end with that. It reports false
// if the server must hear of it from the client.
func (l *line) giveUp() bool {
	l.mu.Lock()
	state := l.state
	l.givenUp = true
	if state == attached {
		l.settle()
	}
	l.mu.Unlock()
	if state == handed {
		l.call.Cancel()
	}
	return state == handing || state == handed
}

// leave deals with a client that is gone: work that is to end with that does so with the connection.
func (l *line) leave() {
	if !l.call.Keeps() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.state == attached {
			l.settle()
		}
		return
	}
	l.lose()
}

// settle has what the server says pass.
func (l *line) settle() {
	l.state = settled
	l.timer.Stop()
	l.conn.lines.remove(l.id)
}

// release has the client hear again.
func (l *line) release() {
	if l.state == dropped {
		return
	}
	l.state = attached
	for _, msg := range l.held {
		l.pass(msg)
	}
	l.held = nil
	switch {
	case l.state != attached:
	case l.givenUp || l.missed: // nowhere to keep it, and nothing that would bound it
		l.settle()
		go l.conn.cancel(l.id)
	default:
		_, _, next := l.call.Due(time.Now())
		l.timer.Reset(next)
	}
}

func (l *line) pass(msg jsonrpc.Message) {
	switch msg := msg.(type) {
	case *jsonrpc.Response:
		l.settle()
	case *jsonrpc.Request:
		if !l.call.Progress(msg.Params) {
			return
		}
	}
	_ = l.conn.Connection.Write(l.conn.ctx, msg) // fails only when nobody reads any more
}

func (l *line) toTask() {
	closed := l.state == dropped
	l.state = handed
	for _, msg := range l.held {
		if _, answer := msg.(*jsonrpc.Response); answer {
			closed = false
		}
		l.tell(msg)
	}
	l.held = nil
	if closed {
		go l.call.Interrupted()
	}
	if l.givenUp {
		go l.call.Cancel()
	}
}

// tell has the task hear a message.
func (l *line) tell(msg jsonrpc.Message) {
	switch msg := msg.(type) {
	case *jsonrpc.Response:
		go l.end(msg) // the server may have more to say before a store that fails for a while has it
	case *jsonrpc.Request:
		l.call.Notified(&protocol.Message{Method: msg.Method, Params: msg.Params})
	}
}

func (l *line) end(msg *jsonrpc.Response) {
	defer l.conn.lines.remove(l.id)
	if msg.Error != nil {
		l.call.Ended(nil, errorObject(msg.Error))
	} else {
		l.call.Ended(msg.Result, nil)
	}
}

// close deals with a connection that has ended: what the server still says reaches nobody.
func (l *line) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer.Stop()
	if l.state == handed {
		go l.call.Interrupted()
	}
	l.state = dropped
}

// hear takes a message of the server's about the call, and reports whether it goes no further.
func (l *line) hear(msg jsonrpc.Message) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.state {
	case handing:
		l.held = append(l.held, msg)
		return true
	case handed:
		l.tell(msg)
		return true
	case attached, settled, dropped:
	}
	switch msg := msg.(type) {
	case *jsonrpc.Response:
		l.settle()
	case *jsonrpc.Request:
		return !l.call.Progress(msg.Params)
	}
	return false
}

// stop ends the work.
func (l *line) stop() {
	l.conn.lines.stop(l)
	l.conn.cancel(l.id)
}

// cancel tells the server to stop a call, by a message that the client never sent.
func (c *conn) cancel(id jsonrpc.ID) {
	params := append(append(json.RawMessage(`{"requestId":`), protocol.Marshal(id.Raw())...), '}')
	c.inject(&jsonrpc.Request{Method: protocol.MethodCancelled, Params: params})
}

// hears takes a message of the server's that is about a plain call, and reports whether it goes no
// further.
func (c *conn) hears(msg jsonrpc.Message) bool {
	switch msg := msg.(type) {
	case *jsonrpc.Response:
		if l := c.lines.get(msg.ID); l != nil {
			return l.hear(msg)
		}
		return c.lines.answered(msg.ID)
	case *jsonrpc.Request:
		if msg.Method != protocol.MethodProgress {
			return false
		}
		l, stopped := c.lines.reporting(&protocol.Message{Method: msg.Method, Params: msg.Params})
		if l != nil {
			return l.hear(msg)
		}
		return stopped
	}
	return false
}

// linger lets the calls that go on without their client end, for a while.
func (c *conn) linger() {
	calls, empty := c.lines.all()
	for _, l := range calls {
		l.leave()
	}
	if len(calls) == 0 || c.grace <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), c.grace)
	defer cancel()
	select {
	case <-empty:
	case <-ctx.Done():
	}
}
