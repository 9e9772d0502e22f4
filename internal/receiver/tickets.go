package receiver

import (
	"cmp"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/ticket"
	"github.com/coatcheck/coatcheck/protocol"
)

// TicketMode says whose plain calls may be answered with a ticket.
type TicketMode string

// The modes; "" is TicketsOff.
const (
	TicketsOff    TicketMode = "off"
	TicketsAuto   TicketMode = "auto"   // of clients that have not negotiated tasks in any form
	TicketsAlways TicketMode = "always" // of all
)

// Tickets says when a plain tools/call that takes long is answered with a ticket.
type Tickets struct {
	Mode      TicketMode            // of tools that ByName does not name
	Patience  time.Duration         // how long a call waits for its result before; default 20 s; negative: for ever
	Heartbeat time.Duration         // how often, at least, who waits is told of progress; default 10 s
	Reattach  time.Duration         // how long after its end the work is what a repeat of its call is taken to; default 10 min; negative: not at all
	ByName    map[string]TicketTool // by the tool's name
}

// TicketTool is what differs for one tool.
type TicketTool struct {
	Mode     TicketMode    // "": as for the others
	Patience time.Duration // 0: as for the others
	// CancelLost has work cancelled whose requestor cannot be answered any more. Default: it goes on.
	CancelLost bool
}

func (t Tickets) withDefaults() Tickets {
	t.Mode = cmp.Or(t.Mode, TicketsOff)
	t.Patience = cmp.Or(t.Patience, 20*time.Second)
	t.Heartbeat = cmp.Or(max(0, t.Heartbeat), 10*time.Second)
	t.Reattach = cmp.Or(t.Reattach, 10*time.Minute)
	return t
}

// any reports whether any call may be answered with a ticket.
func (t Tickets) any() bool {
	for _, tool := range t.ByName {
		if tool.Mode == TicketsAuto || tool.Mode == TicketsAlways {
			return true
		}
	}
	return t.Mode != TicketsOff
}

// of returns what holds for a tool.
func (t Tickets) of(name string) TicketTool {
	tool := t.ByName[name]
	tool.Mode = cmp.Or(tool.Mode, t.Mode)
	tool.Patience = cmp.Or(tool.Patience, t.Patience)
	return tool
}

// TicketSession is a session whose plain calls may be answered with a ticket. A nil one is a
// session of which nothing is known.
type TicketSession struct {
	receiver *Receiver
	tasks    bool        // it negotiated tasks
	uses     atomic.Bool // it uses tasks, negotiated or not
	list     bool        // ticket_list is offered

	mu    sync.Mutex
	tools map[string]listed
}

// listed is what a session was told of a tool.
type listed struct {
	ticket.Tool
	required bool // its server runs it as a task only
}

// maxListed bounds what is remembered of a session's tools.
const maxListed = 10_000

// Ticketing returns the state of a session that begins with the initialize result given, if
// it may get tickets; else nil.
func (r *Receiver) Ticketing(from *Requestor, result json.RawMessage) *TicketSession {
	if !r.tickets.any() {
		return nil
	}
	version, _ := protocol.Unquote(protocol.Get(result, "protocolVersion"))
	served := r.declares() || engine.KnowsTasks(result) // by us, or by the server itself
	s := &TicketSession{
		receiver: r,
		tasks:    version == protocol.Version20251125 && served && engine.KnowsTasks(from.Initialize),
		list:     from.Identified,
		tools:    map[string]listed{},
	}
	if !s.active() {
		return nil
	}
	return s
}

// active reports whether the session gets tickets for any tool: one that uses tasks needs none.
func (s *TicketSession) active() bool {
	return s != nil && (!s.tasks && !s.uses.Load() || s.receiver.tickets.always())
}

func (t Tickets) always() bool {
	for _, tool := range t.ByName {
		if tool.Mode == TicketsAlways {
			return true
		}
	}
	return t.Mode == TicketsAlways
}

// Tickets reports whether any call may be answered with a ticket.
func (r *Receiver) Tickets() bool { return r.tickets.any() }

// UsesTasks notes that the session's client sends task messages: so it knows them.
func (s *TicketSession) UsesTasks() {
	if s != nil {
		s.uses.Store(true)
	}
}

// of returns what holds for a tool in this session.
func (s *TicketSession) of(name string) (tool TicketTool, ok bool) {
	tool = s.receiver.tickets.of(name)
	switch tool.Mode {
	case TicketsAlways:
		return tool, true
	case TicketsAuto:
		return tool, !s.tasks && !s.uses.Load()
	case TicketsOff:
	}
	return tool, false
}

// Instruct returns an initialize result whose instructions tell of tickets.
func (s *TicketSession) Instruct(result json.RawMessage) json.RawMessage {
	if !s.active() {
		return result
	}
	instructions, ok := protocol.Unquote(protocol.Get(result, "instructions"))
	if !ok && protocol.Get(result, "instructions") != nil {
		return result
	}
	text := ticket.Instruct(instructions)
	if with, err := protocol.Set(result, "instructions", protocol.AppendString(nil, text)); err == nil {
		return with
	}
	return result
}

func (s *TicketSession) names() ticket.Names {
	return ticket.NamesFor(int(s.receiver.prefixes.Load()), s.list)
}

// List returns a tools/list result with the ticket tools on its last page, and the tools that
// may be answered with a ticket in a form which says so. What it says of the tools is kept.
func (s *TicketSession) List(result json.RawMessage) json.RawMessage {
	if !s.active() {
		return result
	}
	tools, err := protocol.MapElements(protocol.Get(result, "tools"), s.describe)
	if err != nil {
		return result
	}
	edited, err := protocol.Set(result, "tools", tools)
	if err != nil {
		return result
	}
	if cursor := protocol.Get(result, "nextCursor"); cursor != nil && string(cursor) != "null" {
		return edited
	}
	if whole, err := ticket.Append(edited, s.names().Tools()); err == nil {
		return whole
	}
	return edited
}

// prefix has the ticket tools' names have at least as many prefixes as given.
func (r *Receiver) prefix(n int32) {
	for {
		before := r.prefixes.Load()
		if before >= n || r.prefixes.CompareAndSwap(before, n) {
			return
		}
	}
}

func (s *TicketSession) describe(raw json.RawMessage) (json.RawMessage, error) {
	tool, ok := ticket.Describe(raw)
	if !ok {
		return raw, nil
	}
	s.receiver.prefix(int32(ticket.Prefixes(tool.Name)))
	support, _ := protocol.Unquote(protocol.Get(protocol.Get(raw, "execution"), "taskSupport"))
	s.mu.Lock()
	if len(s.tools) < maxListed {
		s.tools[tool.Name] = listed{tool, protocol.TaskSupport(support) == protocol.Required}
	}
	s.mu.Unlock()
	if _, ok := s.of(tool.Name); !ok {
		return raw, nil
	}
	return ticket.Adapt(raw), nil
}

// about returns what the session was told of a tool; known is false if nothing.
func (s *TicketSession) about(name string) (tool listed, known bool) {
	if s == nil {
		return listed{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	tool, known = s.tools[name]
	return tool, known
}
