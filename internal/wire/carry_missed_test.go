package wire_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store/memory"
)

// TestCarryGivenUpWithNoRoom: a call that its client gives up while it is being handed off, for
// which there turns out to be no room, ends: nobody waits for it any more.
func TestCarryGivenUpWithNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		c := newCarrierWith(t, &slowStore{memory.New(), true}, receiver.Tickets{}, func(_ http.ResponseWriter, req *http.Request) {
			<-req.Context().Done()
			close(ended)
		})
		go func() {
			pause(t.Context(), 30*time.Second) // the hand-off takes from 20 to 80 s
			c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c"}}`, streams)
			select {
			case <-c.server.cancelled:
				t.Error("the server heard of it before it was known whether the work goes on")
			default:
			}
		}()
		if body := c.post(carriedCall, streams).Body.String(); strings.Contains(body, "ticket") {
			t.Errorf("got %s", body)
		}
		<-ended
		<-c.server.cancelled
	})
}

// stuckConn is the connection of a client that cannot be reached any more, as is found late once
// the result has to leave.
type stuckConn struct {
	*httptest.ResponseRecorder
	found chan struct{}
}

func (s stuckConn) FlushError() error {
	if strings.Contains(s.Body.String(), `"x":1.0`) {
		<-s.found
		return errors.New("broken pipe")
	}
	return nil
}

// TestCollectedByAnother: a result that one of two repeats got was collected, whatever is found of
// the other later: the next one is a new call.
func TestCollectedByAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		c := newCarrier(t, receiver.Tickets{}, func(w http.ResponseWriter, req *http.Request) {
			calls.Add(1)
			pause(req.Context(), time.Minute)
			asJSON(w, 200, carriedReply)
		})
		go func() {
			pause(t.Context(), time.Second)
			c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c"}}`, only)
		}()
		c.post(carriedCall, only)
		pause(t.Context(), 57*time.Second)
		stuck, left := stuckConn{httptest.NewRecorder(), make(chan struct{})}, make(chan struct{})
		go func() {
			defer close(left)
			c.h.ServeHTTP(stuck, c.request(t.Context(), carriedCall, streams))
		}()
		other := strings.Replace(carriedCall, `"c"`, `"d"`, 1)
		if got := c.post(other, only).Body.String(); calls.Load() != 1 || !strings.Contains(got, `"x":1.0`) {
			t.Errorf("%d calls, got %s", calls.Load(), got)
		}
		close(stuck.found)
		<-left
		if got := c.post(other, only).Body.String(); calls.Load() != 2 || strings.Contains(got, `"x":1.0`) {
			t.Errorf("%d calls, got %s", calls.Load(), got)
		}
	})
}

// TestQuestionBesideASilentCollect: a question goes to who can hear it, not to a client that takes
// an answer only.
func TestQuestionBesideASilentCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCarrier(t, receiver.Tickets{Heartbeat: time.Hour}, func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			pause(req.Context(), 35*time.Second)
			_, _ = io.WriteString(w, `data: {"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"Sure?","requestedSchema":{"type":"object","properties":{}}}}`+"\n\n")
			pause(req.Context(), 30*time.Second)
		})
		c.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}}}}`, streams)
		ticket := c.post(carriedCall, only).Body.Bytes() // at 20 s
		pause(t.Context(), 5*time.Second)
		heard := make(chan string, 1)
		go func() {
			id := protocol.Get(protocol.Get(protocol.Get(protocol.Get(ticket, "result"), "_meta"), protocol.MetaTicket), "ticket")
			heard <- c.post(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"ticket_collect","arguments":{"ticket":`+string(id)+`}}}`, streams).Body.String()
		}()
		pause(t.Context(), time.Second)
		c.collect(t, ticket)
		if got := <-heard; !strings.Contains(got, "elicitation/create") {
			t.Errorf("the stream had %s", got)
		}
	})
}

// TestNoSessionNoTickets: where a server gives out no session id, its clients are not told of
// tickets, which they do not get.
func TestNoSessionNoTickets(t *testing.T) {
	const answer = `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}}`
	c := newCarrier(t, receiver.Tickets{}, nil)
	c.h = wire.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { asJSON(w, 200, answer) }), c.receiver, nil)
	w := post(c.h, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}`)
	if w.Body.String() != answer {
		t.Errorf("got %s", w.Body)
	}
}
