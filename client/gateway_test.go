package client_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/internal/gateway"
	"github.com/coatcheck/coatcheck/protocol"
)

// The roles of the test binary in these tests.
const (
	requestorRole = "COATCHECK_TEST_REQUESTOR" // a server on stdio that requests tasks of its client
	gatewayRole   = "COATCHECK_TEST_GATEWAY"   // a gateway on stdio, with the configuration that it names
)

// requestor is a stdio server whose tool has the client sample as a task, polls that, and
// returns all that it was answered (FLOW-3).
func requestor() {
	in := bufio.NewReader(os.Stdin)
	say := func(format string, args ...any) { fmt.Fprintf(os.Stdout, format+"\n", args...) }
	next := 0
	ask := func(method, params string) (result, fault json.RawMessage) {
		next++
		say(`{"jsonrpc":"2.0","id":"q%d","method":%q,"params":%s}`, next, method, params)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				os.Exit(0)
			}
			if m, err := protocol.ParseMessage([]byte(line)); err == nil && m.IsResponse() && string(m.ID) == fmt.Sprintf(`"q%d"`, next) {
				return m.Result, m.Error
			}
		}
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		m, err := protocol.ParseMessage([]byte(line))
		if err != nil || !m.IsCall() {
			continue
		}
		switch m.Method {
		case "initialize":
			say(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"r","version":"1"}}}`, m.ID)
		case "tools/list":
			say(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"go","inputSchema":{"type":"object"}}]}}`, m.ID)
		case "tools/call":
			created, fault := ask("sampling/createMessage", sampling("hello", `,"task":{"ttl":60000}`))
			id, _ := protocol.Unquote(protocol.Get(protocol.Get(created, "task"), "taskId"))
			if id == "" {
				say(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%s}]}}`, m.ID, protocol.Marshal(fmt.Sprintf("not created: %s %s", created, fault)))
				continue
			}
			got, _ := ask("tasks/get", ref(id))
			result, _ := ask("tasks/result", ref(id))
			_, again := ask("tasks/cancel", ref(id))
			list, _ := ask("tasks/list", `{}`)
			said := fmt.Sprintf("%s | %s | %s | %t", protocol.Get(got, "taskId"), protocol.Get(result, "content"), protocol.Get(again, "message"), strings.Contains(string(list), id))
			say(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%s}],"structuredContent":{"id":%q}}}`, m.ID, protocol.Marshal(said), id)
		default:
			say(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
		}
	}
}

func gatewayConfig(store string) gateway.Config {
	return gateway.Config{
		Store: store, Support: protocol.Optional,
		DefaultTTL: time.Hour, MaxTTL: time.Hour, MinRetention: time.Minute, PollInterval: time.Second,
	}
}

// gatewayOnStdio runs a gateway as its host would start it.
func gatewayOnStdio(config string) error {
	var over struct {
		URL, Store string
		Command    []string
	}
	if err := json.Unmarshal([]byte(config), &over); err != nil {
		return err
	}
	c := gatewayConfig(over.Store)
	c.URL, c.Command, c.Stdio = over.URL, over.Command, &mcp.StdioTransport{}
	return gateway.Serve(context.Background(), c)
}

// startGateway runs a gateway over HTTP and returns its URL.
func startGateway(t *testing.T, c gateway.Config) string {
	t.Helper()
	ready := make(chan string, 1)
	c.Listen, c.Ready = "127.0.0.1:0", func(address string) { ready <- "http://" + address + "/mcp" }
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- gateway.Serve(ctx, c) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error("gateway:", err)
		}
	})
	return <-ready
}

// The gateway passes tasks that the client hosts through in both directions, ids untouched.
func TestHostedTasksThroughTheGateway(t *testing.T) {
	t.Setenv(requestorRole, "1")
	command := []string{os.Args[0]}
	config := func(t *testing.T) gateway.Config {
		return gatewayConfig("sqlite:" + filepath.Join(t.TempDir(), "tasks.db"))
	}
	toCommand := func(t *testing.T) gateway.Config {
		c := config(t)
		c.Command = command
		return c
	}
	toURL := func(t *testing.T) gateway.Config {
		c := config(t)
		c.URL = startGateway(t, toCommand(t)) // which makes a server with a URL of it
		return c
	}
	for name, c := range map[string]func(*testing.T) gateway.Config{"command": toCommand, "URL": toURL} {
		t.Run("http to "+name, func(t *testing.T) {
			hostThrough(t, &mcp.StreamableClientTransport{Endpoint: startGateway(t, c(t))})
		})
		t.Run("stdio to "+name, func(t *testing.T) {
			c := c(t)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), gatewayRole+"="+string(protocol.Marshal(map[string]any{"URL": c.URL, "Store": c.Store, "Command": c.Command})))
			cmd.Stderr = os.Stderr
			hostThrough(t, &mcp.CommandTransport{Command: cmd})
		})
	}
}

func hostThrough(t *testing.T, transport mcp.Transport) {
	t.Helper()
	host, err := client.OpenHost(t.Context(), &client.HostOptions{Sampling: client.Optional, Database: "memory:", Grace: -1})
	if err != nil {
		t.Fatal(err)
	}
	m := newModel()
	c := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ClientOptions{CreateMessageHandler: m.sample})
	s, err := client.Connect(t.Context(), c, transport, &client.Options{Host: host, Server: "r"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Close(context.Background()); err != nil {
			t.Error(err)
		}
		_ = s.Close()
	})
	for name, mode := range bothModes {
		task := call(t, s, "go", `{}`, &client.CallOptions{Mode: mode})
		raw, err := task.WaitRaw(t.Context())
		if err != nil {
			t.Fatal(name, err)
		}
		id, _ := protocol.Unquote(protocol.Get(protocol.Get(raw, "structuredContent"), "id"))
		wantText(t, task, `"`+id+`" | {"type":"text","text":"hello! \u003cé\u003e"} | "Cannot cancel task: already in terminal status 'completed'" | true`)
	}
}
