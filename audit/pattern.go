package audit

import "time"

// pattern counts the hits of one pattern, in a window for each of those who do it.
type pattern struct {
	name   string
	most   int // hits that raise it
	window time.Duration

	of     map[uint64]*window
	oldest *window // they are in the order they began
	newest *window
	grown  int // windows that are to be closed with an event
}

// window is what one principal or address did.
type window struct {
	key   uint64
	ends  time.Time
	count int
	who   Event // once it was raised
	next  *window
}

// hit counts one. It appends what is to be raised; before says that it was raised before.
func (p *pattern) hit(raised []Event, key uint64, ev *Event, now time.Time) (to []Event, before bool) {
	w := p.of[key]
	if w == nil {
		if len(p.of) >= maxWindows {
			raised = p.closeOldest(raised, now)
		}
		w = &window{key: key, ends: now.Add(p.window)}
		p.of[key] = w
		if p.newest == nil {
			p.oldest = w
		} else {
			p.newest.next = w
		}
		p.newest = w
	}
	w.count++
	switch {
	case w.count < p.most:
		return raised, false
	case w.count > p.most:
		if w.count == p.most+1 {
			p.grown++
		}
		return raised, true
	}
	w.who = who(ev)
	alert := *ev
	alert.Time, alert.Kind, alert.Reason, alert.Count = now, Suspicious, p.name, w.count
	alert.Tool, alert.Status, alert.Limit, alert.Duration, alert.Request, alert.Outcome = "", "", "", 0, nil, nil
	if p.name != Probing {
		alert.Task = ""
	}
	return append(raised, alert), false
}

// close closes the windows that are over.
func (p *pattern) close(raised []Event, now time.Time) []Event {
	for p.oldest != nil && !now.Before(p.oldest.ends) {
		raised = p.closeOldest(raised, now)
	}
	return raised
}

func (p *pattern) closeOldest(raised []Event, now time.Time) []Event {
	w := p.oldest
	delete(p.of, w.key)
	if p.oldest = w.next; p.oldest == nil {
		p.newest = nil
	}
	if w.count <= p.most {
		return raised
	}
	p.grown--
	end := w.who
	end.Time, end.Kind, end.Reason, end.Count, end.Duration = now, Suspicious, p.name, w.count, p.window
	return append(raised, end)
}

// due returns when there is something to close with an event; never if there is nothing. It
// may be too early.
func (p *pattern) due() int64 {
	if p.grown == 0 {
		return never
	}
	return p.oldest.ends.UnixNano()
}
