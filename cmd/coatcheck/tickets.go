package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/coatcheck/coatcheck/internal/gateway"
	"github.com/coatcheck/coatcheck/internal/receiver"
)

// ticketFlags are the flags of the gateway about tickets.
type ticketFlags struct {
	Tickets   string        `default:"auto" help:"Whose plain calls that take long are answered with a ticket: auto (of clients that negotiated tasks in no form), off, or always."`
	Patience  string        `default:"20s" help:"How long a plain call waits for its result before it is answered with a ticket; none: for ever."`
	Heartbeat time.Duration `default:"10s" help:"How often, at least, a client that asked for progress hears of it while a plain call waits."`
	Reattach  time.Duration `default:"10m" help:"How long after its end the work of a call whose reply was lost is what a repeat of the call gets; 0: not at all."`
}

// applyTickets checks the flags.
func (f *ticketFlags) applyTickets(cfg *gateway.Config) error {
	t := &cfg.Tickets
	switch t.Mode = receiver.TicketMode(f.Tickets); t.Mode {
	case receiver.TicketsAuto, receiver.TicketsOff, receiver.TicketsAlways:
	default:
		return fmt.Errorf("--tickets: %q is not auto, off or always", f.Tickets)
	}
	var err error
	if t.Patience, err = parsePatience(f.Patience); err != nil {
		return fmt.Errorf("--patience: %w", err)
	}
	if f.Heartbeat < time.Millisecond {
		return errors.New("--heartbeat must be at least 1ms")
	}
	if f.Reattach < 0 {
		return errors.New("--reattach cannot be negative")
	}
	t.Heartbeat, t.Reattach = f.Heartbeat, f.Reattach
	if f.Reattach == 0 {
		t.Reattach = -1
	}
	return nil
}

// parsePatience reads how long a call waits; negative is for ever.
func parsePatience(value string) (time.Duration, error) {
	if value == "none" {
		return -1, nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < time.Millisecond {
		return 0, fmt.Errorf("%q is no duration of at least 1ms, such as 20s, and not none", value)
	}
	return d, nil
}

// toolSetting applies the settings of --tool NAME=SETTING[,SETTING…].
func toolSetting(cfg *gateway.Config, name, settings string) error {
	tool, about := receiver.TicketTool{}, false
	for setting := range strings.SplitSeq(settings, ",") {
		kind, value, timed := strings.Cut(setting, ":")
		if timed && kind != "ticket" {
			return fmt.Errorf("%q takes no value", kind)
		}
		switch kind {
		case "ticket":
			tool.Mode = receiver.TicketsAuto
			if cfg.Tickets.Mode == receiver.TicketsAlways {
				tool.Mode = receiver.TicketsAlways
			}
			if timed {
				var err error
				if tool.Patience, err = parsePatience(value); err != nil {
					return err
				}
			}
		case "noticket":
			tool.Mode = receiver.TicketsOff
		case "keep":
			tool.CancelLost = false
		case "cancel":
			tool.CancelLost = true
		default:
			support, err := taskSupport(kind)
			if err != nil {
				return fmt.Errorf("%w, ticket[:DURATION], noticket, keep or cancel", err)
			}
			cfg.Tools[name] = support
			continue
		}
		about = true
	}
	if about {
		if cfg.Tickets.ByName == nil {
			cfg.Tickets.ByName = map[string]receiver.TicketTool{}
		}
		cfg.Tickets.ByName[name] = tool
	}
	return nil
}
