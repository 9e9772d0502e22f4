package receiver

import (
	"context"
	"net/http"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
)

// callHeader says, in a request's headers, which Plain it is.
const callHeader = "Coatcheck-Call"

// Plain is a tools/call that runs plainly, whose handler may have the requestor run tasks.
type Plain struct{ plain *engine.Plain }

// Plain opens a plain call; nil if its handler is not here, or the requestor runs no tasks.
// Done must be called.
func (r *Receiver) Plain(from *Requestor, m *protocol.Message) *Plain {
	if !r.asks || m.Method != protocol.MethodToolsCall || !engine.HostsAny(from.Initialize) {
		return nil
	}
	return &Plain{r.engine.Plain(from.listener())}
}

// Hears reports whether a notification ends here: what a requestor says of its own tasks is a
// hint (NOT-2) that the SDK's server has no words for, and refuses.
func (r *Receiver) Hears(method string) bool { return r.asks && method == protocol.MethodTasksStatus }

// Name has the headers say which call it is. Without a Plain they must say nothing.
func (p *Plain) Name(headers http.Header) {
	headers.Del(callHeader)
	if p != nil {
		headers.Set(callHeader, p.plain.ID())
	}
}

// Taken gives the call that headers name to its handler, once, which must Close it; nil if
// they name none.
func (r *Receiver) Taken(headers http.Header) *engine.Plain {
	if id := headers.Get(callHeader); id != "" {
		return r.engine.TakePlain(id)
	}
	return nil
}

// Speak says that the call has a stream of its own, on which Next is sent.
func (p *Plain) Speak() { p.plain.Speak() }

// Next returns what is to be sent next, as Waiting.Next does.
func (p *Plain) Next(ctx context.Context) (Message, error) {
	ev, err := p.plain.Next(ctx)
	if err != nil {
		return Message{}, err
	}
	return message(ev), nil
}

// Silence says that the stream has ended.
func (p *Plain) Silence() { p.plain.Silence() }

// Done says that the call has been handed to its handler, or never will be.
func (p *Plain) Done() { p.plain.Abandon() }
