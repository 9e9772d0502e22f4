package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/internal/authn"
	"github.com/coatcheck/coatcheck/protocol"
)

// serverFlag is how a command is told of a server that is no URL.
type serverFlag struct {
	Stdio string `placeholder:"'COMMAND ARGS'" help:"Start this command and speak with it over its stdin and stdout; SERVER is then left out."`
	// TokenFile is no token itself: a command line is seen by all users of a machine.
	TokenFile string `placeholder:"FILE" help:"The bearer token to show SERVER, alone in a file. Default: the environment's COATCHECK_TOKEN, if there is one."`
}

// at is the server with a URL.
func (f serverFlag) at(url string) target { return target{url: url, token: f.token} }

// token returns the bearer token, "" if there is none.
func (f serverFlag) token() (string, error) {
	if f.TokenFile == "" {
		return strings.TrimSpace(os.Getenv("COATCHECK_TOKEN")), nil
	}
	token, err := authn.ReadSecret(f.TokenFile).Get()
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	return token, nil
}

// callCmd is "coatcheck call".
type callCmd struct {
	Server    string   `arg:"" help:"URL of the server. Left out with --stdio."`
	Tool      string   `arg:"" optional:"" help:"Name of the tool."`
	Arguments []string `arg:"" optional:"" name:"key=value" help:"Arguments of the tool: key=value for a text, key:=json for anything else."`

	serverFlag
	answerFlags
	samplingFlags
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
` + samplingHelp + `
  coatcheck call http://127.0.0.1:8080/mcp slow_compute seconds:=5 label=mine
  coatcheck call --stdio 'npx some-server' tool key=value
  coatcheck call URL ask_model prompt=hello --host-sampling 'my-model --quiet'
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
		return c.at(c.Server), c.Tool, c.Arguments
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
	as := asker.peer()
	if err := c.host(ctx, show, &as); err != nil {
		return err
	}
	r, err := dial(ctx, to, std, show, as)
	if err != nil {
		return err
	}
	defer r.close()
	a := &attendance{remote: r, std: std, status: progress, asker: asker, script: answers, raw: c.JSON, mayCancel: true}

	opts := &client.CallOptions{}
	if c.TTL != nil {
		opts.TTL = *c.TTL
	}
	switch {
	case c.Plain:
		opts.Mode = client.Plain
	case c.Detach:
		opts.Mode = client.Always
	}
	defer a.present()()
	stop() // from here on signals are the attendance's
	var t *client.Task
	err = a.during(func(ctx context.Context) (err error) {
		t, err = r.current().CallTool(ctx, &mcp.CallToolParams{
			Meta: mcp.Meta{"progressToken": progressToken}, Name: tool, Arguments: arguments,
		}, opts)
		return err
	})
	switch {
	case errors.Is(err, errToCancel):
		return fmt.Errorf("left before the server answered; if it made a task, that is in: coatcheck tasks list %s", r.target)
	case errors.Is(err, client.ErrUnsupported):
		return fmt.Errorf("%s cannot be called as a task at %s; leave out --detach", tool, r.target)
	case err != nil:
		return c.refused(std, err)
	case t.ID() == "": // it is called plainly, or the server runs it normally (CAP-5)
		return c.plainly(a, t)
	}
	a.ticket = ticket{remote: r, id: t.ID()}
	if c.Detach {
		if c.JSON {
			fmt.Fprintf(std.out, "%s\n", t.Created())
		} else {
			fmt.Fprintln(std.out, a.ticket.id)
		}
		a.ticket.sayHowToCollect(std)
		return nil
	}
	progress.of(a.ticket.id, false)
	show.line("task %s", oneLine(a.ticket.id))
	return a.attend(context.Background(), t)
}

// plainly waits for a call that is no task.
func (c *callCmd) plainly(a *attendance, t *client.Task) error {
	var result json.RawMessage
	err := a.during(func(ctx context.Context) (err error) {
		result, err = t.WaitRaw(ctx)
		return err
	})
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
	answer, answered := errors.AsType[*jsonrpc.Error](err)
	switch {
	case errors.As(err, new(*unanswered)), errors.Is(err, client.ErrProtocol):
		return err
	case answered:
		if wait, busy := client.RetryAfter(answer); busy && !c.JSON {
			return exitf(codeOther, "busy, try again in %d s", (wait+time.Second-1)/time.Second)
		}
		code := codeFailed
		switch answer.Code { // what says that the call was wrong
		case protocol.CodeParseError, protocol.CodeInvalidRequest, protocol.CodeMethodNotFound, protocol.CodeInvalidParams,
			protocol.CodeLimitExceeded:
			code = codeOther
		}
		return printError(std, code, answer, c.JSON)
	}
	return fmt.Errorf("the connection was lost before the call was answered: %w", err)
}
