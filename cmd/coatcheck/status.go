package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// progressToken is the token of this command's one call.
const progressToken = "coatcheck-call"

// status joins what polling and notifications say about a call: the present state in one
// line, and the log in lines that stay.
type status struct {
	show *display
	now  func() time.Time
	// quiet shows nothing.
	quiet bool

	mu       sync.Mutex
	id       string // of the task; "" for a plain call, or while it is not known
	foreign  bool   // another command made the call: its token is not ours
	state    string // of the task; "" for a plain call
	last     string // the task's last statusMessage
	reported string // the message of the last progress
	message  string // the newest of both sources
	counted  bool   // there was progress
	progress float64
	total    float64
	rate     rate
}

func newStatus(show *display) *status { return &status{show: show, now: time.Now} }

// of says which task this is about.
func (s *status) of(id string, foreign bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id, s.foreign = id, foreign
}

// polled takes a task as it was polled.
func (s *status) polled(t protocol.Task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = t.Status
	if t.StatusMessage != s.last {
		s.last = t.StatusMessage
		if s.reported == "" || !strings.HasSuffix(t.StatusMessage, s.reported) { // which says the same
			s.message = t.StatusMessage
		}
	}
	s.draw()
}

// notified takes a notification of the server.
func (s *status) notified(method string, params json.RawMessage) {
	if s.quiet {
		return
	}
	switch method {
	case protocol.MethodProgress:
		s.progressed(params)
	case protocol.MethodLogMessage:
		s.logged(params)
	}
}

// concerns reports whether a notification is about this call: it is if it names the task
// (REL-1), or none.
func (s *status) concerns(params json.RawMessage) bool {
	related := relatedTask(params)
	return related == "" || s.id == "" || related == s.id
}

// relatedTask returns the id of the task that a message is part of, "" for none.
func relatedTask(params json.RawMessage) string {
	related := protocol.Get(protocol.Get(params, "_meta"), protocol.MetaRelatedTask)
	id, _ := protocol.Unquote(protocol.Get(related, "taskId"))
	return id
}

func (s *status) progressed(params json.RawMessage) {
	var p struct {
		ProgressToken   any
		Progress, Total float64
		Message         string
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ours := p.ProgressToken == progressToken && s.concerns(params)
	if s.foreign {
		ours = relatedTask(params) == s.id
	}
	if !ours {
		return
	}
	if p.Message != "" {
		s.message, s.reported = p.Message, p.Message
	}
	s.counted, s.progress, s.total = true, p.Progress, p.Total
	s.rate.add(s.now(), p.Progress)
	s.draw()
}

// maxLogged bounds what is shown of one log message, in bytes.
const maxLogged = 4 << 10

func (s *status) logged(params json.RawMessage) {
	var p struct {
		Level, Logger string
		Data          json.RawMessage
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.concerns(params) {
		return
	}
	text, ok := protocol.Unquote(p.Data)
	if !ok {
		var compact bytes.Buffer
		_ = json.Compact(&compact, p.Data) // it was read as JSON just now
		text = compact.String()
	}
	if len(text) > maxLogged {
		text = text[:maxLogged] + "…"
	}
	from := p.Level
	if p.Logger != "" {
		from += " " + p.Logger
	}
	s.show.line("[%s] %s", oneLine(from), oneLine(text))
}

// barCells is how wide the bar is.
const barCells = 10

// draw shows the state: plainly for a record, and for the moment with a bar.
func (s *status) draw() {
	if s.quiet {
		return
	}
	plain := s.state
	if plain == "" {
		plain = "working"
	}
	lively := plain
	if s.counted && !task.Status(s.state).Terminal() {
		count := fmt.Sprintf("%g", s.progress)
		if part := s.progress / s.total; s.total > 0 && !math.IsInf(part, 0) {
			count = fmt.Sprintf("%.0f%%", math.Floor(100*part))
			lively += " " + bar(part, barCells)
		}
		plain += " " + count
		lively += " " + count
		if perSecond, ok := s.rate.perSecond(); ok {
			lively += " " + roughly(perSecond) + "/s"
			if left, ok := s.rate.left(s.now(), s.total); ok && s.total > 0 {
				lively += " " + inWords(left) + " left"
			}
		}
	}
	if s.message != "" {
		plain += ": " + s.message
		lively += ": " + s.message
	}
	s.show.status(plain, lively)
}
