package main

import (
	"testing"
	"time"
)

func TestRate(t *testing.T) {
	start := time.Date(2025, 11, 25, 8, 0, 0, 0, time.UTC)
	type step struct{ at, progress float64 } // seconds
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	for name, c := range map[string]struct {
		steps     []step
		perSecond float64 // 0 for none
		now       float64
		left      time.Duration // of 100
		known     bool
	}{
		"nothing":             {nil, 0, 1, 0, false},
		"one step":            {[]step{{0, 10}}, 0, 1, 0, false},
		"too soon":            {[]step{{0, 10}, {0.1, 11}}, 0, 1, 0, false},
		"steady":              {[]step{{0, 0}, {1, 10}, {2, 20}}, 10, 2, 8 * time.Second, true},
		"time passes":         {[]step{{0, 0}, {1, 10}, {2, 20}}, 10, 5, 5 * time.Second, true},
		"overdue":             {[]step{{0, 0}, {1, 50}}, 50, 60, 0, true},
		"standing still":      {[]step{{0, 5}, {2, 5}}, 0, 2, 0, false},
		"begun anew":          {[]step{{0, 90}, {1, 0}, {2, 10}}, 10, 2, 9 * time.Second, true},
		"only the last 15 s":  {[]step{{0, 0}, {100, 10}, {110, 30}, {115, 40}}, 2, 115, 30 * time.Second, true},
		"at once, no seconds": {[]step{{0, 0}, {0, 10}}, 0, 1, 0, false},
		"for ever":            {[]step{{0, 0}, {10, 0.0001}}, 0.00001, 10, 0, false},
	} {
		var r rate
		for _, s := range c.steps {
			r.add(at(s.at), s.progress)
		}
		perSecond, ok := r.perSecond()
		if ok != (c.perSecond != 0) || ok && (perSecond < c.perSecond*0.999 || perSecond > c.perSecond*1.001) {
			t.Errorf("%s: %v/s (%v), want %v", name, perSecond, ok, c.perSecond)
		}
		left, known := r.left(at(c.now), 100)
		if known != c.known || left.Round(time.Second) != c.left {
			t.Errorf("%s: %v left (%v), want %v (%v)", name, left, known, c.left, c.known)
		}
	}
	var r rate
	for i := range 10 * rateSamples {
		r.add(at(float64(i)/100), float64(i))
	}
	if len(r.samples) > rateSamples {
		t.Errorf("%d samples are kept", len(r.samples))
	}
}

func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1400 * time.Millisecond: "1s", 90 * time.Second: "1m30s", 2*time.Hour + 90*time.Second: "2h2m",
	} {
		if got := inWords(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
	for n, want := range map[float64]string{0.031: "0.031", 3.14: "3.1", 31.4: "31", 314.15: "314", 5e6: "5000000"} {
		if got := roughly(n); got != want {
			t.Errorf("%v: %q, want %q", n, got, want)
		}
	}
	for part, want := range map[float64]string{-1: "░░░░░░░░░░", 0: "░░░░░░░░░░", 0.62: "██████░░░░", 1: "██████████", 7: "██████████"} {
		if got := bar(part, 10); got != want {
			t.Errorf("%v: %s, want %s", part, got, want)
		}
	}
}
