package wire_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/store/memory"
)

const (
	carriedCall  = `{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"slow","_meta":{"progressToken":7}}}`
	carriedReply = `{ "jsonrpc":"2.0","id":"c", "result":{"content":[],"x":1.0} }`
)

// slowServer is an inner handler that knows initialize, and serves a tools/call as it is told.
type slowServer struct {
	serve     func(w http.ResponseWriter, req *http.Request)
	cancelled chan struct{} // closed by notifications/cancelled
	left      func()        // called by DELETE
}

func (s *slowServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	m, err := protocol.ParseMessage(body)
	switch {
	case req.Method == http.MethodDelete:
		s.left()
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	case m.Method == protocol.MethodInitialize:
		w.Header().Set("Mcp-Session-Id", "session-of-the-slow-server")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}}`)
	case m.Method == protocol.MethodCancelled:
		close(s.cancelled)
		w.WriteHeader(http.StatusAccepted)
	case m.Method == protocol.MethodToolsCall:
		s.serve(w, req)
	default:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
	}
}

// carrier is a tap with tickets in front of a slow server, and a session.
type carrier struct {
	h        http.Handler
	server   *slowServer
	receiver *receiver.Receiver
}

func newCarrier(t *testing.T, tickets receiver.Tickets, serve func(w http.ResponseWriter, req *http.Request)) *carrier {
	t.Helper()
	return newCarrierWith(t, memory.New(), tickets, serve)
}

func newCarrierWith(t *testing.T, s store.Store, tickets receiver.Tickets, serve func(w http.ResponseWriter, req *http.Request)) *carrier {
	t.Helper()
	e, err := engine.New(t.Context(), engine.Options{Store: s, Runner: runner{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		_ = e.Shutdown(over)
	})
	tickets.Mode = receiver.TicketsAuto
	c := &carrier{
		server:   &slowServer{serve: serve, cancelled: make(chan struct{})},
		receiver: receiver.New(receiver.Options{Engine: e, Tools: receiver.Tools{Default: protocol.Optional}, Tickets: tickets}),
	}
	c.h = wire.Handler(c.server, c.receiver, nil)
	c.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`, "*/*, text/event-stream")
	return c
}

func (c *carrier) request(ctx context.Context, body, accept string) *http.Request {
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/mcp", strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", accept)
	req.Header.Set("Mcp-Session-Id", "session-of-the-slow-server")
	req.Header.Set("Mcp-Protocol-Version", protocol.Version20251125)
	return req
}

func (c *carrier) post(body, accept string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	c.h.ServeHTTP(w, c.request(context.Background(), body, accept))
	return w
}

// collect answers ticket_collect of the ticket in a call's answer.
func (c *carrier) collect(t *testing.T, answer json.RawMessage) string {
	t.Helper()
	id := protocol.Get(protocol.Get(protocol.Get(protocol.Get(answer, "result"), "_meta"), protocol.MetaTicket), "ticket")
	if id == nil {
		t.Fatalf("no ticket: %s", answer)
	}
	return c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"ticket_collect","arguments":{"ticket":%s}}}`, id),
		"application/json").Body.String()
}

// pause lets time pass in a bubble.
func pause(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

func asJSON(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Server", "slow")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

const streams, only = "application/json, text/event-stream", "application/json"

// TestCarry: what a client gets of an inner handler that takes its time, byte for byte where it
// gets its own answer (RES-1).
func TestCarry(t *testing.T) {
	var late = func(d time.Duration, status int, body string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, req *http.Request) {
			pause(req.Context(), d)
			asJSON(w, status, body)
		}
	}
	for name, tc := range map[string]struct {
		tickets    receiver.Tickets
		accept     string
		serve      func(http.ResponseWriter, *http.Request)
		status     int
		body       string // whole, if there is no ticket
		event      string // the last event, if it is one
		beats      int
		collected  string // with a ticket
		isTicket   bool
		headerKept bool
	}{
		"within the patience": {accept: streams, serve: late(19*time.Second, 200, carriedReply), status: 200, body: carriedReply, headerKept: true, tickets: receiver.Tickets{Heartbeat: time.Hour}},
		"refused":             {accept: streams, serve: late(time.Second, 403, "no"), status: 403, body: "no", headerKept: true},
		"a body after heartbeats": {
			accept: streams, serve: late(25*time.Second, 200, carriedReply), tickets: receiver.Tickets{Patience: time.Minute},
			status: 200, event: carriedReply, beats: 2,
		},
		"no answer after heartbeats": {
			accept: streams, serve: late(25*time.Second, 502, "bad gateway"), tickets: receiver.Tickets{Patience: time.Minute},
			status: 200, event: `{"jsonrpc":"2.0","id":"c","error":{"code":-32603,"message":"The server gave no answer"}}`, beats: 2,
		},
		"no heartbeats where no streams are taken": {
			accept: only, serve: late(25*time.Second, 200, carriedReply), tickets: receiver.Tickets{Patience: time.Minute},
			status: 200, body: carriedReply, headerKept: true,
		},
		"a ticket":                   {accept: only, serve: late(30*time.Second, 200, carriedReply), status: 200, isTicket: true, collected: `{"jsonrpc":"2.0","id":2,"result":{"content":[],"x":1.0}}`},
		"a ticket after a heartbeat": {accept: streams, serve: late(30*time.Second, 200, carriedReply), status: 200, isTicket: true, beats: 1, collected: `{"jsonrpc":"2.0","id":2,"result":{"content":[],"x":1.0}}`},
		"a ticket for an error": {
			accept: only, serve: late(30*time.Second, 200, `{"jsonrpc":"2.0","id":"c","error":{"code":-1,"message":"no","data":{"y":1e2}}}`),
			status: 200, isTicket: true, collected: `{"jsonrpc":"2.0","id":2,"error":{"code":-1,"message":"no","data":{"y":1e2}}}`,
		},
		"a ticket for nothing": {
			accept: only, serve: late(30*time.Second, 500, "oops"),
			status: 200, isTicket: true, collected: `{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"The server gave no answer"}}`,
		},
		"a stream that breaks off after the ticket": {
			accept: streams, serve: func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, ": begun\n\n")
				pause(req.Context(), 30*time.Second)
			},
			status: 200, isTicket: true, beats: 1, headerKept: false,
			collected: `{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"The connection to the server was lost before it answered"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCarrier(t, tc.tickets, tc.serve)
				w := c.post(carriedCall, tc.accept)
				body := w.Body.String()
				if w.Code != tc.status {
					t.Errorf("status %d", w.Code)
				}
				if got := w.Header().Get("X-Server") == "slow"; got != tc.headerKept {
					t.Errorf("headers %v", w.Header())
				}
				if beats := strings.Count(body, "still running ("); beats != tc.beats {
					t.Errorf("%d heartbeats, want %d: %s", beats, tc.beats, body)
				}
				last := body
				if strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
					_, last, _ = strings.Cut(body[strings.LastIndex(strings.TrimSpace(body), "\n\n")+1:], "data: ")
					last = strings.TrimSuffix(last, "\n\n")
				}
				switch {
				case tc.isTicket:
					if got := strings.TrimSpace(c.collect(t, json.RawMessage(last))); got != tc.collected {
						t.Errorf("collected %s", got)
					}
				case tc.event != "" && last != tc.event:
					t.Errorf("the last event is %s", last)
				case tc.event == "" && body != tc.body:
					t.Errorf("got %s", body)
				}
			})
		})
	}
}

// TestCarryGone: a client that hangs up with the policy cancel has the inner handler told and ended;
// with keep it goes on.
func TestCarryGone(t *testing.T) {
	for _, cancels := range []bool{false, true} {
		t.Run(fmt.Sprint(cancels), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan error, 1)
				c := newCarrier(t, receiver.Tickets{ByName: map[string]receiver.TicketTool{"slow": {CancelLost: cancels}}},
					func(w http.ResponseWriter, req *http.Request) {
						pause(req.Context(), time.Minute)
						ended <- req.Context().Err()
						asJSON(w, 200, carriedReply)
					})
				ctx, hangUp := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() {
					defer close(done)
					c.h.ServeHTTP(httptest.NewRecorder(), c.request(ctx, carriedCall, streams))
				}()
				pause(t.Context(), time.Second)
				hangUp()
				<-done
				select {
				case <-c.server.cancelled:
					if !cancels {
						t.Error("the server heard that the client went away")
					}
				default:
					if cancels {
						t.Error("the server was not told")
					}
				}
				if err := <-ended; cancels != (err != nil) {
					t.Errorf("the request ended with %v", err)
				}
			})
		})
	}
}
