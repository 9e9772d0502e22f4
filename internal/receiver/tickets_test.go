package receiver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store/memory"
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
