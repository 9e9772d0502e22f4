package coatcheck_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/coatcheck/coatcheck/protocol"
)

// world is a place, what was done in it, and what must be true of that.
type world struct {
	rapid.TB
	place    place
	setup    setup
	office   *office
	counter  counter
	sessions []*session
	calls    int // so far
	works    []*work
	kept     map[callKey]*work // what a repeat is taken to, if anything
	vague    map[callKey]bool  // nobody can tell what that is, whatever the label: it has none here
	attempts []*attempt        // that have no answer yet
	tickets  map[string]*work
	obscure  map[string]bool // tickets of which nobody can tell whose they are of several works
}

// callKey is what makes a call a repeat of another.
type callKey struct{ who, tool, label string }

// work is one intended call: that which began it, and all repeats that were taken to it.
type work struct {
	callKey
	tool    *scripted
	call    int // that began it
	run     *run
	ticket  string // "" if it is not known
	stored  certainty
	blurred bool      // its ticket, if it has one, is an obscure one
	lost    certainty // its reply: if not, the requestor has a ticket
	held    certainty // nobody has collected it; yes until somebody did
	fate    fate
	end     order // if it ended
	raced   bool  // it ended as its client hung up: nobody has seen yet that this was stored
	got     int   // how often its outcome was given to its requestor
}

// certainty is of what the model may be unable to tell, as documented: who hangs up does not know
// what was on its way.
type certainty int

const (
	no certainty = iota
	maybe
	yes
)

type fate string

const (
	runs        fate = "runs"
	ended       fate = "ended"
	cancelled   fate = "cancelled"   // by its ticket
	stopped     fate = "stopped"     // as its reply was lost: there is no ticket
	interrupted fate = "interrupted" // by a restart
	orphaned    fate = "orphaned"    // by a kill: interrupted, once the lease has run out
)

func (w *work) String() string {
	return fmt.Sprintf("call %d of %s (%s %s): %s, stored %d, lost %d, held %d", w.call, w.who, w.tool.name, w.label, w.fate, w.stored, w.lost, w.held)
}

// GoString is what rapid shows.
func (w *work) GoString() string { return w.String() }

// attempt is a request of a client in the background.
type attempt struct {
	session *session
	id      int
	call    int    // its number; 0: of ticket_collect
	token   string // of its progress; "" for none
	named   string // a ticket that it names
	work    *work
	cut     context.CancelFunc
	done    chan struct{}
	reply   reply
	err     error
}

// own reports whether the work began with the attempt.
func (a *attempt) own() bool { return a.work != nil && a.call == a.work.call }

func (a *attempt) answered() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// GoString is what rapid shows.
func (a *attempt) GoString() string { return fmt.Sprintf("call %d, of %v", a.call, a.work) }

const longest = 20 * time.Second // that anything takes

// newWorld returns a world that is to be opened, and closed.
func newWorld(t rapid.TB, p place, dir string, reattach time.Duration) *world {
	w := &world{TB: t, place: p, office: newOffice(), kept: map[callKey]*work{}, vague: map[callKey]bool{}, tickets: map[string]*work{}, obscure: map[string]bool{}}
	w.setup = setup{Dir: dir, Office: w.office.web.URL, Reattach: reattach}
	return w
}

func (w *world) open() {
	c, err := w.place.open(w.setup)
	if err != nil {
		w.Fatal(err)
	}
	w.counter = c
}

// close leaves nothing behind, whatever happened.
func (w *world) close() {
	for _, a := range w.attempts {
		a.cut()
		<-a.done
	}
	if w.counter != nil {
		if err := w.counter.close(false, w.office.release); err != nil {
			w.Error("close:", err)
		}
	}
	w.hangUp()
	w.office.close()
}

// release ends what runs still.
func (w *world) release() {
	for _, work := range w.works {
		if work.fate == runs {
			w.order(work, order{Text: work.text("done")})
		}
	}
}

func (w *world) hangUp() {
	for _, s := range w.sessions {
		s.hangUp()
	}
	w.sessions = nil
}

func (w *world) session(who string, listed bool) *session {
	s, err := w.counter.connect(who)
	if err == nil {
		err = s.handshake()
	}
	if err != nil {
		w.Fatal("connect:", err)
	}
	w.sessions = append(w.sessions, s)
	if s.listed = listed; listed {
		w.ask(s, "tools/list", `{}`)
	}
	return s
}

// text is what only the requestor of a work may read.
func (w *work) text(what string) string { return fmt.Sprintf("%s %d of %s", what, w.call, w.who) }

func (w *world) order(work *work, o order) {
	work.run.orders <- o
	if o.Progress == 0 {
		work.fate, work.end = ended, o
	}
}

// begin sends a request in the background.
func (w *world) begin(s *session, method, params string, a *attempt) *attempt {
	ctx, cut := context.WithCancel(context.Background())
	a.session, a.id, a.cut, a.done = s, s.nextID(), cut, make(chan struct{})
	w.attempts = append(w.attempts, a)
	go func() {
		defer close(a.done)
		a.reply, a.err = s.callContext(ctx, a.id, method, params)
	}()
	return a
}

// ask makes a request and returns its answer.
func (w *world) ask(s *session, method, params string) reply {
	a := w.begin(s, method, params, &attempt{})
	w.await(a)
	w.forget(a)
	if a.err != nil {
		w.Fatalf("%s %s: %v", method, params, a.err)
	}
	return a.reply
}

func (w *world) forget(a *attempt) {
	a.cut()
	<-a.done
	w.private(a.session.who, string(a.reply.Result)+string(protocol.Marshal(a.reply.Error)), a.named)
	w.attempts = slices.DeleteFunc(w.attempts, func(other *attempt) bool { return other == a })
}

func (w *world) await(a *attempt) {
	select {
	case <-a.done:
	case <-time.After(longest):
		w.Fatalf("no answer to call %d of %s; its work is %v", a.call, a.session.who, a.work)
	}
}

// met waits until a run of an attempt has begun, which it returns. If the attempt may join
// another's it also returns, nil, when that has its answer, or hears that it waits.
func (w *world) met(a *attempt, mayJoin bool) *run {
	timeout := time.After(longest)
	waits := func(m heard) bool {
		token, _ := protocol.Unquote(protocol.Get(m.Params, "progressToken"))
		return a.token != "" && m.Method == protocol.MethodProgress && token == a.token
	}
	for {
		began, changed := w.office.of(a.call)
		in := a.session.inbox
		in.mu.Lock()
		arrived := in.arrived
		in.mu.Unlock()
		done := a.done
		switch {
		case a.call > 0 && len(began) > 0:
			return began[0]
		case mayJoin && (a.answered() || len(a.session.seen(waits)) > 0):
			return nil
		case !mayJoin && a.answered():
			if !w.newTicket(a) {
				w.Fatalf("call %d of %s was to run, and got %s %v", a.call, a.session.who, a.reply.Result, a.err)
			}
			done = nil
		}
		select {
		case <-changed:
		case <-arrived:
		case <-done:
		case <-timeout:
			w.Fatalf("call %d of %s has begun nothing and joined nothing", a.call, a.session.who)
		}
	}
}

// halted waits until a run was stopped.
func (w *world) halted(work *work) {
	select {
	case <-work.run.stopped:
	case <-time.After(longest):
		w.Fatalf("the run goes on: %v", work)
	}
}

// handed notes that a call has become a task, and is what repeats are taken to.
func (w *world) handed(work *work, lost certainty) {
	work.stored, work.lost, work.held = yes, lost, yes
	w.kept[work.callKey] = work
}

// collected notes that a work is what repeats are taken to no longer.
func (w *world) collected(work *work) {
	work.held = no
	if w.kept[work.callKey] == work {
		delete(w.kept, work.callKey)
	}
}

// joins returns what a call must, or may, be taken to; nil if it must run.
func (w *world) joins(key callKey, s *session) (to *work, sure bool) {
	to = w.kept[key]
	if to == nil || w.setup.Reattach < 0 || to.fate == interrupted {
		return nil, true
	}
	repeatable := s.listed && to.tool.repeatable
	if !repeatable && to.lost == no {
		return nil, true
	}
	return to, to.fate != orphaned && to.held == yes && (repeatable || to.lost == yes)
}

// settle takes an attempt's answer, which must be right.
func (w *world) settle(a *attempt) {
	w.await(a)
	w.forget(a)
	work := a.work
	if a.err != nil {
		w.Fatalf("no answer to call %d: %v: %v", a.call, work, a.err)
	}
	status, id := ticketStatus(a.reply.Result)
	switch {
	case status == "working" && (work.fate == runs || work.fate == ended || work.fate == orphaned):
		w.ticketed(work, id)
		if a.own() && !work.tool.required {
			w.handed(work, no)
		}
		if a.own() {
			work.lost = no
		}
	case status == "cancelled" && work.fate == cancelled:
		w.ticketed(work, id)
	case status == "interrupted" && (work.fate == interrupted || work.fate == orphaned || work.raced):
		w.ticketed(work, id)
		work.fate = interrupted
	case status == "" && work.fate == ended:
		result, refusal := work.end.answer()
		if string(a.reply.Result) != string(result) || !sameError(a.reply.Error, refusal) {
			w.Fatalf("call %d got %s %s, which %v did not produce", a.call, a.reply.Result, a.reply.Error, work)
		}
		work.got, work.raced = work.got+1, false
		if !a.own() || work.tool.required {
			w.collected(work)
		}
	default:
		w.Fatalf("call %d got %s %s; its work is %v", a.call, a.reply.Result, protocol.Marshal(a.reply.Error), work)
	}
}

// ticketed checks a work's ticket, or learns it.
func (w *world) ticketed(work *work, id string) {
	switch other := w.tickets[id]; {
	case id == "", other != nil && other != work, work.ticket != "" && work.ticket != id:
		w.Fatalf("ticket %s for %v, which has %q; it is that of %v", id, work, work.ticket, other)
	}
	work.ticket, work.stored = id, yes
	w.tickets[id] = work
}

// ticketStatus returns what a result says of a ticket; "" if it is none of ours.
func ticketStatus(result json.RawMessage) (status, id string) {
	about := protocol.Get(protocol.Get(result, "_meta"), protocol.MetaTicket)
	status, _ = protocol.Unquote(protocol.Get(about, "status"))
	id, _ = protocol.Unquote(protocol.Get(about, "ticket"))
	return status, id
}

// list checks a principal's tickets, and learns those that must be of one work.
func (w *world) list(s *session) (all map[string]string) {
	r := w.ask(s, "tools/call", `{"name":"ticket_list","arguments":{}}`)
	if r.Error != nil {
		w.Fatal("ticket_list:", r.Error)
	}
	listing := protocol.Get(protocol.Get(r.Result, "_meta"), protocol.MetaTickets)
	tickets, err := protocol.Elements(protocol.Get(listing, "tickets"))
	if err != nil {
		w.Fatalf("ticket_list: %v in %s", err, r.Result)
	}
	more := string(protocol.Get(listing, "more")) == "true"
	all = map[string]string{}
	for _, t := range tickets {
		id, _ := protocol.Unquote(protocol.Get(t.Value, "ticket"))
		tool, _ := protocol.Unquote(protocol.Get(t.Value, "tool"))
		status, _ := protocol.Unquote(protocol.Get(t.Value, "status"))
		all[id] = status
		work := w.tickets[id]
		if w.obscure[id] {
			continue
		} else if work == nil {
			if work = w.unticketed(s.who, tool, status); work == nil {
				continue
			}
			w.ticketed(work, id)
		}
		if work.who != s.who || work.tool.name != tool || !slices.Contains(work.statuses(), status) {
			w.Fatalf("listed to %s: %s, of %v", s.who, t.Value, work)
		}
	}
	for _, work := range w.works {
		if _, listed := all[work.ticket]; work.who == s.who && work.stored == yes && work.ticket != "" && !listed && !more {
			w.Fatalf("not listed: %v in %s", work, r.Result)
		}
	}
	return all
}

// unticketed returns the work that a ticket is of which nobody was told; nil if it may be one of
// several.
func (w *world) unticketed(who, tool, status string) *work {
	var of []*work
	for _, work := range w.works {
		if work.who == who && work.tool.name == tool && work.ticket == "" && work.stored != no && !work.blurred && slices.Contains(work.statuses(), status) {
			of = append(of, work)
		}
	}
	switch len(of) {
	case 0:
		w.Fatalf("a ticket of %s that nobody has: %s, %s", who, tool, status)
	case 1:
		return of[0]
	}
	return nil
}

// recall learns what a restart has left. Tickets that may be of several works stay unknown.
func (w *world) recall() {
	for _, who := range w.place.principals {
		for id := range w.list(w.anySession(who)) {
			if w.tickets[id] == nil {
				w.obscure[id] = true
			}
		}
	}
	for _, work := range w.works {
		work.blurred = work.stored == maybe
	}
}

// confusable reports whether the ticket of another work may be taken for that of this one.
func (w *world) confusable(of *work) bool {
	return slices.ContainsFunc(w.works, func(other *work) bool {
		return other != of && other.who == of.who && other.tool == of.tool && other.ticket == "" && !other.blurred &&
			(other.fate == runs || other.stored != no)
	})
}

// statuses are those that a work's ticket may be listed with.
func (w *work) statuses() []string {
	switch w.fate {
	case runs:
		return []string{"working"}
	case cancelled:
		return []string{"cancelled"}
	case interrupted:
		return []string{"failed"}
	case orphaned:
		return []string{"working", "failed"}
	case stopped:
		return nil
	case ended:
		if w.raced {
			return []string{"working", "completed", "failed"}
		}
		if w.end.IsError || w.end.Refuse {
			return []string{"working", "failed"}
		}
		return []string{"working", "completed"}
	}
	return nil
}

// until lists until a work is as wanted: its ticket known, and with this status if one is given.
func (w *world) until(work *work, over bool) {
	s := w.anySession(work.who)
	for deadline := time.Now().Add(longest); time.Now().Before(deadline); {
		all := w.list(s)
		if work.ticket != "" && (!over || all[work.ticket] != "working") {
			return
		}
	}
	w.Fatalf("never listed: %v", work)
}

// anySession returns a session of a principal that is there.
func (w *world) anySession(who string) *session {
	for _, s := range w.sessions {
		if s.who == who && !s.left {
			return s
		}
	}
	return w.session(who, false)
}

var ofSomebody = regexp.MustCompile(`\d+ of ([a-z]+)`)

// check holds after every action: what belongs to one principal is read by no other, and no call
// ran twice.
func (w *world) check() {
	for _, s := range w.sessions {
		in := s.inbox
		in.mu.Lock()
		all := in.all[s.heard:]
		in.mu.Unlock()
		s.heard += len(all)
		for _, m := range all {
			w.private(s.who, string(m.raw), "")
		}
	}
	if began := w.office.count(); began != len(w.works) {
		w.Fatalf("%d runs of %d intended calls", began, len(w.works))
	}
}

// private checks that what a principal reads is nobody else's. A ticket that it named itself is
// repeated to it.
func (w *world) private(who, text, named string) {
	for _, of := range ofSomebody.FindAllStringSubmatch(text, -1) {
		if of[1] != who {
			w.Fatalf("%s reads %s", who, text)
		}
	}
	for id, work := range w.tickets {
		if work.who != who && id != named && strings.Contains(text, id) {
			w.Fatalf("%s reads a ticket of %s: %s", who, work.who, text)
		}
	}
}

// sameError reports whether an error is the one that a server answered with.
func sameError(got *protocol.Error, want json.RawMessage) bool {
	if got == nil || want == nil {
		return got == nil && want == nil
	}
	return string(got.JSON()) == string(want)
}
