package coatcheck_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/internal/gateway"
	"github.com/coatcheck/coatcheck/protocol"
)

// Whoever waits, for ever if need be, hears that the work goes on; progress never goes back
// (PROG-1), and the tool's own passes.
func TestHeartbeats(t *testing.T) {
	tickets := coatcheck.Tickets{Mode: coatcheck.TicketsAuto, Patience: -1, Heartbeat: 20 * time.Millisecond}
	onAllFaces(t, settings{Tickets: tickets, Capabilities: ableToAll}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		answers := make(chan reply, 1)
		go func() {
			r, _ := p.callContext(context.Background(), p.nextID(), "tools/call",
				`{"name":"asking","arguments":{"script":"report 3 ask report 7"},"_meta":{"progressToken":"p-1"}}`)
			answers <- r
		}()
		question := p.await(t, 1, method(protocol.MethodElicit))[0]
		beat := func(m heard) bool {
			return m.Method == protocol.MethodProgress && strings.Contains(string(m.Params), "still running")
		}
		p.await(t, 3, beat)
		p.respond(question.ID, `{"action":"accept","content":{"n":5}}`)
		wantText(t, <-answers, "accept 5")
		last := -1.0
		own := 0
		for _, m := range p.seen(method(protocol.MethodProgress)) {
			var at struct {
				ProgressToken string
				Progress      float64
			}
			if err := json.Unmarshal(m.Params, &at); err != nil || at.ProgressToken != "p-1" || at.Progress <= last {
				t.Errorf("%s after %v (%v)", m.Params, last, err)
			}
			last = at.Progress
			if strings.Contains(string(m.Params), "reporting") {
				own++
				if string(protocol.Get(protocol.Get(m.Params, "_meta"), "kept")) != "true" {
					t.Errorf("the tool's own progress became %s", m.Params)
				}
			}
		}
		if own != 2 {
			t.Errorf("the tool reported %d times:\n%s", own, p.dump())
		}
	})
}

// respond answers a question.
func (p *peer) respond(id json.RawMessage, result string) {
	p.t.Helper()
	if _, err := p.round(context.Background(), fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)); err != nil {
		p.t.Fatal(err)
	}
}

// A question is asked on the open call, stays open when that got a ticket, and is asked again on
// each collect until it is answered (INP-5).
func TestQuestionOfATicket(t *testing.T) {
	onAllFaces(t, settings{Tickets: soon(), Capabilities: ableToAll}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		id := p.handIn(`{"name":"asking","arguments":{"script":"ask"},"_meta":{"progressToken":"p-1"}}`)
		first := p.await(t, 1, method(protocol.MethodElicit))[0]
		question := first
		if p.http {
			for range 2 {
				if r := p.collect(id); ticketOf(r.Result) != id || !strings.Contains(string(r.Result), "How many?") {
					t.Fatalf("collect: %s", r.Result)
				}
			}
			asked := p.seen(method(protocol.MethodElicit))
			if len(asked) < 3 {
				t.Fatalf("asked %d times:\n%s", len(asked), p.dump())
			}
			question = asked[len(asked)-1]
		}
		p.respond(question.ID, `{"action":"accept","content":{"n":6}}`)
		wantText(t, p.collected(id), "accept 6")
	})
}

// The answer to the question as it was first asked still counts, and so does that it cannot be
// asked at all.
func TestLateAnswerOfATicket(t *testing.T) {
	onAllFaces(t, settings{Tickets: soon(), Capabilities: ableToAll}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		id := p.handIn(`{"name":"asking","arguments":{"script":"ask"}}`)
		first := p.await(t, 1, method(protocol.MethodElicit))[0]
		p.respond(first.ID, `{"action":"accept","content":{"n":8}}`)
		wantText(t, p.collected(id), "accept 8")
	})
	onAllFaces(t, settings{Tickets: soon()}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		r := p.call("tools/call", `{"name":"asking","arguments":{"script":"ask"}}`)
		if id := ticketOf(r.Result); id != "" { // the machine is slow
			r = p.collected(id)
		}
		if !strings.Contains(string(r.Result), "does not support elicitation") {
			t.Errorf("got %s", r.Result)
		}
	})
}

// A repeat of a call that got a ticket is taken to the same work if the tool may be called again,
// until the result was collected.
func TestRepeat(t *testing.T) {
	onAllFaces(t, settings{Tickets: soon()}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		p.call("tools/list", `{}`)
		const look = `{"name":"look","arguments":{}}`
		id := p.handIn(look)
		if again := p.handIn(`{"name":"look"}`); again != id {
			t.Errorf("a repeat got ticket %s, not %s", again, id)
		}
		if other := p.handIn(`{"name":"look","arguments":{"x":1}}`); other == id {
			t.Error("another call got the same ticket")
		}
		p.tool("open", "look")
		wantText(t, p.plainly(look), "look 1")
		wantText(t, p.plainly(look), "look 3")
		wantText(t, p.collect(id), "look 1")
	})
}

// plainly calls a tool, and collects the result if it took long.
func (p *peer) plainly(params string) reply {
	p.t.Helper()
	r := p.call("tools/call", params)
	if id := ticketOf(r.Result); id != "" {
		return p.collected(id)
	}
	return r
}

// A tool that is not to be called twice is called anew, if its caller has a ticket. (Of two calls
// in one process nobody can tell which one asks.)
func TestRepeatOfWhatIsNotIdempotent(t *testing.T) {
	onEveryFace(t, settings{Tickets: soon(), Capabilities: ableToAll}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		p.call("tools/list", `{}`)
		const ask = `{"name":"asking","arguments":{"script":"ask"}}`
		id := p.handIn(ask)
		if again := p.handIn(ask); again == id {
			t.Error("a repeat got the same ticket")
		}
		for _, question := range p.await(t, 2, method(protocol.MethodElicit)) {
			p.respond(question.ID, `{"action":"decline"}`)
		}
		wantText(t, p.collected(id), "decline <nil>")
	})
}

// With the policy cancel the work of a lost call stops.
func TestLostReplyCancels(t *testing.T) {
	tickets := coatcheck.Tickets{Mode: coatcheck.TicketsAuto, Patience: time.Minute, ByName: map[string]coatcheck.TicketTool{"gate": {CancelLost: true}}}
	onAllFaces(t, settings{Tickets: tickets}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		id := p.nextID()
		ctx, stopWaiting := context.WithCancel(t.Context())
		defer stopWaiting()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = p.callContext(ctx, id, "tools/call", gateA)
		}()
		p.tool("started", "a")
		p.notify("notifications/cancelled", fmt.Sprintf(`{"requestId":%d}`, id))
		p.tool("stopped", "a")
		if !p.http { // a connection has no answer for a call that was cancelled
			stopWaiting()
		}
		<-done
	})
}

// A client that hangs up gets its result by a repeat, in a new session, too; also when it ended the
// old one.
func TestHangUp(t *testing.T) {
	for _, ends := range []bool{false, true} {
		t.Run(fmt.Sprintf("ends its session %v", ends), func(t *testing.T) {
			tickets := coatcheck.Tickets{Mode: coatcheck.TicketsAuto, Patience: time.Minute}
			ofOneUser := face{"gateway of one user to a URL", func(t *testing.T, s settings) func(string) *peer {
				return openGateway(t, s, gateway.Config{URL: openPlainURL(t), SingleUser: true})
			}}
			for _, f := range []face{allFaces[0], ofOneUser} {
				t.Run(f.name, func(t *testing.T) {
					connect := f.open(t, settings{Tickets: tickets, Database: "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")})
					p := connect("alice")
					ctx, hangUp := context.WithCancel(t.Context())
					done := make(chan struct{})
					go func() {
						defer close(done)
						_, _ = p.callContext(ctx, p.nextID(), "tools/call", gateA)
					}()
					p.tool("started", "a")
					hangUp()
					<-done
					if ends {
						req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, p.web.url, nil)
						if err != nil {
							t.Fatal(err)
						}
						req.Header.Set("Authorization", "Bearer alice")
						req.Header.Set("Mcp-Session-Id", p.web.session)
						resp, err := p.web.client.Do(req)
						if err != nil || resp.StatusCode != http.StatusNoContent {
							t.Fatal(resp, err)
						}
						_ = resp.Body.Close()
						if _, err := p.callContext(t.Context(), p.nextID(), "ping", `{}`); err == nil {
							t.Error("the session has not ended")
						}
					}
					p = connect("alice")
					id := ""
					for end := time.Now().Add(30 * time.Second); id == "" && time.Now().Before(end); {
						id = firstTicket(p.call("tools/call", `{"name":"ticket_list","arguments":{}}`).Result)
					}
					p.tool("open", "a")
					if r := p.call("tools/call", gateA); string(r.Result) != openedA {
						t.Errorf("the repeat got %s %v", r.Result, r.Error)
					}
					if r := p.collect(id); string(r.Result) != openedA {
						t.Errorf("the ticket got %s %v", r.Result, r.Error)
					}
				})
			}
		})
	}
}

// httpOfGateway reports whether the peer is one of many that a gateway cannot tell apart.
func (p *peer) httpOfGateway() bool {
	r := p.call("tools/list", `{}`)
	return !strings.Contains(string(r.Result), `"ticket_list"`)
}

func firstTicket(listing json.RawMessage) string {
	all, _ := protocol.Elements(protocol.Get(protocol.Get(protocol.Get(listing, "_meta"), protocol.MetaTickets), "tickets"))
	if len(all) == 0 {
		return ""
	}
	id, _ := protocol.Unquote(protocol.Get(all[0].Value, "ticket"))
	return id
}

// A result outlives the process; work does not, and its ticket says so. A repeat of what was lost
// and ended is taken to it, of what was interrupted starts anew.
func TestTicketsAfterARestart(t *testing.T) {
	s := settings{Tickets: soon(), Database: "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")}
	var ended, interrupted string
	t.Run("before", func(t *testing.T) {
		connect := openHTTP(t, s)
		p := connect("alice")
		p.call("tools/list", `{}`)
		ended = p.handIn(`{"name":"look","arguments":{}}`)
		interrupted = p.handIn(gateA)
		p.tool("open", "look")
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
			if r := p.call("tools/call", `{"name":"ticket_list","arguments":{}}`); strings.Contains(string(r.Result), "completed") {
				return
			}
		}
		t.Fatal("never completed")
	})
	connect := openHTTP(t, s)
	p := connect("alice")
	p.call("tools/list", `{}`)
	wantText(t, p.plainly(`{"name":"look","arguments":{}}`), "look 1") // run before
	p.tool("open", "look")
	wantText(t, p.plainly(`{"name":"look","arguments":{}}`), "look 1") // run now
	wantText(t, p.collect(ended), "look 1")
	r := p.collect(interrupted)
	if string(protocol.Get(r.Result, "isError")) != "true" || !strings.Contains(string(r.Result), "interrupted") {
		t.Errorf("the interrupted one: %s %v", r.Result, r.Error)
	}
	p.tool("open", "a")
	if r := p.plainly(gateA); string(r.Result) != openedA {
		t.Errorf("the repeat got %s %v", r.Result, r.Error)
	}
}
