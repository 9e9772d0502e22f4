package main

import (
	"encoding/json"
	"fmt"
	"math"
	"sync"

	"github.com/coatcheck/coatcheck/protocol"
)

// progressToken is the token of this command's one call.
const progressToken = "coatcheck-call"

// status joins what polling and progress notifications say about a call into one line.
type status struct {
	show *display

	mu      sync.Mutex
	state   string // of the task; "" for a plain call
	last    string // the task's last statusMessage
	message string // the newest of both sources
	percent string
}

// polled takes a task as it was polled.
func (s *status) polled(t protocol.Task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = t.Status
	if t.StatusMessage != s.last {
		s.last, s.message = t.StatusMessage, t.StatusMessage
	}
	s.draw()
}

// notified takes a notification of the server.
func (s *status) notified(method string, params json.RawMessage) {
	if method != protocol.MethodProgress {
		return
	}
	var p struct {
		ProgressToken   any
		Progress, Total float64
		Message         string
	}
	if json.Unmarshal(params, &p) != nil || p.ProgressToken != progressToken {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.Message != "" {
		s.message = p.Message
	}
	s.percent = fmt.Sprintf("%g", p.Progress)
	if p.Total > 0 {
		s.percent = fmt.Sprintf("%.0f%%", math.Floor(100*p.Progress/p.Total))
	}
	s.draw()
}

func (s *status) draw() {
	text := s.state
	if text == "" {
		text = "working"
	}
	if s.percent != "" {
		text += " " + s.percent
	}
	if s.message != "" {
		text += ": " + s.message
	}
	s.show.status(text)
}
