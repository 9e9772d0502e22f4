package ticket

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/coatcheck/coatcheck/protocol"
)

// The most bytes of what others wrote that are repeated in a text.
const (
	maxName     = 128 // of a tool or an echoed ticket
	maxProgress = 300
	maxQuestion = 1000
)

// The status in a result's MetaTicket; see there.
const (
	working       = "working"
	inputRequired = "input_required"
	cancelled     = "cancelled"
	ended         = "ended"
	interrupted   = "interrupted"
	expired       = "expired"
	unknown       = "unknown"
)

// again tells what a model whose call came to nothing can do.
const again = " Make the original call again, which starts anew, only if that is still wanted."

// State is what is told of a call that has no result yet.
type State struct {
	// Ticket is given out as it is, so it must be one of ours.
	Ticket, Tool string
	// Running is how long since it began; whole seconds are shown.
	Running time.Duration
	// Progress is the last, "" for none.
	Progress string
	// Asks: it waits for an answer of the user's, of the client's model or of the client itself;
	// Question says which, "" if that is not known.
	Asks     bool
	Question string
	// Patience is how long the tool that collects waits. 0: until the call ends.
	Patience time.Duration
	// Joined: a repeat of an earlier call was taken to it.
	Joined bool
}

// Waiting returns the CallToolResult of a call that has no result yet. Its text tells a model all
// that is to be done. structured adds the same as structuredContent, for a tool with an
// outputSchema (see Adapt), of which some hosts show a model nothing else.
func (n Names) Waiting(s State, structured bool) json.RawMessage {
	var b strings.Builder
	tool, argument := quote(s.Tool, maxName), `{"ticket":`+quote(s.Ticket, len(s.Ticket))+`}`
	if s.Joined {
		b.WriteString("This call repeats an earlier one and was joined to it, not started a second time. ")
	}
	b.WriteString("The call of " + tool + " is still running, for " + seconds(s.Running) + " so far.")
	if s.Progress != "" {
		b.WriteString(" Its last progress: " + quote(s.Progress, maxProgress) + ".")
	}
	status := working
	if s.Asks {
		status = inputRequired
		b.WriteString(" It cannot go on without an answer")
		if s.Question != "" {
			b.WriteString(" (" + quote(s.Question, maxQuestion) + ")")
		}
		b.WriteString(", which is asked for while " + n.Collect + " waits.")
	}
	b.WriteString(" Do not call " + tool + " again for this. To wait for its result and get it, call the tool " +
		n.Collect + " with exactly " + argument + ". ")
	if s.Patience > 0 {
		b.WriteString("That waits up to " + seconds(s.Patience+time.Second-1) + "; if the call is still running then, do the same again.")
	} else {
		b.WriteString("That waits until the call has ended.")
	}
	b.WriteString(" To stop the call instead, use " + n.Cancel + " with " + argument + ".")
	r := result{text: b.String(), meta: about{Ticket: s.Ticket, Status: status, Collect: n.Collect}}
	if structured {
		r.structured = &answer{Ticket: s.Ticket, Status: status, Message: r.text}
	}
	return r.json()
}

// Unknown returns the CallToolResult, an error, for a ticket that is none, or somebody else's.
func (n Names) Unknown(ticket string) json.RawMessage {
	text := "There is no ticket " + quote(ticket, maxName) + ". Use a ticket exactly as it was given."
	if n.List != "" {
		text += " The tool " + n.List + " lists those there are."
	}
	return failure(ticket, unknown, text+" If the ticket is right, its call and result are gone."+again)
}

// Expired returns the CallToolResult, an error, for a ticket whose result was kept for its time.
func (n Names) Expired(ticket string) json.RawMessage {
	return failure(ticket, expired, "Ticket "+quote(ticket, maxName)+" has expired; the result of its call is gone."+again)
}

// Cancelled returns the CallToolResult of cancelling a call just now, or the one, an error, for
// a ticket whose call was cancelled before.
func (n Names) Cancelled(ticket string, justNow bool) json.RawMessage {
	quoted := quote(ticket, maxName)
	if justNow {
		return result{
			text: "Cancelled. The call of ticket " + quoted + " was stopped and gives no result; what it did until then stays done.",
			meta: about{Ticket: bound(ticket, maxName), Status: cancelled},
		}.json()
	}
	return failure(ticket, cancelled, "The call of ticket "+quoted+" was cancelled and has no result."+again)
}

// Ended returns the CallToolResult, an error, of cancelling a call that has ended.
func (n Names) Ended(ticket string) json.RawMessage {
	quoted := quote(ticket, maxName)
	return result{
		text: "The call of ticket " + quoted + " has already ended, so it was not cancelled. To get its result, call the tool " +
			n.Collect + ` with exactly {"ticket":` + quoted + "}.",
		meta:   about{Ticket: bound(ticket, maxName), Status: ended, Collect: n.Collect},
		failed: true,
	}.json()
}

// Interrupted returns the CallToolResult, an error, for a ticket whose work died with the process
// that did it.
func (n Names) Interrupted(ticket, tool string) json.RawMessage {
	name := quote(tool, maxName)
	return failure(ticket, interrupted, "The call of "+name+" with ticket "+quote(ticket, maxName)+
		" was interrupted by a restart and has no result; how much of its work was done is not known. "+
		"Call "+name+" again, which starts anew, only if that is still wanted and doing it twice does no harm.")
}

// Listed is one ticket of a listing.
type Listed struct {
	Ticket, Tool, Status string
	// Age is how long since the call began.
	Age time.Duration
	// Progress is the last, "" for none.
	Progress string
}

// Listing returns the CallToolResult that lists tickets, in the order given. more: there are more
// than these.
func (n Names) Listing(all []Listed, more bool) json.RawMessage {
	var b strings.Builder
	if len(all) == 0 {
		b.WriteString("There are no tickets.")
	} else {
		b.WriteString("To get the result of one, call " + n.Collect + " with its ticket:")
	}
	meta := listing{Tickets: make([]about, 0, len(all)), More: more}
	for _, l := range all {
		b.WriteString("\n" + `{"ticket":` + quote(l.Ticket, len(l.Ticket)) + "}: " + quote(l.Tool, maxName) + ", " +
			l.Status + ", begun " + seconds(l.Age) + " ago")
		if l.Progress != "" {
			b.WriteString(", last progress " + quote(l.Progress, maxProgress))
		}
		meta.Tickets = append(meta.Tickets, about{Ticket: l.Ticket, Tool: l.Tool, Status: l.Status})
	}
	if more {
		b.WriteString("\nThere are more, which are not listed.")
	}
	return encode(b.String(), nil, protocol.MetaTickets, protocol.Marshal(meta), false)
}

// about is what a program reads of a ticket: the value of protocol.MetaTicket.
type about struct {
	Ticket  string `json:"ticket"`
	Tool    string `json:"tool,omitempty"`
	Status  string `json:"status"`
	Collect string `json:"collect,omitempty"`
}

// listing is the value of protocol.MetaTickets.
type listing struct {
	Tickets []about `json:"tickets"`
	More    bool    `json:"more,omitempty"`
}

// answer is the structuredContent of a ticket; answerSchema describes it.
type answer struct {
	Ticket  string `json:"ticket"`
	Status  string `json:"status"`
	Message string `json:"message"`
}

// result is a CallToolResult about one ticket.
type result struct {
	text       string
	structured *answer
	meta       about
	failed     bool
}

func failure(ticket, status, text string) json.RawMessage {
	return result{text: text, meta: about{Ticket: bound(ticket, maxName), Status: status}, failed: true}.json()
}

func (r result) json() json.RawMessage {
	var structured json.RawMessage
	if r.structured != nil {
		structured = protocol.Marshal(r.structured)
	}
	return encode(r.text, structured, protocol.MetaTicket, protocol.Marshal(r.meta), r.failed)
}

// encode writes a CallToolResult with one text.
func encode(text string, structured json.RawMessage, key string, meta json.RawMessage, failed bool) json.RawMessage {
	out := append(protocol.AppendString([]byte(`{"content":[{"type":"text","text":`), text), `}]`...)
	if structured != nil {
		out = append(append(out, `,"structuredContent":`...), structured...)
	}
	if failed {
		out = append(out, `,"isError":true`...)
	}
	out = append(protocol.AppendString(append(out, `,"_meta":{`...), key), ':')
	return append(append(out, meta...), "}}"...)
}

// quote returns what others wrote as a JSON string of at most limit bytes before quoting, so that
// it cannot be taken for our words.
func quote(s string, limit int) string {
	return string(protocol.AppendString(nil, bound(s, limit)))
}

// bound returns s in valid UTF-8 of at most limit bytes, with an ellipsis at the end if it was cut.
func bound(s string, limit int) string {
	valid := strings.ToValidUTF8(s[:min(len(s), limit)], "\uFFFD")
	if len(s) <= limit && len(valid) <= limit {
		return valid
	}
	const ellipsis = "…"
	cut := min(len(valid), max(0, limit-len(ellipsis)))
	for cut > 0 && cut < len(valid) && !utf8.RuneStart(valid[cut]) {
		cut--
	}
	return valid[:cut] + ellipsis
}

// seconds writes a duration in whole seconds.
func seconds(d time.Duration) string {
	d = max(d, 0).Truncate(time.Second)
	if d < time.Minute {
		return strconv.Itoa(int(d/time.Second)) + " s"
	}
	return d.String()
}
