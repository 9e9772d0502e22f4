package main

import (
	"errors"
	"fmt"
	"io"
)

// plain compares a plain call of a fast tool, by a client that knows nothing of tasks: as it passes
// with no tickets, with tickets, which take a call only when it takes long, and with every call
// run as a task from the start.
func (b *bench) plain(out io.Writer) error {
	call := func(c *client, _, _ int) error { return c.plain() }
	sdk, err := b.other("sdk")
	if err != nil {
		return err
	}
	for _, at := range []struct {
		name string
		args []string
	}{{"the library", []string{"sdk"}}, {"a gateway to a URL", []string{"gateway", "http://" + sdk.address + "/mcp"}}} {
		off, err1 := b.coatcheck("off-"+at.args[0], at.args...)
		auto, err2 := b.coatcheck("auto-"+at.args[0], append([]string{"-tickets", "auto"}, at.args...)...)
		durable, err3 := b.coatcheck("durable-"+at.args[0], append([]string{"-tickets", "auto", "-required"}, at.args...)...)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		t := []*target{
			{name: "SDK's handler, without Coatcheck", process: sdk, op: call},
			{name: "tickets off", process: off, op: call},
			{name: "tickets auto", process: auto, op: call},
			{name: "tickets, a task from the start", process: durable, op: call},
		}
		if err := alternate(b.settings, t...); err != nil {
			return err
		}
		show(out, "a plain call of a fast tool, through "+at.name, t...)
		b.aim(fmt.Sprintf("plain call with tickets, through %s, by without", at.name), 0.8, t[2], t[1])
		b.aim(fmt.Sprintf("plain call as a task from the start, through %s, by without", at.name), 0.8, t[3], t[1])
	}
	return nil
}
