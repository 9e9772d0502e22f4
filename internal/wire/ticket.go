package wire

import (
	"bytes"
	"net/http"

	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/protocol"
)

// ticket serves a tools/call that may be answered with a ticket, or is about one. It reports
// false if this call is not.
func (h *handler) ticket(w http.ResponseWriter, req *http.Request, body []byte, m *protocol.Message, known *session) bool {
	if m.Method != protocol.MethodToolsCall || known != nil && known.negotiated && known.tickets == nil {
		return false
	}
	take := h.receiver.Take(req.Context(), h.requestor(req, known), known.ticketing(), m)
	switch {
	case take.Call != nil:
		var none *receiver.Plain
		none.Name(req.Header)
		h.carry(w, req, body, m, take.Call)
	case take.Do != nil:
		if _, ok := h.verify(w, req); !ok {
			return true
		}
		h.collect(w, req, bytes.Clone(m.ID), take)
	default:
		return false
	}
	return true
}

// collect serves a call that waits for a task's outcome.
func (h *handler) collect(w http.ResponseWriter, req *http.Request, id []byte, take receiver.Take) {
	ctx, onGiveUp, done := h.waits.beginTask(req.Context(), h.scope(req), id)
	defer done()
	collecting, a := take.Do(req.Context())
	if collecting == nil {
		onGiveUp(nil)
		h.write(w, http.StatusOK, a, id)
		return
	}
	defer collecting.Close()
	onGiveUp(func() { collecting.GiveUp(ctx) })
	delivered := false
	if acceptsStream(req) {
		delivered = h.await(ctx, w, collecting, id)
	} else {
		collecting.Mute()
		for {
			_, a, last, err := collecting.Next(ctx)
			if err != nil {
				break
			}
			if last {
				h.write(w, http.StatusOK, a, id)
				delivered = ctx.Err() == nil
				break
			}
		}
	}
	if delivered {
		collecting.Delivered(ctx)
	} else {
		collecting.Lost(ctx)
	}
}
