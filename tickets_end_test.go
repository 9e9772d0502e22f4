package coatcheck_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"pgregory.net/rapid"
)

// leave ends a session (DELETE).
func (s *session) leave() error {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodDelete, s.web.url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+s.web.token)
	req.Header.Set("Mcp-Session-Id", s.web.session)
	resp, err := s.web.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	s.left = true
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("DELETE: %s", resp.Status)
	}
	return nil
}

// drawRestart ends the place and opens it again on what it has stored.
func (w *world) drawRestart(rt *rapid.T, kill bool) {
	if !rapid.Bool().Draw(rt, "restart") {
		rt.Skip("not so often")
	}
	kill = kill && rapid.Bool().Draw(rt, "kill")
	w.restart(kill)
	if w.place.alone {
		w.session(w.place.principals[0], rapid.Bool().Draw(rt, "listed"))
	}
	w.recall()
}

func (w *world) restart(kill bool) {
	var halt []*work
	for _, work := range w.works {
		if work.fate == runs && !w.place.lets {
			halt = append(halt, work)
		}
	}
	err := w.counter.close(kill, func() {
		if w.place.lets {
			w.release()
		}
	})
	w.counter = nil
	if err != nil {
		w.Fatal("close:", err)
	}
	for _, work := range halt {
		w.halted(work)
		switch {
		case kill && work.stored == yes:
			work.fate = orphaned
		case kill:
			work.fate, work.stored = interrupted, no
		default: // what was not stored may have been lost first, and so be what repeats are taken to
			if before := w.kept[work.callKey]; before != nil && work.stored != yes {
				before.held = min(before.held, maybe)
			}
			work.fate, work.stored = interrupted, max(work.stored, maybe)
		}
	}
	for _, a := range slices.Clone(w.attempts) {
		if w.place.alone {
			a.cut()
		}
		w.await(a)
		if a.err == nil && (a.reply.Error == nil || a.work.fate == ended) {
			w.settle(a)
			continue
		}
		w.forget(a)
		if w.place.lets && a.own() && a.work.stored != yes {
			w.Fatalf("a graceful end kept the answer to itself: %v", a.work)
		}
	}
	w.check()
	w.hangUp()
	w.open()
}

// finish has everything end, and every outcome be collected.
func (w *world) finish() {
	for _, work := range w.works {
		if work.fate != runs {
			continue
		}
		w.order(work, order{Text: work.text("done")})
		for _, a := range slices.Clone(w.attempts) {
			if a.work == work {
				w.settle(a)
			}
		}
		w.over(work)
	}
	for _, who := range w.place.principals {
		s := w.anySession(who)
		w.list(s)
		for _, work := range w.works {
			if work.who != who {
				continue
			}
			for deadline := time.Now().Add(longest); work.ticket != ""; {
				if w.collect(s, work); work.fate != orphaned && (work.fate != ended || !work.raced) {
					break
				} else if time.Now().After(deadline) {
					w.Fatalf("never interrupted: %v", work)
				}
			}
			if work.fate == ended && work.got == 0 && work.stored != maybe {
				w.Fatalf("nobody got the outcome: %v", work)
			}
		}
	}
	for _, a := range slices.Clone(w.attempts) { // of works that were orphaned
		w.forget(a)
	}
	w.check()
}
