package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/protocol"
)

func TestTicketFlags(t *testing.T) {
	type tickets = receiver.Tickets
	for _, c := range []struct {
		args  []string
		want  func(*tickets)
		tools map[string]protocol.TaskSupport
	}{
		{args: nil, want: func(*tickets) {}},
		{args: []string{"--tickets=off"}, want: func(t *tickets) { t.Mode = receiver.TicketsOff }},
		{
			args: []string{"--tickets=always", "--patience=none", "--heartbeat=2s", "--reattach=0"},
			want: func(t *tickets) {
				t.Mode, t.Patience, t.Heartbeat, t.Reattach = receiver.TicketsAlways, -1, 2*time.Second, -1
			},
		},
		{
			args: []string{"--tickets=off", "--tool", "a=ticket:5s", "--tool", "b=ticket:none,cancel", "--tool", "c=ticket"},
			want: func(t *tickets) {
				t.Mode = receiver.TicketsOff
				t.ByName = map[string]receiver.TicketTool{
					"a": {Mode: receiver.TicketsAuto, Patience: 5 * time.Second},
					"b": {Mode: receiver.TicketsAuto, Patience: -1, CancelLost: true},
					"c": {Mode: receiver.TicketsAuto},
				}
			},
		},
		{
			args: []string{"--tickets=always", "--tool", "a=ticket:5s"},
			want: func(t *tickets) {
				t.Mode = receiver.TicketsAlways
				t.ByName = map[string]receiver.TicketTool{"a": {Mode: receiver.TicketsAlways, Patience: 5 * time.Second}}
			},
		},
		// Whether it is called as a task is a setting beside the others.
		{
			args: []string{"--tool", "a=required,noticket", "--tool", "b=keep", "--tool", "c=forbidden"},
			want: func(t *tickets) {
				t.ByName = map[string]receiver.TicketTool{"a": {Mode: receiver.TicketsOff}, "b": {}}
			},
			tools: map[string]protocol.TaskSupport{"a": protocol.Required, "c": protocol.Forbidden},
		},
	} {
		want := tickets{Mode: receiver.TicketsAuto, Patience: 20 * time.Second, Heartbeat: 10 * time.Second, Reattach: 10 * time.Minute}
		c.want(&want)
		if c.tools == nil {
			c.tools = map[string]protocol.TaskSupport{}
		}
		got, err := parseGateway(t, append(c.args, "http://h/mcp")...)
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		if diff := cmp.Diff(want, got.Tickets); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.args, diff)
		}
		if diff := cmp.Diff(c.tools, got.Tools); diff != "" {
			t.Errorf("%q: tools (-want +got):\n%s", c.args, diff)
		}
	}
}

func TestTicketFlagsRefuse(t *testing.T) {
	for line, says := range map[string]string{
		"--tickets on":            `--tickets: "on" is not auto, off or always`,
		"--patience 0s":           `--patience: "0s" is no duration of at least 1ms, such as 20s, and not none`,
		"--patience 20":           `--patience: "20" is no duration`,
		"--heartbeat 0s":          "--heartbeat must be at least 1ms",
		"--reattach=-1m":          "--reattach cannot be negative",
		"--tool a=ticket:":        `--tool a: "" is no duration`,
		"--tool a=ticket:soon":    `--tool a: "soon" is no duration`,
		"--tool a=keep:5s":        `--tool a: "keep" takes no value`,
		"--tool a=tickets":        `"tickets" is not optional, required or forbidden, ticket[:DURATION], noticket, keep or cancel`,
		"--tool a=optional,,keep": `"" is not optional`,
	} {
		if got, err := parseGateway(t, append(strings.Fields(line), "http://h/mcp")...); err == nil {
			t.Errorf("%s: %+v, want an error that says %q", line, got, says)
		} else if !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %q, want an error that says %q", line, err, says)
		}
	}
}
