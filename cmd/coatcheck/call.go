package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/coatcheck/coatcheck/protocol"
)

// serverFlag is how a command is told of a server that is no URL.
type serverFlag struct {
	Stdio string `placeholder:"'COMMAND ARGS'" help:"Start this command and speak with it over its stdin and stdout; SERVER is then left out."`
}

// callCmd is "coatcheck call".
type callCmd struct {
	Server    string   `arg:"" help:"URL of the server. Left out with --stdio."`
	Tool      string   `arg:"" optional:"" help:"Name of the tool."`
	Arguments []string `arg:"" optional:"" name:"key=value" help:"Arguments of the tool: key=value for a text, key:=json for anything else."`

	serverFlag
	answerFlags
	TTL    *time.Duration `name:"ttl" placeholder:"10m" help:"How long the server shall keep the task, from its creation. The server decides if left out."`
	Plain  bool           `xor:"plain" help:"Call plainly, without a task."`
	Detach bool           `xor:"plain" help:"Print the task's id and leave it running."`
	JSON   bool           `name:"json" help:"Print the result as it came."`
}

// Help implements kong.HelpProvider.
func (*callCmd) Help() string {
	return `The tool is called as a task where the server offers that and the tool allows it, otherwise
plainly. The status goes to stderr, the result to stdout. Ctrl-C asks whether to cancel the
task or to leave it running; without a terminal on stdin it leaves.

When the server asks something (an elicitation), a form on the terminal asks you; Esc leaves
it. --answer and --decline answer instead. With neither and without a terminal the question
of a task is shown and left open, and that of a plain call is dismissed.

  coatcheck call http://127.0.0.1:8080/mcp slow_compute seconds:=5 label=mine
  coatcheck call --stdio 'npx some-server' tool key=value
` + exitCodes
}

// Validate implements kong.Validatable.
func (c *callCmd) Validate() error {
	_, tool, args := c.parts()
	if tool == "" {
		return errors.New("the name of the tool is missing")
	}
	if c.TTL != nil && *c.TTL < time.Millisecond {
		return errors.New("--ttl must be at least 1ms")
	}
	_, err := parseArguments(args)
	return err
}

// parts tells the positional arguments apart: with --stdio the first is the tool.
func (c *callCmd) parts() (to target, tool string, args []string) {
	if c.Stdio == "" {
		return target{url: c.Server}, c.Tool, c.Arguments
	}
	if c.Tool != "" {
		args = append([]string{c.Tool}, c.Arguments...)
	}
	return target{stdio: c.Stdio}, c.Server, args
}

// Run calls the tool.
func (c *callCmd) Run(std streams) error {
	to, tool, args := c.parts()
	arguments, err := parseArguments(args)
	if err != nil {
		return err
	}
	answers, err := c.script(std.in)
	if err != nil {
		return err
	}
	show := newDisplay(std.err)
	progress := newStatus(show)
	asker := newAsker(show, progress)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	r, err := dial(ctx, to, std, show, asker.peer())
	if err != nil {
		return err
	}
	defer r.close()
	a := &attendance{remote: r, std: std, status: progress, asker: asker, script: answers, raw: c.JSON, mayCancel: true}

	params := protocol.AppendString([]byte(`{"name":`), tool)
	params = append(append(params, `,"arguments":`...), arguments...)
	params = append(params, `,"_meta":{"progressToken":"`+progressToken+`"}}`...)
	asTask := false
	if !c.Plain {
		if asTask, err = r.allowsTask(ctx, tool); err != nil {
			return err
		}
	}
	if !asTask {
		if c.Detach {
			return fmt.Errorf("%s cannot be called as a task at %s; leave out --detach", tool, r.target)
		}
		defer a.present()()
		stop() // from here on signals are the attendance's
		return c.plainly(a, params)
	}
	ask := "{}"
	if c.TTL != nil {
		ask = `{"ttl":` + strconv.FormatInt(c.TTL.Milliseconds(), 10) + `}`
	}
	if params, err = protocol.Set(params, "task", []byte(ask)); err != nil {
		return err
	}
	defer a.present()()
	stop() // from here on signals are the attendance's
	answer, err := a.call(protocol.MethodToolsCall, params)
	switch {
	case errors.Is(err, errToCancel):
		return fmt.Errorf("left before the server answered; if it made a task, that is in: coatcheck tasks list %s", r.target)
	case err != nil:
		return c.refused(std, err)
	}
	state, ok, err := created(answer)
	if err != nil {
		return err
	}
	if !ok { // a server may run it normally (CAP-5)
		show.end()
		return printResult(std, answer, c.JSON)
	}
	a.ticket = ticket{remote: r, id: state.TaskID}
	if c.Detach {
		if c.JSON {
			fmt.Fprintf(std.out, "%s\n", answer)
		} else {
			fmt.Fprintln(std.out, a.ticket.id)
		}
		a.ticket.sayHowToCollect(std)
		return nil
	}
	progress.of(a.ticket.id, false)
	show.line("task %s", oneLine(a.ticket.id))
	return a.attend(context.Background(), state)
}

// plainly calls the tool without a task.
func (c *callCmd) plainly(a *attendance, params json.RawMessage) error {
	result, err := a.call(protocol.MethodToolsCall, params)
	a.remote.show.end()
	switch {
	case errors.Is(err, errToCancel):
		return exitf(codeCancelled, "cancelled")
	case err != nil:
		return c.refused(a.std, err)
	}
	return printResult(a.std, result, c.JSON)
}

// refused is the end of a call that was answered with an error, or not at all.
func (c *callCmd) refused(std streams, err error) error {
	var answer *protocol.Error
	switch {
	case errors.As(err, new(*unanswered)):
		return err
	case errors.As(err, &answer):
		code := codeFailed
		switch answer.Code { // what says that the call was wrong
		case protocol.CodeParseError, protocol.CodeInvalidRequest, protocol.CodeMethodNotFound, protocol.CodeInvalidParams:
			code = codeOther
		}
		return printError(std, code, answer, c.JSON)
	}
	return fmt.Errorf("the connection was lost before the call was answered: %w", err)
}

// allowsTask reports whether the tool may be called as a task (CAP-4, TOOL-1, TOOL-2).
func (r *remote) allowsTask(ctx context.Context, tool string) (bool, error) {
	if !r.declares("tasks", "requests", "tools", "call") {
		return false, nil
	}
	support := protocol.Forbidden
	err := r.pages(ctx, protocol.MethodToolsList, func(page json.RawMessage) (bool, error) {
		var tools struct {
			Tools []struct {
				Name      string
				Execution struct{ TaskSupport protocol.TaskSupport }
			}
		}
		if err := json.Unmarshal(page, &tools); err != nil {
			return false, fmt.Errorf("the server's answer to tools/list cannot be read: %w", err)
		}
		for _, t := range tools.Tools {
			if t.Name == tool {
				support = t.Execution.TaskSupport
				return false, nil
			}
		}
		return true, nil
	})
	return support == protocol.Optional || support == protocol.Required, err
}

// pages asks for all pages of a list until each says no more are wanted (LST-4).
func (r *remote) pages(ctx context.Context, method string, each func(page json.RawMessage) (more bool, err error)) error {
	params := json.RawMessage("{}")
	for seen := ""; ; {
		page, err := r.ask(ctx, pollTimeout, method, params)
		if err != nil {
			if answer, ok := errors.AsType[*protocol.Error](err); ok {
				return fmt.Errorf("%s: %s (code %d)", method, oneLine(answer.Message), answer.Code)
			}
			return err
		}
		more, err := each(page)
		if err != nil || !more {
			return err
		}
		cursor, ok := protocol.Unquote(protocol.Get(page, "nextCursor"))
		if !ok {
			return nil
		}
		if cursor == seen {
			return fmt.Errorf("%s: the server repeats a page", method)
		}
		seen = cursor
		params = append(protocol.AppendString([]byte(`{"cursor":`), cursor), '}')
	}
}

// created reads a CreateTaskResult; ok is false if the answer is none.
func created(answer json.RawMessage) (state protocol.Task, ok bool, err error) {
	raw := protocol.Get(answer, "task")
	if raw == nil {
		return state, false, nil
	}
	if err := json.Unmarshal(raw, &state); err != nil {
		return state, false, fmt.Errorf("the server's answer is no task: %w", err)
	}
	return state, true, nil
}
