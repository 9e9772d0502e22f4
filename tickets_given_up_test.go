package coatcheck_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/protocol"
)

const deafA = `{"name":"deaf","arguments":{"key":"a"}}`

func cancelledParams(id int) string { return fmt.Sprintf(`{"requestId":%d}`, id) }

// endsWithItsCall has the work of deaf end with its call, unless that got a ticket before.
func endsWithItsCall(patience time.Duration) coatcheck.Tickets {
	tickets := soon()
	tickets.ByName["deaf"] = coatcheck.TicketTool{Patience: patience, CancelLost: true}
	return tickets
}

// With the policy cancel a call that its client gave up becomes no task, even if its server goes on
// with it beyond the patience.
func TestGivenUpBeforeTheTicket(t *testing.T) {
	onAllFaces(t, settings{Tickets: endsWithItsCall(time.Second)}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		id := p.nextID()
		done := make(chan reply, 1)
		ctx, forget := context.WithCancel(t.Context())
		defer forget()
		go func() {
			r, _ := p.callContext(ctx, id, "tools/call", deafA)
			done <- r
		}()
		p.tool("started", "a")
		p.notify(protocol.MethodCancelled, cancelledParams(id))
		p.tool("stopped", "a")
		began := time.Now()
		for n := 0; time.Since(began) < time.Second; n++ { // each is answered with a ticket
			p.handIn(fmt.Sprintf(`{"name":"gate","arguments":{"key":"%d"}}`, n))
		}
		if !p.httpOfGateway() {
			listing := p.call("tools/call", `{"name":"ticket_list","arguments":{}}`)
			if strings.Contains(string(listing.Result), "deaf") {
				t.Errorf("a ticket for a call that was given up: %s", listing.Result)
			}
		}
		p.tool("open", "a")
		if p.http { // elsewhere a cancelled call need not be answered
			if r := <-done; ticketOf(r.Result) != "" {
				t.Errorf("got %s", r.Result)
			}
		}
	})
}

// A cancellation that crosses the ticket ends the work all the same, and what the server says of it
// then reaches nobody.
func TestGivenUpAfterTheTicket(t *testing.T) {
	onAllFaces(t, settings{Tickets: endsWithItsCall(100 * time.Millisecond)}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		call := p.nextID()
		r, err := p.callContext(t.Context(), call, "tools/call", deafA)
		id := ticketOf(r.Result)
		if err != nil || id == "" {
			t.Fatal(r, err)
		}
		p.notify(protocol.MethodCancelled, cancelledParams(call))
		p.tool("stopped", "a")
		p.tool("open", "a") // or its end would wait
		r = p.collect(id)
		if string(protocol.Get(r.Result, "isError")) != "true" || !strings.Contains(string(r.Result), "cancelled") {
			t.Errorf("got %s", r.Result)
		}
		p.call("ping", `{}`) // after the late answer, which the peer would have complained about
	})
}

// A connection whose client leaves ends, whatever its calls are at: the peer's process is waited for.
func TestLeavingCalls(t *testing.T) {
	for name, patience := range map[string]time.Duration{"before the ticket": time.Minute, "after the ticket": 100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			tickets := soon()
			tickets.ByName["gate"] = coatcheck.TicketTool{Patience: patience, CancelLost: true}
			onFaces(t, []face{faces[1], faces[2]}, settings{Tickets: tickets}, func(t *testing.T, connect func(string) *peer) {
				p := connect("alice")
				if patience < time.Minute {
					p.handIn(gateA)
					return
				}
				ctx, forget := context.WithCancel(t.Context())
				defer forget()
				go func() { _, _ = p.callContext(ctx, p.nextID(), "tools/call", gateA) }()
				p.tool("started", "a")
			})
		})
	}
}

// oneServer are those faces whose tasks and plain calls reach one process: a gateway to a command
// runs each task in a process of its own.
var oneServer = append(slices.Clip(faces), allFaces[4])

// A tool that runs only as a task is run as one for a client that knows nothing of tasks (TOOL-4),
// and all that holds for tickets holds for its.
func TestTicketOfARequiredTool(t *testing.T) {
	const hold = `{"name":"hold","arguments":{"key":%q}}`
	onFaces(t, oneServer, settings{Tickets: soon()}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		id := p.handIn(fmt.Sprintf(hold, "a"))
		p.tool("open", "a")
		if r := p.collected(id); string(r.Result) != openedA {
			t.Errorf("collected %s %v", r.Result, r.Error)
		}
		id = p.handIn(fmt.Sprintf(hold, "b"))
		p.call("tools/call", fmt.Sprintf(`{"name":"ticket_cancel","arguments":{"ticket":%q}}`, id))
		p.tool("stopped", "b")
	})
	tickets := coatcheck.Tickets{Mode: coatcheck.TicketsAuto, Patience: time.Minute, ByName: map[string]coatcheck.TicketTool{"gate": {CancelLost: true}}}
	onFaces(t, oneServer, settings{Tickets: tickets}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		p.loseCall(fmt.Sprintf(hold, "a"), "a")
		p.tool("open", "a")
		if r := p.call("tools/call", fmt.Sprintf(hold, "a")); string(r.Result) != openedA {
			t.Errorf("the repeat got %s %v", r.Result, r.Error)
		}
	})
	tickets.ByName["hold"] = coatcheck.TicketTool{CancelLost: true}
	onFaces(t, oneServer, settings{Tickets: tickets}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		p.loseCall(fmt.Sprintf(hold, "a"), "a")
		p.tool("stopped", "a")
	})
}

// loseCall makes a call that begins to run, and gives it up.
func (p *peer) loseCall(params, key string) {
	p.t.Helper()
	id, lost := p.nextID(), make(chan struct{})
	ctx, cancel := context.WithCancel(p.t.Context())
	go func() {
		defer close(lost)
		_, _ = p.callContext(ctx, id, "tools/call", params)
	}()
	p.tool("started", key)
	p.notify(protocol.MethodCancelled, cancelledParams(id))
	cancel()
	<-lost
}

// Calls that are made at the same time are as many runs, however equal they are.
func TestSameCallAtOnce(t *testing.T) {
	onFaces(t, oneServer, settings{Tickets: soon()}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		const calls, rounds = 8, 10
		for range rounds {
			var wg sync.WaitGroup
			for range calls {
				wg.Go(func() {
					if r := p.plainly(`{"name":"must","arguments":{"key":"x"}}`); !strings.Contains(string(r.Result), "echo x") {
						t.Errorf("got %s %v", r.Result, r.Error)
					}
				})
			}
			wg.Wait()
		}
		if r := p.tool("runs", "mustx"); !strings.Contains(string(r.Result), `"80"`) {
			t.Errorf("runs: %s", r.Result)
		}
	})
}

// Where as many tasks run, or are stored, as may be, there is no ticket: the client waits on, and
// gets its result (RSC-1).
func TestNoRoomForATicket(t *testing.T) {
	for name, limits := range map[string]*coatcheck.Limits{"running": {Running: 1}, "stored": {Tasks: 1}} {
		t.Run(name, func(t *testing.T) {
			onAllFaces(t, settings{Tickets: soon(), Limits: limits}, func(t *testing.T, connect func(string) *peer) {
				p := connect("alice")
				id := p.handIn(gateA)
				answer := make(chan reply, 1)
				call := p.nextID()
				go func() {
					r, _ := p.callContext(context.Background(), call, "tools/call", `{"name":"gate","arguments":{"key":"b"}}`)
					answer <- r
				}()
				p.tool("started", "b")
				p.collect(id) // waits as long as b's patience lasts
				p.collect(id)
				p.tool("open", "b")
				wantText(t, <-answer, "opened b")
				p.tool("open", "a")
				wantText(t, p.collected(id), "opened a")
			})
		})
	}
}
