package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
)

// demoCmd is "coatcheck demo".
type demoCmd struct {
	Once  bool   `help:"Leave when all has been shown, instead of staying up."`
	Store string `placeholder:"FILE" help:"Keep the tasks in this file. Default: a temporary one."`
}

// demo is a running demonstration.
type demo struct {
	std     streams
	self    string // this program
	store   string
	gateway *child // nil while none runs
}

// Run shows the demonstration.
func (c *demoCmd) Run(std streams) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	d := &demo{std: std, self: self, store: c.Store}
	if d.store == "" {
		dir, err := os.MkdirTemp("", "coatcheck-demo")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		d.store = filepath.Join(dir, "tasks.db")
	}
	defer d.stop()
	id, err := d.show(ctx)
	if err != nil {
		return err
	}
	d.sayWhatNext(id, c.Once)
	if c.Once {
		return nil
	}
	d.say("It stays up until you press Ctrl-C.")
	select {
	case <-ctx.Done():
		return nil
	case <-d.gateway.exited:
		return errors.New("demo: the gateway ended by itself")
	}
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.std.out, format+"\n", args...) }

// show runs a slow call, kills the gateway, and finds the result again.
func (d *demo) show(ctx context.Context) (id string, err error) {
	d.say("1. A gateway starts in front of an MCP server that knows nothing of tasks.")
	d.say("   Tasks are kept in %s", d.store)
	if err := d.start(ctx); err != nil {
		return "", err
	}
	d.say("   It listens on %s", d.gateway.url)
	d.say("2. The tool slow_compute is called as a task: the answer is a ticket, at once.")
	id, before, err := d.run(ctx)
	if err != nil {
		return "", fmt.Errorf("demo: the call failed: %w", err)
	}
	d.say("   Its result: %s", oneLine(resultText(before)))
	d.say("3. The gateway is killed with SIGKILL (process %d), as a crash would.", d.gateway.cmd.Process.Pid)
	d.gateway.kill()
	d.gateway = nil
	d.say("4. A new gateway starts on the same store.")
	if err := d.start(ctx); err != nil {
		return "", err
	}
	d.say("   It listens on %s (process %d)", d.gateway.url, d.gateway.cmd.Process.Pid)
	d.say("5. The ticket is handed in again.")
	after, err := d.fetch(ctx, id)
	if err != nil {
		return "", fmt.Errorf("demo: the result is not there after the restart: %w", err)
	}
	if !bytes.Equal(before, after) {
		return "", fmt.Errorf("demo: the result is another after the restart: %s, before it was %s", after, before)
	}
	d.say("   The same %d bytes: %s", len(after), oneLine(resultText(after)))
	return id, nil
}

// start starts a gateway on the demo's store.
func (d *demo) start(ctx context.Context) error {
	var err error
	d.gateway, err = startChild(ctx, d.std.err, d.self, "gateway", "--listen", "127.0.0.1:0", "--single-user",
		"--poll-interval", "250ms", "--store", "sqlite:"+d.store, "--", d.self, "example-server")
	if err != nil {
		return fmt.Errorf("demo: the gateway did not start: %w", err)
	}
	return nil
}

func (d *demo) stop() {
	if d.gateway != nil {
		d.gateway.stop()
	}
}

// run calls slow_compute as a task and returns the task's id and result.
func (d *demo) run(ctx context.Context) (id string, result json.RawMessage, err error) {
	show := newDisplay(d.std.out)
	show.indent = "   "
	defer show.end()
	progress := newStatus(show)
	r, err := dial(ctx, target{url: d.gateway.url}, d.std, show, peer{notified: progress.notified})
	if err != nil {
		return "", nil, err
	}
	defer r.close()
	t, err := r.current().CallTool(ctx, &mcp.CallToolParams{
		Meta: mcp.Meta{"progressToken": progressToken}, Name: "slow_compute", Arguments: map[string]any{"seconds": 3, "label": "demo"},
	}, &client.CallOptions{Mode: client.Always, TTL: time.Hour})
	if err != nil {
		return "", nil, err
	}
	show.line("ticket %s", t.ID())
	e := r.follow(ctx, t, progress.polled)
	if e.err == nil && e.status != client.Completed {
		e.err = fmt.Errorf("it is %s: %s", e.status, oneLine(resultText(e.result)))
	}
	return t.ID(), e.result, e.err
}

// fetch returns a task's result over a new session.
func (d *demo) fetch(ctx context.Context, id string) (json.RawMessage, error) {
	r, err := dial(ctx, target{url: d.gateway.url}, d.std, newDisplay(d.std.err), peer{})
	if err != nil {
		return nil, err
	}
	defer r.close()
	t, err := ticket{r, id}.attach(ctx)
	if err != nil {
		return nil, err
	}
	return t.WaitRaw(ctx)
}

func (d *demo) sayWhatNext(id string, once bool) {
	when := "Try it, while this runs,"
	if once {
		when = "Without --once the gateway stays up to be tried,"
	}
	self := quote(os.Args[0])
	if strings.Contains(d.self, "go-build") {
		self = "go run ./cmd/coatcheck"
	}
	url := d.gateway.url
	d.say(`
What this showed: the call got a ticket, its result went to disk before anyone was told of it,
and it outlived the death of the server's process. The server behind it was not changed.

%[4]s at %[1]s
  %[2]s call %[1]s slow_compute seconds:=5 label=mine
  %[2]s call --detach %[1]s slow_compute seconds:=30
  %[2]s tasks list %[1]s
  %[2]s tasks result %[1]s %[3]s

Or with curl:
  post() { curl -s %[1]s -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -H "Mcp-Session-Id: $SESSION" "$@"; }
  SESSION=$(SESSION= post -D - -o /dev/null -d '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"curl","version":"1"}}}' | tr -d '\r' | awk 'tolower($1) == "mcp-session-id:" { print $2 }')
  post -d '{"jsonrpc":"2.0","method":"notifications/initialized"}'
  post -d '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"slow_compute","arguments":{"seconds":5,"label":"curl"},"task":{"ttl":600000}}}'
  post -d '{"jsonrpc":"2.0","id":3,"method":"tasks/result","params":{"taskId":"%[3]s"}}'
`, url, self, id, when)
}
