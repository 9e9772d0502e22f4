// Command coatcheck makes slow MCP tool calls durable: it puts tasks in front of any MCP
// server, and calls tools as tasks. See coatcheck --help.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"
)

// cli is the command line.
type cli struct {
	Gateway       gatewayCmd       `cmd:"" help:"Serve an MCP server with its tools as durable tasks."`
	Call          callCmd          `cmd:"" help:"Call a tool, as a task where the tool allows it."`
	Tasks         tasksCmd         `cmd:"" help:"List, read, await and cancel tasks."`
	Token         tokenCmd         `cmd:"" help:"Make a token for gateway --auth tokens."`
	ExampleServer exampleServerCmd `cmd:"" name:"example-server" help:"Serve an example MCP server, which knows nothing of tasks."`
	Demo          demoCmd          `cmd:"" help:"Show a task that survives kill -9 of its server."`
}

// streams are what a command reads and writes.
type streams struct {
	in       *os.File
	out, err *os.File
}

func main() {
	os.Exit(run(os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}))
}

// run runs one command line and returns its exit code.
func run(args []string, std streams) int {
	var c cli
	c.Gateway.dashed = afterDashes(args)
	parser, err := kong.New(&c,
		kong.Name("coatcheck"),
		kong.Description("Hand in a slow MCP call, get a ticket, pick the result up later, even after a crash."),
		kong.Writers(std.out, std.err),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.Bind(std),
	)
	if err != nil {
		return report(std.err, err)
	}
	command, err := parser.Parse(args)
	if err != nil {
		return report(std.err, fmt.Errorf("%w; see %s --help", err, commandOf(err)))
	}
	return report(std.err, command.Run())
}

// afterDashes returns how many arguments follow the first "--", or -1 without one.
func afterDashes(args []string) int {
	for i, arg := range args {
		if arg == "--" {
			return len(args) - i - 1
		}
	}
	return -1
}

// commandOf names the command that a command line was wrong for.
func commandOf(err error) string {
	name := "coatcheck"
	var wrong *kong.ParseError
	if !errors.As(err, &wrong) || wrong.Context == nil {
		return name
	}
	for _, step := range wrong.Context.Path {
		if step.Command != nil {
			name += " " + step.Command.Name
		}
	}
	return name
}

// report says what went wrong in one line and returns the exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return codeDone
	}
	var e *exitError
	if !errors.As(err, &e) {
		e = &exitError{codeOther, err}
	}
	if e.err != nil {
		fmt.Fprintln(w, "coatcheck:", strings.Join(strings.FieldsFunc(e.err.Error(), func(r rune) bool {
			return r == '\n' || r == '\r'
		}), "; "))
	}
	return e.code
}
