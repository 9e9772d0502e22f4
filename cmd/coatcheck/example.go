package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/exampleserver"
)

// exampleServerCmd is "coatcheck example-server".
type exampleServerCmd struct {
	HTTP string `name:"http" placeholder:"ADDR" help:"Serve over Streamable HTTP on this address, at /mcp, instead of over stdin and stdout."`
}

// Help implements kong.HelpProvider.
func (*exampleServerCmd) Help() string {
	return `The tools are greet{name}, slow_compute{seconds,label}, failing_job, protocol_error_job,
panicking_job and big_result{kilobytes}. panicking_job ends the server, as a panic does.
confirm_delete{filename} asks one question, multi_input two at once, ask_model{prompt} asks
the client's model, and chatty{messages} reports progress and logs.`
}

// Run serves until stdin ends, or until SIGINT or SIGTERM.
func (c *exampleServerCmd) Run(std streams) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	server := exampleserver.New()
	if c.HTTP != "" {
		return serveHTTP(ctx, server, c.HTTP, std)
	}
	err := server.Run(ctx, &mcp.StdioTransport{})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func serveHTTP(ctx context.Context, server *mcp.Server, address string, std streams) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return listenError(address, "--http", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stopped := context.AfterFunc(ctx, func() { srv.Close() })
	defer stopped()
	ready(std.err, "http", listener.Addr().String())
	if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// listenError says what to do about an address that cannot be listened on.
func listenError(address, flag string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("cannot listen on %s: the port is in use; choose another with %s (port 0 takes a free one)", address, flag)
	}
	return fmt.Errorf("cannot listen on %s: %w; give %s as HOST:PORT", address, err, flag)
}
