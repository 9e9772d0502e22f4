package engine

import (
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// openQuestion is a question that a task waits for the answer to.
type openQuestion struct {
	name  question
	input task.InputRequest
	reply func(task.Outcome) // to the work; must not block
	on    *Feed              // the stream it is out on; nil: it waits for one
	span  trace.Span         // nil if there is none
	at    time.Time          // when it was asked
}

// audience are the streams on which a running task's requestor listens, and what is to be
// answered on them.
type audience struct {
	mu     sync.Mutex
	feeds  []*Feed         // of tasks/result calls, oldest first
	open   []*openQuestion // first asked first
	calls  calls
	told   float64 // the progress reported last
	spoke  bool    // it has reported progress
	latest *Event  // the progress reported last
	over   bool
}

// place is where a session's own streams are found.
type place struct {
	principal task.Principal
	session   string
}

// outlets are the streams that belong to sessions and not to a call: the connection of a
// stdio session, the GET stream of an HTTP one.
type outlets struct {
	mu sync.RWMutex
	of map[task.Principal]map[string][]*Feed // by session; the latest is the one that is used
}

func (o *outlets) add(f *Feed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := place{f.listener.Principal, f.listener.Session}
	if o.of[at.principal] == nil {
		o.of[at.principal] = map[string][]*Feed{}
	}
	o.of[at.principal][at.session] = append(o.of[at.principal][at.session], f)
}

func (o *outlets) remove(f *Feed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := place{f.listener.Principal, f.listener.Session}
	sessions := o.of[at.principal]
	sessions[at.session] = slices.DeleteFunc(sessions[at.session], func(other *Feed) bool { return other == f })
	if len(sessions[at.session]) == 0 {
		delete(sessions, at.session)
	}
	if len(sessions) == 0 {
		delete(o.of, at.principal)
	}
}

// at returns the stream of one session, or nil.
func (o *outlets) at(p place) *Feed {
	if p.session == "" {
		return nil
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	if feeds := o.of[p.principal][p.session]; len(feeds) > 0 {
		return feeds[len(feeds)-1]
	}
	return nil
}

// hearing returns those that may be told of a task's status: the sessions of its principal,
// or, where that does not tell requestors apart, the one session that made it (NOT-1).
func (o *outlets) hearing(p place) []*Feed {
	o.mu.RLock()
	defer o.mu.RUnlock()
	var all []*Feed
	for session, feeds := range o.of[p.principal] {
		if f := feeds[len(feeds)-1]; f.listener.Identified || session != "" && session == p.session {
			all = append(all, f)
		}
	}
	return all
}

// all returns the streams of one session, those too that another took the place of.
func (o *outlets) all(p place) []*Feed {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return slices.Clone(o.of[p.principal][p.session])
}

// attach adds the stream of a tasks/result call. What is open is asked on it, whether or not
// it is out elsewhere: that stream may be dead, and nobody knows yet (requirements C.7). What
// waits on an earlier stream of its session moves to it. What is on its way there, perhaps
// over the same connection, is written once the channel is closed; nil if nothing is.
func (e *Engine) attach(l *live, f *Feed) (written <-chan struct{}) {
	l.audience.mu.Lock()
	defer l.audience.mu.Unlock()
	if l.audience.over {
		return nil
	}
	earlier := e.spokenOn(l, f.listener.Session)
	if earlier != nil {
		written = earlier.handOver(l.ref.ID, f)
	} else {
		l.catchUp(f)
	}
	l.audience.feeds = append(l.audience.feeds, f)
	home := e.outlets.at(l.home)
	for _, q := range l.audience.open {
		if f.listener.Connection && home != nil && q.on == home && l.home.session == f.listener.Session {
			continue // it was pushed on this very connection
		}
		e.askOn(q, f)
	}
	for _, q := range l.audience.calls.open {
		e.askOn(q, f)
	}
	return written
}

// catchUp tells a stream of the progress reported last: it may have been told on one that has
// dropped, or on none.
func (l *live) catchUp(f *Feed) {
	if l.audience.latest != nil {
		f.push(*l.audience.latest)
	}
}

// spokenOn returns the stream on which a session is told what a task says, or nil.
func (e *Engine) spokenOn(l *live, session string) *Feed {
	if session == "" {
		return nil
	}
	for _, f := range slices.Backward(l.audience.feeds) {
		if f.listener.Session == session {
			return f
		}
	}
	if session == l.home.session {
		return e.outlets.at(l.home)
	}
	return nil
}

// detach removes a stream; what was to be said on it, and questions that were out, go to another.
func (e *Engine) detach(l *live, f *Feed) {
	l.audience.mu.Lock()
	defer l.audience.mu.Unlock()
	l.audience.feeds = slices.DeleteFunc(l.audience.feeds, func(other *Feed) bool { return other == f })
	unsaid := f.end()
	if other := e.spokenOn(l, f.listener.Session); other != nil && !l.audience.over {
		for _, ev := range unsaid {
			other.push(ev)
		}
	}
	e.offerAgain(l, f)
}

// askOn puts a question on a stream, if its client can answer it.
func (e *Engine) askOn(q *openQuestion, f *Feed) bool {
	if refusal(f.listener.Initialize, q.input.Method, q.input.Params) != nil || !f.ask(q) {
		return false
	}
	q.on = f
	return true
}

// offer puts a question that waits on one of the streams there are: the one opened last.
func (e *Engine) offer(l *live, q *openQuestion) {
	for _, f := range slices.Backward(l.audience.feeds) {
		if e.askOn(q, f) {
			return
		}
	}
	if !e.opts.PushInput {
		return
	}
	if f := e.outlets.at(l.home); f != nil {
		e.askOn(q, f)
	}
}

// closeQuestion takes a question from those that are open, and back from where it is out.
func (e *Engine) closeQuestion(l *live, q *openQuestion, answeredAs string) {
	l.audience.mu.Lock()
	defer l.audience.mu.Unlock()
	l.audience.open = slices.DeleteFunc(l.audience.open, func(other *openQuestion) bool { return other == q })
	e.takeBack(l, q, answeredAs)
}

func (e *Engine) takeBack(l *live, q *openQuestion, answeredAs string) {
	for _, f := range l.audience.feeds {
		f.closed(q.name, answeredAs)
	}
	for _, f := range e.outlets.all(l.home) {
		f.closed(q.name, answeredAs)
	}
}

// tell puts what a task says on the streams of its tasks/result calls, one for each session,
// and on that of the session that made it.
func (e *Engine) tell(l *live, ev Event) {
	l.audience.mu.Lock()
	defer l.audience.mu.Unlock()
	if l.audience.over {
		return
	}
	if ev.Method == protocol.MethodProgress {
		l.audience.latest = &ev
	}
	heard := l.eachSession(func(f *Feed) { f.push(ev) })
	if !heard[l.home.session] {
		if f := e.outlets.at(l.home); f != nil {
			f.push(ev)
		}
	}
}

// eachSession calls visit with one stream of each session that waits for the task, and
// returns the sessions.
func (l *live) eachSession(visit func(*Feed)) map[string]bool {
	if len(l.audience.feeds) == 0 {
		return nil
	}
	heard := map[string]bool{}
	for _, f := range slices.Backward(l.audience.feeds) {
		if session := f.listener.Session; session != "" {
			if heard[session] {
				continue
			}
			heard[session] = true
		}
		visit(f)
	}
	return heard
}

// announce tells of a task's new status (NOT-1). The streams of tasks/result calls need not
// hear of the last one, which their answer tells.
func (e *Engine) announce(l *live, t *task.Task) {
	if e.opts.NoStatusNotifications || l.unannounced {
		return
	}
	ev := Event{Task: t.ID, Method: protocol.MethodTasksStatus, State: t}
	told := e.announceTo(l.home, ev)
	if t.Status.Terminal() {
		return
	}
	l.audience.mu.Lock()
	defer l.audience.mu.Unlock()
	l.eachSession(func(f *Feed) {
		if f.listener.Session == "" || !slices.ContainsFunc(told, func(o *Feed) bool { return o.listener.Session == f.listener.Session }) {
			f.push(ev)
		}
	})
}

func (e *Engine) announceTo(home place, ev Event) (told []*Feed) {
	told = e.outlets.hearing(home)
	for _, f := range told {
		f.push(ev)
	}
	return told
}

// silence ends what a task has to say: its questions are taken back, its progress is
// dropped.
func (e *Engine) silence(l *live) {
	l.audience.mu.Lock()
	defer l.audience.mu.Unlock()
	l.audience.over = true
	for _, q := range l.audience.open {
		e.takeBack(l, q, "")
		q.dropped()
	}
	l.audience.open, l.audience.latest = nil, nil
	e.silenceCalls(l)
	if !l.audience.spoke {
		return
	}
	for _, f := range l.audience.feeds {
		f.over(l.ref.ID)
	}
	for _, f := range e.outlets.all(l.home) {
		f.over(l.ref.ID)
	}
}

// lastWord waits, not for long, until a task's progress is on its way, so that the last one
// comes before the end.
func (e *Engine) lastWord(l *live) {
	l.audience.mu.Lock()
	var idle []<-chan struct{}
	if l.audience.spoke {
		for _, f := range l.audience.feeds {
			idle = append(idle, f.hurry(l.ref.ID))
		}
		if f := e.outlets.at(l.home); f != nil {
			idle = append(idle, f.hurry(l.ref.ID))
		}
	}
	l.audience.mu.Unlock()
	if len(idle) == 0 {
		return
	}
	timeout := time.NewTimer(writePatience)
	defer timeout.Stop()
	for _, done := range idle {
		select {
		case <-done:
		case <-timeout.C:
			return
		}
	}
}

const writePatience = 100 * time.Millisecond
