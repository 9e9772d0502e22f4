package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/gateway"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// gatewayCmd is "coatcheck gateway".
type gatewayCmd struct {
	URL     string   `arg:"" optional:"" name:"url" help:"URL of the server."`
	Command []string `arg:"" optional:"" help:"Or, after --, the command that starts it, with its arguments."`

	Listen       string            `placeholder:"127.0.0.1:8080" help:"Serve over Streamable HTTP on this address, at /mcp. Port 0 takes a free one."`
	Stdio        bool              `help:"Serve on stdin and stdout instead."`
	Store        string            `default:"sqlite:coatcheck.db" help:"Where tasks are kept: sqlite:FILE, or memory: (lost with the process)."`
	Support      string            `default:"optional" help:"Whether tools may run as tasks: optional, required or forbidden."`
	Tool         map[string]string `mapsep:"none" placeholder:"NAME=SETTING,…" help:"For one tool: optional, required or forbidden; ticket[:PATIENCE] or noticket; keep (default) or cancel, for work whose reply is lost. May be repeated."`
	DefaultTTL   *time.Duration    `name:"default-ttl" placeholder:"1h" help:"Lifetime of a task whose requestor asks for none; at most --max-ttl."`
	MaxTTL       time.Duration     `name:"max-ttl" default:"24h" help:"Longest lifetime of a task."`
	MinRetention *time.Duration    `placeholder:"10m" help:"How long a result is kept after the task ended, at least; at most --max-ttl."`
	PollInterval time.Duration     `default:"1s" help:"How often requestors are asked to poll."`
	Processes    int               `default:"4" help:"How many tasks work at a time, each in a process of the command. Those that wait for input do not count."`
	SessionIdle  time.Duration     `default:"30m" help:"When an HTTP session without requests ends, and with it its process of the command."`
	PushInput    bool              `help:"Send a tool's questions to the session that made the task at once, if it has a stream open. Otherwise they wait for its tasks/result."`
	Status       bool              `name:"status-notifications" negatable:"" default:"true" help:"Notify requestors of each change of a task's status."`
	AnyHost      bool              `help:"Let requests pass that reach a loopback address under a foreign host name, from a proxy on this machine."`
	SingleUser   bool              `help:"State that all who reach the HTTP endpoint are one requestor, who may list tasks."`
	Principal    string            `placeholder:"NAME" help:"Name of the one requestor of --stdio or --single-user. Default: the operating-system user."`
	auditFlags   `embed:""`
	limitFlags   `embed:""`
	ticketFlags  `embed:""`

	metricsFlags `embed:""`

	guardFlags `embed:""`
	authFlags  `embed:""`

	dashed int // how many positional arguments follow a "--"; -1 without one
}

// Help implements kong.HelpProvider.
func (*gatewayCmd) Help() string {
	return `In front of a server with a URL, or one that a command starts:

  coatcheck gateway http://127.0.0.1:3001/mcp
  coatcheck gateway --tool render=required -- npx some-server

The line "listening on http://HOST:PORT/mcp" (https with --tls-cert) on stderr says that it is ready. SIGTERM and
SIGINT let running tasks finish for a short while, record the rest as failed, and end it.`
}

// Defaults of what --max-ttl may shorten.
const (
	defaultTTL          = time.Hour
	defaultMinRetention = 10 * time.Minute
)

// Validate implements kong.Validatable.
func (c *gatewayCmd) Validate() error {
	_, err := c.config()
	return err
}

// config checks the flags.
func (c *gatewayCmd) config() (gateway.Config, error) {
	cfg := gateway.Config{
		Listen: c.Listen, Store: c.Store, MaxTTL: c.MaxTTL, PollInterval: c.PollInterval,
		Processes: c.Processes, SessionIdle: c.SessionIdle, SingleUser: c.SingleUser, AnyHost: c.AnyHost,
		PushInput: c.PushInput, NoStatusNotifications: !c.Status, Principal: task.Principal(c.Principal),
		Tools: make(map[string]protocol.TaskSupport, len(c.Tool)),
	}
	var err error
	if cfg.URL, cfg.Command, err = c.upstream(); err != nil {
		return cfg, err
	}
	if cfg.Limits, err = c.policy(); err != nil {
		return cfg, err
	}
	switch {
	case c.Stdio && c.Listen != "":
		return cfg, errors.New("--stdio and --listen exclude each other")
	case c.Stdio:
		cfg.Stdio = &mcp.StdioTransport{}
	case c.Listen == "":
		cfg.Listen = "127.0.0.1:8080"
	}
	if cfg.Guard, err = c.guard(c.Stdio); err != nil {
		return cfg, err
	}
	if cfg.Principal != "" && !c.Stdio && !cfg.SingleUser {
		return cfg, errors.New("--principal names the one requestor there is: add --stdio or --single-user")
	}
	if err := c.applyAuth(&cfg); err != nil {
		return cfg, err
	}
	if err := c.applyMetrics(&cfg); err != nil {
		return cfg, err
	}
	if err := checkStore("--store", cfg.Store); err != nil {
		return cfg, err
	}
	if cfg.Support, err = taskSupport(c.Support); err != nil {
		return cfg, fmt.Errorf("--support: %w", err)
	}
	if err := c.applyTickets(&cfg); err != nil {
		return cfg, err
	}
	for name, value := range c.Tool {
		if err = toolSetting(&cfg, name, value); err != nil {
			return cfg, fmt.Errorf("--tool %s: %w", name, err)
		}
	}
	if cfg.DefaultTTL, err = upTo(cfg.MaxTTL, c.DefaultTTL, defaultTTL, "--default-ttl"); err != nil {
		return cfg, err
	}
	if cfg.MinRetention, err = upTo(cfg.MaxTTL, c.MinRetention, defaultMinRetention, "--min-retention"); err != nil {
		return cfg, err
	}
	if cfg.Processes < 1 {
		return cfg, errors.New("--processes must be at least 1")
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"--max-ttl", cfg.MaxTTL}, {"--default-ttl", cfg.DefaultTTL}, {"--min-retention", cfg.MinRetention},
		{"--poll-interval", cfg.PollInterval}, {"--session-idle", cfg.SessionIdle},
	} {
		if d.value < time.Millisecond {
			return cfg, fmt.Errorf("%s must be at least 1ms", d.flag)
		}
	}
	return cfg, c.checkAudit()
}

// upTo is a flag's value, which must not be above the maximum; its default follows it.
func upTo(most time.Duration, value *time.Duration, otherwise time.Duration, flag string) (time.Duration, error) {
	switch {
	case value == nil:
		return min(otherwise, most), nil
	case *value > most:
		return 0, fmt.Errorf("%s %v is above --max-ttl %v", flag, *value, most)
	}
	return *value, nil
}

// upstream tells the URL from the command.
func (c *gatewayCmd) upstream() (address string, command []string, err error) {
	before := c.Command
	if c.URL != "" {
		before = append([]string{c.URL}, c.Command...)
	}
	if c.dashed >= 0 {
		at := max(0, len(before)-c.dashed)
		before, command = before[:at], before[at:]
	}
	switch {
	case len(before) > 0 && len(command) > 0:
		return "", nil, errors.New("give either a URL or, after --, a command; not both")
	case len(command) > 0:
		return "", command, nil
	case len(before) == 0:
		return "", nil, errors.New("give the URL of the server, or, after --, the command that starts it")
	}
	u, err := url.Parse(before[0])
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", nil, fmt.Errorf("%q is no http or https URL; a command stands after --", withoutSecrets(before[0]))
	}
	if len(before) > 1 {
		return "", nil, fmt.Errorf("unexpected argument %s: there is one URL", before[1])
	}
	return before[0], nil, nil
}

func taskSupport(value string) (protocol.TaskSupport, error) {
	switch s := protocol.TaskSupport(value); s {
	case protocol.Optional, protocol.Required, protocol.Forbidden:
		return s, nil
	}
	return "", fmt.Errorf("%q is not optional, required or forbidden", value)
}

// Run serves until SIGINT or SIGTERM, or until stdin ends.
func (c *gatewayCmd) Run(std streams) error {
	cfg, err := c.config()
	if err != nil {
		return err
	}
	if len(cfg.Command) > 0 {
		if _, err := exec.LookPath(cfg.Command[0]); err != nil {
			return commandError(cfg.Command[0], err)
		}
	}
	if err := checkFolder("--store", cfg.Store); err != nil {
		return err
	}
	cfg.Logger = slog.New(slog.NewTextHandler(std.err, nil))
	sink, auditLog, err := c.openAudit(cfg.Logger)
	if err != nil {
		return err
	}
	defer auditLog.Close()
	cfg.Audit = sink
	cfg.Ready = func(address string) { ready(std.err, c.scheme(), address) }
	cfg.MetricsReady = func(address string) { metricsReady(std.err, address) }
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err = gateway.Serve(ctx, cfg)
	var failed *net.OpError
	if errors.As(err, &failed) && failed.Op == "listen" {
		if errors.Is(err, gateway.ErrMetrics) {
			return listenError(cfg.Metrics, "--metrics", failed)
		}
		return listenError(cfg.Listen, "--listen", failed)
	}
	return tlsError(err)
}

// readyPrefix starts the line that says where a server listens.
const readyPrefix = "listening on "

func ready(w io.Writer, scheme, address string) {
	fmt.Fprintf(w, "%s%s://%s/mcp\n", readyPrefix, scheme, address)
}
