package main

import (
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/gateway"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/protocol"
)

// parseGateway parses a command line of "coatcheck gateway".
func parseGateway(t *testing.T, args ...string) (gateway.Config, error) {
	t.Helper()
	args = append([]string{"gateway"}, args...)
	var c cli
	c.Gateway.dashed = afterDashes(args)
	parser, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(args); err != nil {
		return gateway.Config{}, err
	}
	return c.Gateway.config()
}

func TestGatewayFlags(t *testing.T) {
	base := gateway.Config{
		URL: "http://h/mcp", Listen: "127.0.0.1:8080", Store: "sqlite:coatcheck.db",
		Support: protocol.Optional, Tools: map[string]protocol.TaskSupport{},
		DefaultTTL: time.Hour, MaxTTL: 24 * time.Hour, MinRetention: 10 * time.Minute,
		PollInterval: time.Second, Processes: 4, SessionIdle: 30 * time.Minute,
		Guard:   gateway.Guard{Connections: 4096, Sessions: 64},
		Tickets: receiver.Tickets{Mode: receiver.TicketsAuto, Patience: 20 * time.Second, Heartbeat: 10 * time.Second, Reattach: 10 * time.Minute},
	}
	for _, c := range []struct {
		args   []string
		change func(*gateway.Config)
	}{
		{[]string{"http://h/mcp"}, func(*gateway.Config) {}},
		{[]string{"--stdio", "--principal", "me", "--store=memory:", "--", "npx", "-y", "server", "--", "--stdio"}, func(c *gateway.Config) {
			c.URL, c.Command = "", []string{"npx", "-y", "server", "--", "--stdio"}
			c.Stdio, c.Listen, c.Principal, c.Store = &mcp.StdioTransport{}, "", "me", "memory:"
		}},
		{[]string{"http://h/mcp", "--support=forbidden", "--tool", "a=optional", "--tool", "b=required", "--listen", ":0"}, func(c *gateway.Config) {
			c.Support, c.Listen = protocol.Forbidden, ":0"
			c.Tools = map[string]protocol.TaskSupport{"a": protocol.Optional, "b": protocol.Required}
		}},
		{[]string{"--default-ttl=2m", "--max-ttl=3m", "--min-retention=1m", "--poll-interval=50ms", "--processes=1", "--session-idle=1h", "--single-user", "http://h/mcp"}, func(c *gateway.Config) {
			c.DefaultTTL, c.MaxTTL, c.MinRetention = 2*time.Minute, 3*time.Minute, time.Minute
			c.PollInterval, c.Processes, c.SessionIdle, c.SingleUser = 50*time.Millisecond, 1, time.Hour, true
		}},
		{[]string{"--metrics=127.0.0.1:0", "--listen=127.0.0.1:0", "http://h/mcp"}, func(c *gateway.Config) {
			c.Listen, c.Metrics = "127.0.0.1:0", "127.0.0.1:0"
		}},
		// A shorter maximum shortens the defaults.
		{[]string{"--max-ttl=1m", "http://h/mcp"}, func(c *gateway.Config) {
			c.DefaultTTL, c.MaxTTL, c.MinRetention = time.Minute, time.Minute, time.Minute
		}},
	} {
		want := base
		c.change(&want)
		got, err := parseGateway(t, c.args...)
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.args, diff)
		}
	}
}

func TestGatewayRefusesFlags(t *testing.T) {
	for line, says := range map[string]string{
		"":                                          "give the URL of the server, or, after --, the command",
		"--":                                        "give the URL of the server, or, after --, the command",
		"npx some-server":                           "a command stands after --",
		"ftp://h/x":                                 "no http or https URL",
		"http://h/mcp more":                         "unexpected argument more",
		"http://h/mcp -- npx x":                     "not both",
		"--stdio --listen :0 http://h/":             "--stdio and --listen exclude each other",
		"--principal me http://h/":                  "add --stdio or --single-user",
		"--store x.db http://h/":                    "write memory: or sqlite:FILE",
		"--store sqlite: http://h/":                 "write memory: or sqlite:FILE",
		"--store postgres:x http://h/":              "write memory: or sqlite:FILE",
		"--support maybe http://h/":                 `--support: "maybe" is not optional, required or forbidden`,
		"--tool a=maybe http://h/":                  `--tool a: "maybe" is not`,
		"--tool a http://h/":                        "--tool",
		"--default-ttl 0s http://h/":                "--default-ttl must be at least 1ms",
		"--default-ttl 25h http://h/":               "--default-ttl 25h0m0s is above --max-ttl 24h0m0s",
		"--max-ttl 0s http://h/":                    "must be at least 1ms",
		"--max-ttl=-1h http://h/":                   "must be at least 1ms",
		"--max-ttl 5m --min-retention 6m http://h/": "--min-retention 6m0s is above --max-ttl 5m0s",
		"--min-retention 0s http://h/":              "--min-retention must be at least 1ms",
		"--poll-interval 0s http://h/":              "--poll-interval must be at least 1ms",
		"--session-idle 0s http://h/":               "--session-idle must be at least 1ms",
		"--processes 0 http://h/":                   "--processes must be at least 1",
		"--poll-interval 5 http://h/":               "--poll-interval",
		"--audit-task-ids http://h/":                "--audit-task-ids says what is written: add --audit FILE",
		"--audit-content http://h/":                 "--audit-content says what is written: add --audit FILE",
		"--audit-thin http://h/":                    "--audit-thin says what is written: add --audit FILE",
		"--audit a --audit-max-size 0 http://h/":    "--audit-max-size must be at least 1",
		"--audit a --audit-keep 0 http://h/":        "--audit-keep must be at least 1",
		"--metrics 9464 http://h/":                  `--metrics "9464" is not HOST:PORT`,
		"--metrics 127.0.0.1:8080 http://h/":        "ports of their own",
		"--frobnicate http://h/":                    "unknown flag --frobnicate",
	} {
		if got, err := parseGateway(t, strings.Fields(line)...); err == nil {
			t.Errorf("%s: %+v, want an error that says %q", line, got, says)
		} else if !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %q, want an error that says %q", line, err, says)
		}
	}
}
