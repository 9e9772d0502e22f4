package engine

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strings"

	"github.com/coatcheck/coatcheck/task"
)

// plainPrefix begins the id of a plain call, which no task's does.
const plainPrefix = "call-"

// OfTask reports whether an event is a task's, and not a plain call's.
func (ev *Event) OfTask() bool { return !strings.HasPrefix(ev.Task, plainPrefix) }

// Plain is a call that runs plainly, not as a task, whose handler has the requestor run tasks.
// Nothing of it is stored.
type Plain struct {
	*Outlet // of the call, if it has a stream of its own
	live    *live
}

// TakePlain gives a call to its handler, once, which must Close it. It returns nil if there is
// no such call.
func (e *Engine) TakePlain(id string) *Plain {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.untaken[id]
	delete(e.untaken, id)
	return p
}

// Abandon ends a call that no handler has taken. One that has been goes on.
func (p *Plain) Abandon() {
	if p.engine.TakePlain(p.ID()) != nil {
		p.Close()
	}
}

// Plain opens a call of a requestor's. Close ends it. It may be told things on a stream of
// its own, if Speak is called, and on that of its session.
func (e *Engine) Plain(l Listener) *Plain {
	p := &Plain{
		live:   &live{ref: task.Ref{Principal: l.Principal, ID: plainPrefix + rand.Text()}, home: place{l.Principal, l.Session}, initialize: l.Initialize},
		Outlet: &Outlet{engine: e, feed: newFeed(l)},
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.plain[p.live.ref] = p.live
	e.untaken[p.ID()] = p
	return p
}

// ID names the call, which is unique.
func (p *Plain) ID() string { return p.live.ref.ID }

// Initialize returns the params of the session's initialize request, or nil.
func (p *Plain) Initialize() json.RawMessage { return p.live.initialize }

// Speak says that the call has a stream, on which Next is sent.
func (p *Plain) Speak() { p.engine.attach(p.live, p.feed) }

// Silence says that the stream has ended, though the call may go on.
func (p *Plain) Silence() {
	p.engine.detach(p.live, p.feed)
}

// Ask is Line's, but nothing is stored.
func (p *Plain) Ask(method string, params json.RawMessage, reply func(task.Outcome)) (withdraw func(), err error) {
	return p.engine.call(p.live, method, params, reply)
}

// Call is Line's.
func (p *Plain) Call(ctx context.Context, method string, params json.RawMessage) (task.Outcome, error) {
	return await(ctx, func(reply func(task.Outcome)) (func(), error) { return p.Ask(method, params, reply) })
}

// Host is Line's.
func (p *Plain) Host(id string) (done func()) { return p.engine.host(p.live, id) }

// Close ends the call: what it asked is taken back, and what the requestor runs for it is
// cancelled.
func (p *Plain) Close() {
	p.engine.silence(p.live)
	p.engine.mu.Lock()
	defer p.engine.mu.Unlock()
	delete(p.engine.plain, p.live.ref)
}

func (e *Engine) plainCall(ref task.Ref) *live {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.plain[ref]
}
