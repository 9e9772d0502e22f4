package coatcheck_test

import (
	"fmt"
	"testing"
	"time"
)

// plain makes a call that must run, and returns it when it does.
func (w *world) plain(s *session, tool string) *attempt {
	w.calls++
	a := &attempt{call: w.calls}
	w.begin(s, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":{"label":"a"},"_meta":{%q:%d}}`, tool, metaCall, a.call), a)
	for _, t := range scriptedTools {
		if t.name == tool {
			a.work = &work{callKey: callKey{s.who, tool, "a"}, tool: t, call: a.call, run: w.met(a, false), fate: runs}
			w.works = append(w.works, a.work)
		}
	}
	return a
}

func openKept(t *testing.T, p place, reattach time.Duration) *world {
	w := newWorld(t, p, t.TempDir(), reattach)
	t.Cleanup(w.close)
	w.open()
	return w
}

// The reply to a call that is a task from the start is lost: what it came to is what a repeat gets
// after a restart.
func TestLostRequiredCallAfterARestart(t *testing.T) {
	for _, p := range []place{libraryOverHTTP, libraryOverStdio, gatewayToURL} {
		t.Run(p.name, func(t *testing.T) {
			w := openKept(t, p, 0)
			s := w.session("alice", true)
			a := w.plain(s, "wants")
			w.handed(a.work, no)
			w.until(a.work, false)
			w.cancelCall(a)
			w.forget(a)
			w.order(a.work, order{Text: "all done"})
			w.until(a.work, true)
			w.restart(false)
			r := w.ask(w.session("alice", true), "tools/call", `{"name":"wants","arguments":{"label":"a"}}`)
			if want, _ := a.work.end.answer(); string(r.Result) != string(want) {
				t.Errorf("the repeat got %s %v", r.Result, r.Error)
			}
			if n := w.office.count(); n != 1 {
				t.Errorf("%d runs", n)
			}
		})
	}
}

// Where repeats are not recognized, a call that is a task from the start runs, whatever an earlier
// process did with the same one.
func TestRequiredCallIsNotTakenForAnEarlierOne(t *testing.T) {
	for _, p := range []place{libraryOverHTTP, libraryOverStdio, gatewayToURL} {
		t.Run(p.name, func(t *testing.T) {
			w := openKept(t, p, -1)
			first := w.plain(w.session("alice", true), "must")
			w.settle(first)
			w.order(first.work, order{Text: "first"})
			w.until(first.work, true)
			w.restart(false)
			second := w.plain(w.session("alice", true), "must")
			w.order(second.work, order{Text: "second"})
			w.settle(second)
		})
	}
}
