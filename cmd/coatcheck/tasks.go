package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// tasksCmd is "coatcheck tasks".
type tasksCmd struct {
	List   tasksListCmd   `cmd:"" help:"List your tasks, newest first."`
	Get    tasksGetCmd    `cmd:"" help:"Show what a task is at."`
	Result tasksResultCmd `cmd:"" help:"Print a task's result, waiting for it if need be."`
	Watch  tasksWatchCmd  `cmd:"" help:"Show a task's status until it ends, then print its result."`
	Cancel tasksCancelCmd `cmd:"" help:"Cancel a task."`
}

// listing is what all commands on tasks have in common.
type listing struct {
	serverFlag
	JSON bool `name:"json" help:"Print the server's answer as it came."`
}

// selection is the SERVER and ID of a command on one task.
type selection struct {
	Server string `arg:"" help:"URL of the server. Left out with --stdio."`
	ID     string `arg:"" optional:"" name:"id" help:"The task's id."`
	listing
}

// Help implements kong.HelpProvider.
func (*selection) Help() string { return exitCodes[1:] }

// Validate implements kong.Validatable.
func (s *selection) Validate() error {
	if s.Stdio != "" && s.ID != "" {
		return fmt.Errorf("unexpected argument %s: with --stdio SERVER is left out", s.ID)
	}
	if s.Stdio == "" && s.ID == "" {
		return errors.New("the task's id is missing")
	}
	return nil
}

// parts tells the positional arguments apart: with --stdio the first is the id.
func (s *selection) parts() (to target, id string) {
	if s.Stdio != "" {
		return target{stdio: s.Stdio}, s.Server
	}
	return s.at(s.Server), s.ID
}

// open connects to the server. The context ends with SIGINT or SIGTERM.
func (s *selection) open(std streams, as peer, show *display) (context.Context, ticket, func(), error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	to, id := s.parts()
	r, err := dial(ctx, to, std, show, as)
	if err != nil {
		stop()
		return nil, ticket{}, nil, err
	}
	return ctx, ticket{r, id}, func() { r.close(); stop() }, nil
}

type tasksGetCmd struct{ selection }

// Run prints the task.
func (c *tasksGetCmd) Run(std streams) error {
	ctx, t, done, err := c.open(std, peer{}, newDisplay(std.err))
	if err != nil {
		return err
	}
	defer done()
	state, err := t.get(ctx)
	if err != nil {
		return err
	}
	printTask(std, state, c.JSON)
	return nil
}

// waiting is what the commands that wait for a task have in common.
type waiting struct {
	selection
	answerFlags
	samplingFlags
}

// Help implements kong.HelpProvider.
func (*waiting) Help() string { return samplingHelp[1:] + exitCodes }

type tasksResultCmd struct{ waiting }

// Run prints the task's result.
func (c *tasksResultCmd) Run(std streams) error { return c.wait(std, true) }

type tasksWatchCmd struct{ waiting }

// Run shows the task's status until it ends, then prints its result.
func (c *tasksWatchCmd) Run(std streams) error { return c.wait(std, false) }

// wait answers the task's questions until it is terminal, and prints its result.
func (w *waiting) wait(std streams, quiet bool) error {
	script, err := w.script(std.in)
	if err != nil {
		return err
	}
	show := newDisplay(std.err)
	progress := newStatus(show)
	progress.quiet = quiet
	asker := newAsker(show, progress)
	as := asker.peer()
	if err := w.host(context.Background(), show, &as); err != nil {
		return err
	}
	ctx, t, done, err := w.open(std, as, show)
	if err != nil {
		return err
	}
	defer done()
	progress.of(t.id, true)
	attached, err := t.attach(ctx)
	if err != nil {
		return err
	}
	a := attendance{remote: t.remote, ticket: t, std: std, status: progress, asker: asker, script: script, raw: w.JSON}
	defer a.present()()
	return a.attend(context.WithoutCancel(ctx), attached)
}

type tasksCancelCmd struct{ selection }

// Run cancels the task.
func (c *tasksCancelCmd) Run(std streams) error {
	ctx, t, done, err := c.open(std, peer{}, newDisplay(std.err))
	if err != nil {
		return err
	}
	defer done()
	state, err := t.cancel(ctx)
	if err != nil {
		return err
	}
	printTask(std, state, c.JSON)
	return nil
}

type tasksListCmd struct {
	Server string `arg:"" optional:"" help:"URL of the server. Left out with --stdio."`
	listing
}

// Help implements kong.HelpProvider.
func (*tasksListCmd) Help() string {
	return `With --json all pages are printed as one answer.

A server that cannot tell its requestors apart has no list; a gateway of your own has one
with --single-user.`
}

// Validate implements kong.Validatable.
func (c *tasksListCmd) Validate() error {
	if (c.Server == "") == (c.Stdio == "") {
		return errors.New("give either SERVER or --stdio 'COMMAND ARGS'")
	}
	return nil
}

// Run prints the tasks of all pages.
func (c *tasksListCmd) Run(std streams) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	to := target{stdio: c.Stdio}
	if c.Stdio == "" {
		to = c.at(c.Server)
	}
	r, err := dial(ctx, to, std, newDisplay(std.err), peer{})
	if err != nil {
		return err
	}
	defer r.close()
	all, err := request(ctx, r, func(ctx context.Context, s *client.Session) (all []*client.State, _ error) {
		for state, err := range s.List(ctx) {
			if err != nil {
				return nil, err
			}
			all = append(all, state)
		}
		return all, nil
	})
	answer, answered := errors.AsType[*jsonrpc.Error](err)
	switch {
	case errors.Is(err, client.ErrUnsupported):
		return fmt.Errorf("the server at %s does not list tasks; a coatcheck gateway does with --auth or --single-user", r.target)
	case answered:
		return fmt.Errorf("%s: %s (code %d)", protocol.MethodTasksList, oneLine(answer.Message), answer.Code)
	case err != nil:
		return err
	}
	if c.JSON {
		raw := make([]json.RawMessage, len(all))
		for i, state := range all {
			raw[i] = state.Raw
		}
		fmt.Fprintf(std.out, "%s\n", protocol.Marshal(map[string]any{"tasks": raw}))
		return nil
	}
	return printTasks(std.out, all)
}

// printTasks prints a table of tasks.
func printTasks(w io.Writer, all []*client.State) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tSTATUS\tCREATED\tTTL\tMESSAGE")
	for _, t := range all {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", oneLine(t.ID), t.Status, t.CreatedAt.Format(time.RFC3339), lifetime(t), oneLine(t.Message))
	}
	return table.Flush()
}

// printTask prints one task.
func printTask(std streams, t *client.State, asJSON bool) {
	if asJSON {
		fmt.Fprintf(std.out, "%s\n", t.Raw)
		return
	}
	fmt.Fprintf(std.out, "id       %s\nstatus   %s\n", oneLine(t.ID), t.Status)
	if t.Message != "" {
		fmt.Fprintf(std.out, "message  %s\n", oneLine(t.Message))
	}
	fmt.Fprintf(std.out, "created  %s\nupdated  %s\nttl      %s\n",
		t.CreatedAt.Format(time.RFC3339), t.UpdatedAt.Format(time.RFC3339), lifetime(t))
}

// lifetime is a task's ttl in words.
func lifetime(t *client.State) string {
	if t.TTL == 0 {
		return "unlimited"
	}
	return t.TTL.String()
}
