package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// What the rate is taken from: the progress of so long, in so many steps at most.
const (
	rateWindow  = 15 * time.Second
	rateSamples = 64
	// rateLeast is how much time must have passed for a rate to mean anything.
	rateLeast = 500 * time.Millisecond
)

// rate is how fast a call proceeds, smoothed over a window of time.
type rate struct{ samples []sample }

type sample struct {
	at       time.Time
	progress float64
}

// add takes the progress at a time. Progress that goes back begins anew.
func (r *rate) add(at time.Time, progress float64) {
	if n := len(r.samples); n > 0 && progress < r.samples[n-1].progress {
		r.samples = r.samples[:0]
	}
	r.samples = append(r.samples, sample{at, progress})
	for len(r.samples) > rateSamples || len(r.samples) > 2 && at.Sub(r.samples[1].at) >= rateWindow {
		r.samples = r.samples[1:]
	}
}

// perSecond returns the rate; ok is false while there is none.
func (r *rate) perSecond() (perSecond float64, ok bool) {
	if len(r.samples) < 2 {
		return 0, false
	}
	first, last := r.samples[0], r.samples[len(r.samples)-1]
	took := last.at.Sub(first.at)
	perSecond = (last.progress - first.progress) / took.Seconds()
	return perSecond, took >= rateLeast && perSecond > 0 && !math.IsInf(perSecond, 0)
}

// left returns how long the rest takes at the present rate; ok is false if that is not known.
func (r *rate) left(now time.Time, total float64) (left time.Duration, ok bool) {
	const most = 100 * time.Hour
	perSecond, ok := r.perSecond()
	if !ok {
		return 0, false
	}
	last := r.samples[len(r.samples)-1]
	seconds := (total-last.progress)/perSecond - now.Sub(last.at).Seconds()
	if seconds > most.Seconds() {
		return 0, false
	}
	return time.Duration(max(0, seconds) * float64(time.Second)), true
}

// bar draws a part of 1 in so many cells.
func bar(part float64, cells int) string {
	full := int(min(max(part, 0), 1) * float64(cells))
	return strings.Repeat("█", full) + strings.Repeat("░", cells-full)
}

// roughly writes a number with two or three significant digits.
func roughly(n float64) string {
	if n >= 100 {
		return fmt.Sprintf("%.0f", n)
	}
	return fmt.Sprintf("%.2g", n)
}

// inWords writes a time as people do: to the second, and from an hour on to the minute.
func inWords(d time.Duration) string {
	if d >= time.Hour {
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return d.Round(time.Second).String()
}
