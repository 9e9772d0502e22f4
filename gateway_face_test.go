package coatcheck_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/gateway"
	"github.com/coatcheck/coatcheck/protocol"
)

// plainServer, in the environment, makes this test binary a server on stdin and stdout that
// knows nothing of tasks.
const plainServer = "COATCHECK_TEST_PLAIN"

// allFaces are faces and gateways in front of the same server, run as a command and at a URL.
var allFaces = append(slices.Clip(faces), face{"gateway to a command", openGatewayToCommand}, face{"gateway to a URL", openGatewayToURL})

// onAllFaces runs a test over HTTP, stdio, in-process and through gateways.
func onAllFaces(t *testing.T, s settings, test func(t *testing.T, connect func(principal string) *peer)) {
	onFaces(t, allFaces, s, test)
}

func openGatewayToCommand(t *testing.T, s settings) func(string) *peer {
	t.Setenv(plainServer, "1")
	return openGateway(t, s, gateway.Config{Command: []string{os.Args[0]}})
}

func openGatewayToURL(t *testing.T, s settings) func(string) *peer {
	return openGateway(t, s, gateway.Config{URL: openPlainURL(t)})
}

// openPlainURL serves what knows nothing of tasks.
func openPlainURL(t *testing.T) string {
	server := newServer()
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
		for session := range server.Sessions() {
			_ = session.Close()
		}
	})
	return web.URL
}

func openGateway(t *testing.T, s settings, c gateway.Config) func(string) *peer {
	return connectHTTP(t, s, openGatewayURL(t, s, c))
}

func openGatewayURL(t *testing.T, s settings, c gateway.Config) string {
	ready := make(chan string, 1)
	c.Listen, c.Store, c.Support = "127.0.0.1:0", s.Database, protocol.Optional
	c.DefaultTTL, c.MaxTTL, c.MinRetention = time.Hour, 24*time.Hour, time.Minute
	c.PushInput, c.NoStatusNotifications, c.Processes = s.PushInput, s.NoStatus, 2
	c.Tools = map[string]protocol.TaskSupport{"hold": protocol.Required, "must": protocol.Required}
	c.Limits, c.Tickets = s.policy(), s.Tickets
	c.Ready = func(address string) { ready <- "http://" + address + "/mcp" }
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- gateway.Serve(ctx, c) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error("gateway:", err)
		}
	})
	select {
	case url := <-ready:
		return url
	case err := <-served:
		served <- nil
		t.Fatal("gateway:", err)
		return ""
	}
}
