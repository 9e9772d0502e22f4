package coatcheck_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/protocol"
)

// soon has calls of some tools answered with a ticket that do not end at once.
func soon() coatcheck.Tickets {
	quick := coatcheck.TicketTool{Patience: 100 * time.Millisecond}
	return coatcheck.Tickets{Mode: coatcheck.TicketsAuto, ByName: map[string]coatcheck.TicketTool{"gate": quick, "look": quick, "asking": quick, "hold": quick}}
}

// ticketOf returns the ticket in a tool result; "" if there is none.
func ticketOf(result json.RawMessage) string {
	id, _ := protocol.Unquote(protocol.Get(protocol.Get(protocol.Get(result, "_meta"), protocol.MetaTicket), "ticket"))
	return id
}

const gateA = `{"name":"gate","arguments":{"key":"a"}}`

// handIn makes a plain call that is answered with a ticket.
func (p *peer) handIn(params string) string {
	p.t.Helper()
	r := p.call("tools/call", params)
	id := ticketOf(r.Result)
	if r.Error != nil || id == "" {
		p.t.Fatalf("no ticket: %s %v", r.Result, r.Error)
	}
	return id
}

func (p *peer) collect(id string) reply {
	p.t.Helper()
	return p.call("tools/call", fmt.Sprintf(`{"name":"ticket_collect","arguments":{"ticket":%q,"wait_seconds":0.1}}`, id))
}

// collected collects until there is no ticket in the answer.
func (p *peer) collected(id string) reply {
	p.t.Helper()
	for range 200 {
		if r := p.collect(id); ticketOf(r.Result) == "" {
			return r
		}
	}
	p.t.Fatal("never collected")
	return reply{}
}

const openedA = `{"content":[{"type":"text","text":"opened a"}]}`

// A slow call is answered with a ticket, its result collected as its server wrote it, and a fast
// one is not touched.
func TestTicket(t *testing.T) {
	onAllFaces(t, settings{Tickets: soon()}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		if r := p.call("tools/call", `{"name":"echo","arguments":{"key":"x"}}`); ticketOf(r.Result) != "" || !strings.Contains(string(r.Result), "echo x") {
			t.Fatalf("a fast call: %s", r.Result)
		}
		id := p.handIn(gateA)
		if r := p.collect(id); ticketOf(r.Result) != id {
			t.Fatalf("collected what still runs: %s", r.Result)
		}
		p.tool("open", "a")
		if r := p.collected(id); r.Error != nil || string(r.Result) != openedA {
			t.Fatalf("collected %s %v, want %s", r.Result, r.Error, openedA)
		}
		if got := p.tool("runs", "gatea"); !strings.Contains(string(got.Result), `"1"`) {
			t.Errorf("runs: %s", got.Result)
		}
	})
}

// Tickets that are not there say so in words.
func TestTicketsThatAreNotThere(t *testing.T) {
	onAllFaces(t, settings{Tickets: soon()}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		for _, tool := range []string{"ticket_collect", "ticket_cancel"} {
			r := p.call("tools/call", fmt.Sprintf(`{"name":%q,"arguments":{"ticket":"nonesuch"}}`, tool))
			if r.Error != nil || string(protocol.Get(r.Result, "isError")) != "true" || !strings.Contains(string(r.Result), "nonesuch") {
				t.Errorf("%s: %s %v", tool, r.Result, r.Error)
			}
			for _, params := range []string{`{"name":%q}`, `{"name":%q,"arguments":{}}`, `{"name":%q,"arguments":{"ticket":7}}`, `{"name":%q,"arguments":{"ticket":""}}`, `{"name":%q,"arguments":[]}`} {
				wantError(t, p.call("tools/call", fmt.Sprintf(params, tool)), -32602, "")
			}
		}
		wantError(t, p.call("tools/call", `{"name":"ticket_collect","arguments":{"ticket":"x","wait_seconds":"1"}}`), -32602, "")
		wantError(t, p.call("tools/call", `{"name":"ticket_collect","arguments":{"ticket":"x","wait_seconds":-1}}`), -32602, "")
	})
}

// SEC-1: another's ticket is an unknown one.
func TestAnothersTicket(t *testing.T) {
	s := settings{Tickets: soon(), Database: "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")}
	connect := openHTTP(t, s)
	alice, mallory := connect("alice"), connect("mallory")
	id := alice.handIn(gateA)
	for _, tool := range []string{"ticket_collect", "ticket_cancel"} {
		call := fmt.Sprintf(`{"name":%q,"arguments":{"ticket":%q}}`, tool, id)
		foreign := mallory.call("tools/call", call)
		unknown := mallory.call("tools/call", strings.ReplaceAll(call, id, strings.Repeat("A", len(id))))
		if strings.ReplaceAll(string(foreign.Result), id, "") != strings.ReplaceAll(string(unknown.Result), strings.Repeat("A", len(id)), "") {
			t.Errorf("%s: %s is not %s", tool, foreign.Result, unknown.Result)
		}
	}
	if r := mallory.call("tools/call", `{"name":"ticket_list","arguments":{}}`); strings.Contains(string(r.Result), id) {
		t.Errorf("listed to another: %s", r.Result)
	}
	if r := alice.call("tools/call", `{"name":"ticket_list","arguments":{}}`); !strings.Contains(string(r.Result), id) || !strings.Contains(string(r.Result), "gate") {
		t.Errorf("not listed: %s", r.Result)
	}
	alice.tool("open", "a")
	alice.collected(id)
}

// A ticket's work stops when it is cancelled.
func TestTicketCancel(t *testing.T) {
	onAllFaces(t, settings{Tickets: soon()}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		id := p.handIn(gateA)
		cancel := fmt.Sprintf(`{"name":"ticket_cancel","arguments":{"ticket":%q}}`, id)
		if r := p.call("tools/call", cancel); r.Error != nil || protocol.Get(r.Result, "isError") != nil {
			t.Fatalf("cancel: %s %v", r.Result, r.Error)
		}
		p.tool("stopped", "a") // waits until it is
		r := p.collect(id)
		if string(protocol.Get(r.Result, "isError")) != "true" || !strings.Contains(string(r.Result), "cancelled") {
			t.Errorf("collect of a cancelled one: %s", r.Result)
		}
	})
}

// A call that its client gives up goes on, and a repeat of it gets its result, once; then it is a
// new call.
func TestLostReply(t *testing.T) {
	tickets := coatcheck.Tickets{Mode: coatcheck.TicketsAuto, Patience: time.Minute}
	onAllFaces(t, settings{Tickets: tickets}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		id := p.nextID()
		given := make(chan struct{})
		go func() {
			defer close(given)
			ctx, cancel := context.WithCancel(context.Background())
			if !p.http {
				cancel() // there is no answer to wait for
			}
			defer cancel()
			_, _ = p.callContext(ctx, id, "tools/call", gateA)
		}()
		p.tool("started", "a")
		p.notify("notifications/cancelled", fmt.Sprintf(`{"requestId":%d,"reason":"timeout"}`, id))
		<-given
		p.tool("open", "a")
		// Other spelling, same call.
		r := p.call("tools/call", `{"arguments": { "key" : "\u0061" }, "name":"gate"}`)
		if r.Error != nil || string(r.Result) != openedA {
			t.Fatalf("the repeat got %s %v", r.Result, r.Error)
		}
		if got := p.tool("runs", "gatea"); !strings.Contains(string(got.Result), `"1"`) {
			t.Errorf("runs: %s", got.Result)
		}
		if r := p.call("tools/call", `{"name":"echo","arguments":{"key":"x"}}`); r.Error != nil {
			t.Fatal(r.Error)
		}
	})
}

// A client that knows tasks sees none of it.
func TestNoTicketsForTasks(t *testing.T) {
	onAllFaces(t, settings{Tickets: soon(), Capabilities: `{"tasks":{}}`}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		if r := p.call("tools/list", `{}`); strings.Contains(string(r.Result), "ticket") {
			t.Errorf("tools: %s", r.Result)
		}
		if strings.Contains(string(p.initialized.Result), "ticket") {
			t.Errorf("initialize: %s", p.initialized.Result)
		}
	})
}

// Other clients are told of tickets, of every protocol version.
func TestTicketTools(t *testing.T) {
	for _, version := range []string{"2025-03-26", "2025-06-18", protocol.Version20251125} {
		t.Run(version, func(t *testing.T) {
			onAllFaces(t, settings{Tickets: soon(), Version: version}, func(t *testing.T, connect func(string) *peer) {
				p := connect("alice")
				r := p.call("tools/list", `{}`)
				for _, name := range []string{"ticket_collect", "ticket_cancel", "gate"} {
					if !strings.Contains(string(r.Result), `"name":"`+name+`"`) {
						t.Errorf("no %s in %s", name, r.Result)
					}
				}
				if !strings.Contains(string(p.initialized.Result), "do what the ticket says") {
					t.Errorf("initialize: %s", p.initialized.Result)
				}
				id := p.handIn(gateA)
				p.tool("open", "a")
				if r := p.collected(id); string(r.Result) != openedA {
					t.Errorf("collected %s", r.Result)
				}
			})
		})
	}
}
