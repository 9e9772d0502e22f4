package coatcheck_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever clients do, and however long things take: a call runs once, its outcome is what its
// run produced and is there to be collected, repeats join as docs/tickets.md says, and no
// principal learns anything of another's (SEC-1). How long a run takes is drawn as what happens
// before its end.
func TestTicketsProperty(t *testing.T) {
	for p, checks := range map[*place]int{&libraryOverHTTP: 24, &gatewayToURL: 12, &gatewayToCommand: 4, &libraryOverStdio: 6} {
		t.Run(p.name, func(t *testing.T) { checkTickets(t, *p, checks, false) })
	}
}

// The same with kill -9: what had ended stays, what ran was interrupted.
func TestTicketsPropertyKill(t *testing.T) { checkTickets(t, processOverHTTP, 1, true) }

func checkTickets(t *testing.T, p place, checks int, kill bool) {
	few(t, checks)
	rapid.Check(t, func(rt *rapid.T) {
		reattach := rapid.SampledFrom([]time.Duration{0, 0, 0, -1}).Draw(rt, "reattach")
		w := newWorld(rt, p, t.TempDir(), reattach)
		rt.Cleanup(w.close)
		w.open()
		actions := map[string]func(*rapid.T){
			"":         func(*rapid.T) { w.check() },
			"call":     w.drawCall,
			"repeat":   w.drawRepeat,
			"end":      w.drawEnd,
			"end lost": w.drawEndLost,
			"lose":     w.drawLose,
			"collect":  w.drawCollect,
			"cancel":   w.drawCancel,
			"foreign":  w.drawForeign,
			"list":     func(rt *rapid.T) { w.list(w.drawSession(rt, w.drawPrincipal(rt))) },
			"report":   w.drawReport,
			"leave":    w.drawLeave,
			"restart":  func(rt *rapid.T) { w.drawRestart(rt, kill) },
		}
		rt.Repeat(actions)
		if kill {
			w.restart(true)
			w.recall()
		}
		w.finish()
	})
}

// few has rapid make fewer checks than it does by default, unless it is told how many: each has
// processes, sockets and files.
func few(t *testing.T, checks int) {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if given {
		return
	}
	f := flag.Lookup("rapid.checks")
	before := f.Value.String()
	if err := f.Value.Set(fmt.Sprint(checks)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Value.Set(before) })
}

func (w *world) drawPrincipal(rt *rapid.T) string {
	return rapid.SampledFrom(w.place.principals).Draw(rt, "principal")
}

// drawSession returns a session of a principal, or begins one.
func (w *world) drawSession(rt *rapid.T, who string) *session {
	var open []*session
	for _, s := range w.sessions {
		if s.who == who && !s.left {
			open = append(open, s)
		}
	}
	if i := rapid.IntRange(0, 3).Draw(rt, "session"); i < len(open) {
		return open[i]
	} else if w.place.alone && len(open) > 0 {
		return open[0]
	}
	return w.session(who, rapid.Bool().Draw(rt, "listed"))
}

// drawWork returns a work that is as wanted, or skips.
func (w *world) drawWork(rt *rapid.T, ok func(*work) bool) *work {
	return drawOf(rt, "work", w.works, ok)
}

func (w *world) drawAttempt(rt *rapid.T, ok func(*attempt) bool) *attempt {
	return drawOf(rt, "attempt", w.attempts, ok)
}

func drawOf[T any](rt *rapid.T, what string, all []T, ok func(T) bool) T {
	all = slices.DeleteFunc(slices.Clone(all), func(one T) bool { return !ok(one) })
	if len(all) == 0 {
		rt.Skip("there is none")
	}
	return rapid.SampledFrom(all).Draw(rt, what)
}

func (w *world) drawCall(rt *rapid.T) {
	key := callKey{
		who:   w.drawPrincipal(rt),
		tool:  rapid.SampledFrom(scriptedTools).Draw(rt, "tool").name,
		label: rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "label"),
	}
	w.call(rt, key)
}

func (w *world) drawRepeat(rt *rapid.T) {
	w.call(rt, w.drawWork(rt, func(*work) bool { return true }).callKey)
}

// call makes a plain call, which begins a work or joins one.
func (w *world) call(rt *rapid.T, key callKey) {
	s := w.drawSession(rt, key.who)
	tool := scriptedTools[slices.IndexFunc(scriptedTools, func(t *scripted) bool { return t.name == key.tool })]
	before, sure := w.joins(key, s)
	waits := before != nil && before.fate != ended && !tool.brief // silently, if it joins
	if waits && !sure || w.vague[callKey{who: key.who, tool: key.tool}] {
		rt.Skip("nobody could tell whether it joined")
	}
	w.calls++
	a := &attempt{call: w.calls}
	meta := fmt.Sprintf(`%q:%d`, metaCall, a.call)
	unsure := before != nil && !sure // then only its answer tells
	if waits || !unsure && rapid.Bool().Draw(rt, "wants progress") {
		a.token = fmt.Sprint("p", a.call)
		meta += fmt.Sprintf(`,"progressToken":%q`, a.token)
	}
	arguments := rapid.SampledFrom([]string{`{"label":"%s"}`, `{ "label" : "\u006%[2]d" }`}).Draw(rt, "spelling")
	arguments = fmt.Sprintf(strings.ReplaceAll(arguments, `"%s"`, `"%[1]s"`), key.label, key.label[0]-'a'+1)
	w.begin(s, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s,"_meta":{%s}}`, key.tool, arguments, meta), a)
	if before != nil {
		if r := w.met(a, true); r == nil && !w.newTicket(a) {
			w.joined(a, before)
			return
		} else if sure {
			w.Fatalf("call %d ran, and was to join %v", a.call, before)
		}
		if before.held == yes {
			before.lost = no
		}
	}
	w.ran(rt, a, key, tool)
}

// newTicket reports whether an attempt was answered with a ticket that nobody has: so it has a run.
func (w *world) newTicket(a *attempt) bool {
	if !a.answered() || a.err != nil {
		return false
	}
	status, id := ticketStatus(a.reply.Result)
	return status == "working" && w.tickets[id] == nil
}

// joined notes that a call was taken to earlier work.
func (w *world) joined(a *attempt, to *work) {
	a.work = to
	if !to.tool.repeatable {
		to.lost = yes
	}
	if to.fate == ended || to.tool.brief {
		w.settle(a)
	}
}

// ran notes that a call has a run of its own.
func (w *world) ran(rt *rapid.T, a *attempt, key callKey, tool *scripted) {
	work := &work{callKey: key, tool: tool, call: a.call, run: w.met(a, false), fate: runs}
	a.work = work
	w.works = append(w.works, work)
	if work.run.tool != key.tool || work.run.label != key.label {
		w.Fatalf("%v ran as %s %s", work, work.run.tool, work.run.label)
	}
	if tool.required {
		w.handed(work, no)
		w.until(work, false)
	}
	if !tool.brief {
		return
	}
	work.stored = max(work.stored, maybe)
	switch rapid.SampledFrom([]string{"ticket", "ticket", "end", "lose"}).Draw(rt, "then") {
	case "ticket":
		w.settle(a)
	case "end":
		w.end(rt, work)
	case "lose":
		w.lose(rt, a)
	}
}

func (w *world) drawEnd(rt *rapid.T) {
	w.end(rt, w.drawWork(rt, func(work *work) bool { return work.fate == runs }))
}

// end has a run end, and whoever waits get the outcome.
func (w *world) end(rt *rapid.T, work *work) {
	w.order(work, drawEnding(rt, work))
	for _, a := range slices.Clone(w.attempts) {
		if a.work == work {
			w.settle(a)
		}
	}
	w.over(work)
}

// over waits until a task's outcome is stored.
func (w *world) over(work *work) {
	if work.stored == yes {
		w.until(work, true)
	} else {
		work.stored = no
	}
}

func drawEnding(rt *rapid.T, work *work) order {
	switch rapid.SampledFrom([]string{"done", "failed", "refused"}).Draw(rt, "ending") {
	case "failed":
		return order{Text: work.text("failed"), IsError: true}
	case "refused":
		return order{Text: work.text("refused"), Refuse: true}
	}
	return order{Text: work.text("done")}
}

// drawEndLost has a call end and be given up at the same moment.
func (w *world) drawEndLost(rt *rapid.T) {
	if w.place.alone {
		rt.Skip("nobody could tell which was first")
	}
	a := w.drawAttempt(rt, func(a *attempt) bool {
		return a.own() && a.work.fate == runs && !a.work.tool.required && !a.work.tool.cancel && !a.session.left
	})
	work := a.work
	work.stored = maybe
	w.order(work, drawEnding(rt, work))
	told := w.confusable(work) || rapid.Bool().Draw(rt, "told")
	if told {
		w.cancelCall(a)
	} else {
		a.cut()
	}
	w.await(a)
	if a.err == nil {
		w.settle(a)
		work.stored = no
		return
	}
	w.forget(a)
	w.handed(work, yes)
	if told {
		w.until(work, true)
		return
	}
	// An answer may have been on its way; if not, nobody can tell when it becomes a task.
	work.stored, work.held, work.raced = maybe, maybe, true
	w.vague[callKey{who: work.who, tool: work.tool.name}] = true
}

func (w *world) drawLose(rt *rapid.T) {
	w.lose(rt, w.drawAttempt(rt, func(a *attempt) bool { return a.work != nil && a.work.fate == runs }))
}

// lose has a client give up an attempt whose work goes on: it says so, or hangs up.
func (w *world) lose(rt *rapid.T, a *attempt) {
	work := a.work
	told := w.place.alone || !a.session.left && rapid.Bool().Draw(rt, "told")
	own, lost := a.own(), yes
	if own {
		work.stored = max(work.stored, maybe)
	}
	if told {
		w.cancelCall(a)
	} else {
		a.cut()
	}
	if !w.place.alone {
		w.await(a)
	}
	if a.answered() && a.err == nil && !told {
		w.settle(a)
		return
	}
	w.forget(a)
	switch {
	case own && work.tool.cancel:
		work.fate, work.stored = stopped, no
		w.halted(work)
	case own:
		if !told && (work.tool.brief || work.tool.required) || work.tool.brief && work.tool.required {
			lost = maybe // a ticket may have been on its way; nor can be seen when it is noticed
		}
		if work.tool.required {
			work.lost = lost
			return
		}
		w.handed(work, lost)
		w.until(work, false)
	case !told:
		work.held = min(work.held, maybe) // the outcome may be, before it is noticed
	}
}

// cancelCall tells the server that a call is given up.
func (w *world) cancelCall(a *attempt) {
	message := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d,"reason":"timeout"}}`, a.id)
	if _, err := a.session.round(context.Background(), message); err != nil {
		w.Fatal("notifications/cancelled:", err)
	}
	if w.place.alone { // it has no answer: that of what comes after it will do
		w.ask(a.session, "ping", `{}`)
	}
}

func (w *world) drawCollect(rt *rapid.T) {
	work := w.drawWork(rt, func(work *work) bool { return work.ticket != "" })
	s := w.drawSession(rt, work.who)
	if work.fate == runs && rapid.Bool().Draw(rt, "waits") {
		w.calls++
		a := &attempt{token: fmt.Sprint("p", w.calls), work: work, named: work.ticket}
		w.begin(s, "tools/call", fmt.Sprintf(`{"name":"ticket_collect","arguments":{"ticket":%q},"_meta":{"progressToken":%q}}`, work.ticket, a.token), a)
		if w.met(a, true); a.answered() {
			w.Fatalf("collected %s of %v", a.reply.Result, work)
		}
		return
	}
	w.collect(s, work)
}

// collect asks for what is there.
func (w *world) collect(s *session, work *work) {
	w.settle(w.begin(s, "tools/call", fmt.Sprintf(`{"name":"ticket_collect","arguments":{"ticket":%q,"wait_seconds":0}}`, work.ticket), &attempt{work: work, named: work.ticket}))
}

func (w *world) drawCancel(rt *rapid.T) {
	work := w.drawWork(rt, func(work *work) bool { return work.ticket != "" && work.fate != orphaned })
	r := w.ask(w.drawSession(rt, work.who), "tools/call", fmt.Sprintf(`{"name":"ticket_cancel","arguments":{"ticket":%q}}`, work.ticket))
	status, id := ticketStatus(r.Result)
	want := "ended"
	if work.fate == runs || work.fate == cancelled || work.fate == ended && work.raced && status == "cancelled" {
		want = "cancelled"
	}
	if status != want || id != work.ticket {
		w.Fatalf("cancel: %s of %v", r.Result, work)
	}
	if want == "ended" || work.fate == cancelled {
		return
	}
	if work.fate == runs {
		w.halted(work)
	}
	work.fate = cancelled
	w.collected(work)
	for _, a := range slices.Clone(w.attempts) {
		if a.work == work {
			w.settle(a)
		}
	}
}

// drawForeign has a principal try another's ticket: it is an unknown one (SEC-1).
func (w *world) drawForeign(rt *rapid.T) {
	work := w.drawWork(rt, func(work *work) bool { return work.ticket != "" })
	who := w.drawPrincipal(rt)
	if who == work.who {
		rt.Skip("it is its own")
	}
	s := w.drawSession(rt, who)
	tool := rapid.SampledFrom([]string{"ticket_collect", "ticket_cancel"}).Draw(rt, "tool")
	try := func(id string) string {
		a := w.begin(s, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":{"ticket":%q}}`, tool, id), &attempt{named: id})
		w.await(a)
		w.forget(a)
		return strings.ReplaceAll(string(a.reply.Result), id, "ID")
	}
	foreign, unknown := try(work.ticket), try(strings.Repeat("A", len(work.ticket)))
	if foreign != unknown || !strings.Contains(unknown, `"unknown"`) {
		w.Fatalf("another's ticket: %s; one that is none: %s", foreign, unknown)
	}
}

func (w *world) drawReport(rt *rapid.T) {
	work := w.drawWork(rt, func(work *work) bool { return work.fate == runs })
	w.order(work, order{Progress: float64(len(work.run.orders)) + 1, Text: work.text("at")})
}

// drawLeave has a client end its session, whose calls go on.
func (w *world) drawLeave(rt *rapid.T) {
	if w.place.alone || len(w.sessions) == 0 {
		rt.Skip("there is none")
	}
	s := rapid.SampledFrom(w.sessions).Draw(rt, "session")
	if s.left {
		rt.Skip("it has left")
	}
	if err := s.leave(); err != nil {
		w.Fatal("leave:", err)
	}
}
