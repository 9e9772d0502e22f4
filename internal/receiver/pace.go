package receiver

import (
	"encoding/json"
	"math"
	"strconv"
	"time"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
)

// pace is how long a requestor waits, and what it is told meanwhile.
type pace struct {
	began  time.Time
	until  time.Time       // 0: for ever
	token  json.RawMessage // of its progress; nil: it wants to hear of none
	every  time.Duration
	beatAt time.Time

	told  float64
	total json.RawMessage
	spoke bool
	last  json.RawMessage // params of the progress that the work reported last
	text  string          // that in words
}

func newPace(params json.RawMessage, patience, heartbeat time.Duration, now time.Time) pace {
	p := pace{began: now, every: heartbeat, token: progressToken(params)}
	if patience > 0 {
		p.until = now.Add(patience)
	}
	p.beatAt = now.Add(heartbeat)
	return p
}

// progressToken returns a copy of a request's progress token, or nil.
func progressToken(params json.RawMessage) json.RawMessage {
	token := protocol.Get(protocol.Get(params, "_meta"), "progressToken")
	if len(token) == 0 || string(token) == "null" {
		return nil
	}
	return append(json.RawMessage(nil), token...)
}

// due says what is due, and when to look again.
func (p *pace) due(now time.Time) (beat *Message, over bool, next time.Duration) {
	if !p.until.IsZero() && !now.Before(p.until) {
		return nil, true, p.every
	}
	next = time.Hour
	if p.token != nil {
		if !now.Before(p.beatAt) {
			beat = p.beat(now)
		}
		next = p.beatAt.Sub(now)
	}
	if !p.until.IsZero() {
		next = min(next, p.until.Sub(now))
	}
	return beat, false, next
}

// wait has the requestor wait on.
func (p *pace) wait(until time.Time) { p.until = until }

// step is how much progress a heartbeat is at least: progress must increase (PROG-1).
const step = 1e-6

// beat is progress that says no more than that the work goes on; nil if there is no higher value.
func (p *pace) beat(now time.Time) *Message {
	p.beatAt = now.Add(p.every)
	higher := max(p.told+step, math.Nextafter(p.told, math.Inf(1)))
	if math.IsInf(higher, 1) {
		return nil
	}
	p.told = higher
	p.spoke = true
	params := append([]byte(`{"progressToken":`), p.token...)
	params = append(params, `,"progress":`...)
	params = strconv.AppendFloat(params, p.told, 'g', -1, 64)
	if p.total != nil {
		params = append(append(params, `,"total":`...), p.total...)
	}
	text := "still running (" + now.Sub(p.began).Round(time.Second).String() + ")"
	params = append(protocol.AppendString(append(params, `,"message":`...), text), '}')
	return &Message{Method: protocol.MethodProgress, Params: params}
}

// progress notes the work's own progress, and reports whether it may be told.
func (p *pace) progress(params json.RawMessage, now time.Time) bool {
	var report struct {
		Progress float64
		Total    *float64
		Message  string
	}
	if json.Unmarshal(params, &report) != nil {
		return true // not ours to judge
	}
	p.last = append(json.RawMessage(nil), params...)
	p.text = engine.Describe(report.Progress, report.Total, report.Message)
	if p.spoke && report.Progress < p.told {
		return false
	}
	p.told, p.spoke, p.total = report.Progress, true, nil
	if report.Total != nil {
		p.total = append(p.total, protocol.Get(params, "total")...)
	}
	p.beatAt = now.Add(p.every)
	return true
}
