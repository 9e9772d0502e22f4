package coatcheck

import (
	"maps"
	"time"

	"github.com/coatcheck/coatcheck/internal/node"
	"github.com/coatcheck/coatcheck/internal/receiver"
)

// Tickets says when a plain tools/call that takes long is answered with a ticket: a normal tool
// result that tells a model to collect the tool's own with the added tool ticket_collect. A call
// that ends within Patience is answered as if there were no tickets. Fields, with their defaults:
//
//   - Mode: whose calls, of all tools that do not say otherwise themselves: TicketsOff (the
//     default), TicketsAuto or TicketsAlways.
//   - Patience: how long a call waits for its result before it is answered with a ticket. Default
//     20 s; negative: for ever, so that there are no tickets, but heartbeats, and lost calls are kept.
//   - Heartbeat: how often, at least, a client that gave a progress token is told of progress while
//     its call waits. Default 10 s.
//   - Reattach: how long after its end the work of a call whose reply was lost, or whose ticket was
//     not collected, is what a repeat of the call gets. Default 10 min; negative: not at all.
//
// Tools have settings of their own in Tool.Ticket; ByName holds for tools that Options.Tools does
// not name.
type Tickets = receiver.Tickets

// TicketTool is what differs for one tool: its Mode and Patience, if they are not zero, and
// CancelLost, with which its work is cancelled when its reply cannot be delivered; by default it
// goes on.
type TicketTool = receiver.TicketTool

// TicketMode says whose plain calls may be answered with a ticket.
type TicketMode = receiver.TicketMode

// The values of TicketMode.
const (
	TicketsOff    = receiver.TicketsOff
	TicketsAuto   = receiver.TicketsAuto   // of clients that have not negotiated tasks in any form
	TicketsAlways = receiver.TicketsAlways // of all clients
)

// tickets returns the tickets of all tools.
func (o *Options) tickets() Tickets {
	all := o.Tickets
	all.ByName = make(map[string]TicketTool, len(o.Tickets.ByName)+len(o.Tools))
	maps.Copy(all.ByName, o.Tickets.ByName)
	for name, tool := range o.Tools {
		if tool.Ticket != (TicketTool{}) {
			all.ByName[name] = tool.Ticket
		}
	}
	return all
}

// grace is how long work may go on when its client or the server is gone.
func (o *Options) grace() time.Duration {
	if o.Grace == 0 {
		return node.DefaultGrace
	}
	return max(0, o.Grace)
}
