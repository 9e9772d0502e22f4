package receiver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/store/memory"
	"github.com/coatcheck/coatcheck/task"
)

// Tickets are for clients that negotiated tasks in no form: with us, or with a server whose own
// tasks pass through (CAP-1, CAP-5).
func TestTicketing(t *testing.T) {
	const tasks = `{"tasks":{}}`
	e, err := engine.New(t.Context(), engine.Options{Store: memory.New(), Runner: instant{}, Limits: limit.Off()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Shutdown(context.Background()) })
	for _, tc := range []struct {
		mode              receiver.TicketMode
		support           protocol.TaskSupport
		client, server    string // capabilities
		version           string
		tickets, augments bool // augments: as long as no call has params.task
	}{
		{mode: receiver.TicketsOff, support: protocol.Optional, client: `{}`, server: tasks},
		{mode: receiver.TicketsAuto, support: protocol.Optional, client: `{}`, server: tasks, tickets: true},
		{mode: receiver.TicketsAuto, support: protocol.Optional, client: tasks, server: tasks},
		{mode: receiver.TicketsAuto, support: protocol.Optional, client: `{"tasks":null}`, server: tasks, tickets: true},
		{mode: receiver.TicketsAlways, support: protocol.Optional, client: tasks, server: tasks, tickets: true, augments: true},
		{mode: receiver.TicketsAuto, support: protocol.Optional, client: tasks, server: `{}`, version: "2025-06-18", tickets: true},
		{mode: receiver.TicketsAuto, support: protocol.Forbidden, client: tasks, server: `{}`, tickets: true},
		{mode: receiver.TicketsAuto, support: protocol.Forbidden, client: tasks, server: tasks},
		{mode: receiver.TicketsAuto, support: protocol.Forbidden, client: `{}`, server: tasks, tickets: true},
	} {
		r := receiver.New(receiver.Options{
			Engine: e, Tools: receiver.Tools{Default: tc.support}, Limits: limit.Off(), Tickets: receiver.Tickets{Mode: tc.mode},
		})
		if tc.version == "" {
			tc.version = protocol.Version20251125
		}
		from := &receiver.Requestor{}
		from.Initialize = fmt.Appendf(nil, `{"capabilities":%s}`, tc.client)
		s := r.Ticketing(from, fmt.Appendf(nil, `{"protocolVersion":%q,"capabilities":%s}`, tc.version, tc.server))
		listed := func() bool {
			result := s.List(json.RawMessage(`{"tools":[]}`))
			return string(result) != `{"tools":[]}`
		}
		if s != nil != tc.tickets || tc.tickets && !listed() {
			t.Errorf("%+v: tickets %t", tc, s != nil)
			continue
		}
		if !tc.tickets {
			continue
		}
		m := protocol.NewCall(json.RawMessage(`1`), protocol.MethodToolsCall, json.RawMessage(`{"name":"a","task":{}}`))
		if take := r.Take(t.Context(), from, s, m); take.Call != nil || take.Do != nil {
			t.Errorf("%+v: a call with params.task is taken", tc)
		}
		if listed() != tc.augments {
			t.Errorf("%+v: listed after a call with params.task: %t", tc, listed())
		}
	}
}

// endless runs every task until it is stopped.
type endless struct{}

func (endless) Run(ctx context.Context, _ *engine.Job) (task.Outcome, error) {
	<-ctx.Done()
	return task.Outcome{}, ctx.Err()
}

// slowLoad takes a while to load a task, unless its caller cannot wait for that.
type slowLoad struct{ store.Store }

func (s slowLoad) Load(ctx context.Context, ref task.Ref) (*task.Task, error) {
	loaded, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	<-loaded.Done()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return s.Store.Load(ctx, ref)
}

// A tool that only runs as a task and has an outputSchema is answered with a ticket that has
// structuredContent, however short the tap listens at a time and the store takes (TOOL-4).
func TestTicketOfRequired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := engine.New(t.Context(), engine.Options{Store: slowLoad{memory.New()}, Runner: endless{}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			over, cancel := context.WithCancel(context.Background())
			cancel()
			_ = e.Shutdown(over)
		}()
		r := receiver.New(receiver.Options{
			Engine: e, Tools: receiver.Tools{Default: protocol.Required}, Tickets: receiver.Tickets{Mode: receiver.TicketsAuto, Patience: time.Second},
		})
		from := &receiver.Requestor{}
		from.Principal, from.Identified, from.Initialize = "p", true, json.RawMessage(`{"capabilities":{}}`)
		s := r.Ticketing(from, json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{}}`))
		s.List(json.RawMessage(`{"tools":[{"name":"a","outputSchema":{"type":"object"},"execution":{"taskSupport":"required"}}]}`))
		take := r.Take(t.Context(), from, s, protocol.NewCall(json.RawMessage(`1`), protocol.MethodToolsCall, json.RawMessage(`{"name":"a"}`)))
		if take.Do == nil {
			t.Fatal("the call passes")
		}
		collecting, a := take.Do(t.Context())
		if collecting == nil {
			t.Fatalf("got %s", a.Append(nil, nil))
		}
		defer collecting.Close()
		for last := false; !last; {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			_, a, last, _ = collecting.Next(ctx)
			cancel()
		}
		if protocol.Get(a.Result, "structuredContent") == nil {
			t.Errorf("got %s %s", a.Result, a.Error)
		}
	})
}

// numbered has each run tell its number.
type numbered struct{ runs *atomic.Int64 }

func (n numbered) Run(context.Context, *engine.Job) (task.Outcome, error) {
	return task.Outcome{Result: fmt.Appendf(nil, `{"content":[],"run":%d}`, n.runs.Add(1))}, nil
}

// Once a result that an earlier process kept is on its way to its requestor, a repeat of the call
// is a new run, though nobody knows yet that it arrived.
func TestRepeatWhileCollectedAfterARestart(t *testing.T) {
	e, err := engine.New(t.Context(), engine.Options{Store: memory.New(), Runner: numbered{new(atomic.Int64)}, Limits: limit.Off()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Shutdown(context.Background()) })
	from := &receiver.Requestor{}
	from.Principal, from.Identified, from.Initialize = "p", true, json.RawMessage(`{"capabilities":{}}`)
	// restart returns how a new process, on what the earlier ones stored, begins to answer a call.
	restart := func() (begin func(params string) *receiver.Collecting, ask func(params string) receiver.Answer) {
		r := receiver.New(receiver.Options{
			Engine: e, Tools: receiver.Tools{Default: protocol.Required}, Limits: limit.Off(), Tickets: receiver.Tickets{Mode: receiver.TicketsAuto},
		})
		s := r.Ticketing(from, json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{}}`))
		s.List(json.RawMessage(`{"tools":[{"name":"a","execution":{"taskSupport":"required"},"annotations":{"idempotentHint":true}}]}`))
		do := func(params string) (*receiver.Collecting, receiver.Answer) {
			take := r.Take(t.Context(), from, s, protocol.NewCall(json.RawMessage(`1`), protocol.MethodToolsCall, json.RawMessage(params)))
			if take.Do == nil {
				t.Fatalf("%s passes", params)
			}
			return take.Do(t.Context())
		}
		return func(params string) *receiver.Collecting {
				c, a := do(params)
				if c == nil {
					t.Fatalf("%s got %s", params, a.Append(nil, nil))
				}
				t.Cleanup(c.Close)
				return c
			}, func(params string) receiver.Answer {
				_, a := do(params)
				return a
			}
	}
	result := func(c *receiver.Collecting) string {
		for {
			_, a, last, err := c.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if last {
				return string(a.Result)
			}
		}
	}
	begin, _ := restart()
	lost := begin(`{"name":"a"}`)
	result(lost)
	lost.Lost(t.Context())

	begin, ask := restart()
	tickets := protocol.Get(protocol.Get(protocol.Get(ask(`{"name":"ticket_list","arguments":{}}`).Result, "_meta"), protocol.MetaTickets), "tickets")
	all, err := protocol.Elements(tickets)
	if err != nil || len(all) != 1 {
		t.Fatalf("tickets: %s, %v", tickets, err)
	}
	collect := begin(`{"name":"ticket_collect","arguments":{"ticket":` + string(protocol.Get(all[0].Value, "ticket")) + `}}`)
	if got := result(collect); got != `{"content":[],"run":1}` {
		t.Fatalf("collected %s", got)
	}
	repeat := begin(`{"name":"a"}`)
	collect.Delivered(t.Context())
	if got := result(repeat); got != `{"content":[],"run":2}` {
		t.Errorf("the repeat got %s", got)
	}
}

// The ticket tools stand on the last page of a listing; what the server wrote of its own tools stays
// as it was, but for an outputSchema.
func TestListed(t *testing.T) {
	const icons = `{"name":"a","title":"A","icons":[{"src":"x"}],"annotations":{"readOnlyHint":true},"x":1.0}`
	e, err := engine.New(t.Context(), engine.Options{Store: memory.New(), Runner: instant{}, Limits: limit.Off()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Shutdown(context.Background()) })
	r := receiver.New(receiver.Options{Engine: e, Limits: limit.Off(), Tickets: receiver.Tickets{Mode: receiver.TicketsAuto}})
	s := r.Ticketing(&receiver.Requestor{}, json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{}}`))
	added := strings.TrimSuffix(strings.TrimPrefix(string(s.List(json.RawMessage(`{"tools":[]}`))), `{"tools":[`), `]}`)
	for in, want := range map[string]string{
		`{"tools":[` + icons + `],"nextCursor":"2"}`:  `{"tools":[` + icons + `],"nextCursor":"2"}`,
		`{"tools":[],"nextCursor":""}`:                `{"tools":[],"nextCursor":""}`,
		`{"tools":[` + icons + `],"nextCursor":null}`: `{"tools":[` + icons + `,` + added + `],"nextCursor":null}`,
		`{"_meta":{"y":1e2},"tools":[` + icons + `]}`: `{"_meta":{"y":1e2},"tools":[` + icons + `,` + added + `]}`,
		`{"tools":7}`: `{"tools":7}`,
	} {
		if got := s.List(json.RawMessage(in)); string(got) != want {
			t.Errorf("%s\ngot  %s\nwant %s", in, got, want)
		}
	}
	if strings.Count(added, `"name":"ticket_`) != 2 {
		t.Errorf("added %s", added)
	}
	// Behind a server that has such tools itself, and further ones.
	for _, tc := range [][2]string{{"ticket_list", "coatcheck_ticket_collect"}, {"coatcheck_ticket_cancel", "coatcheck_coatcheck_ticket_collect"}} {
		if got := s.List(json.RawMessage(`{"tools":[{"name":"` + tc[0] + `"}]}`)); !strings.Contains(string(got), `"name":"`+tc[1]+`"`) {
			t.Errorf("beside %s: %s", tc[0], got)
		}
	}
}
