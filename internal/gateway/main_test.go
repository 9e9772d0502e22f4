package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/coatcheck/coatcheck/internal/exampleserver"
	"github.com/coatcheck/coatcheck/protocol"
)

// role, in the environment, makes this test binary another program.
const role = "COATCHECK_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "raw":
		rawServer()
		return
	case "example":
		_ = exampleserver.New().Run(context.Background(), &mcp.StdioTransport{}) // until its input ends
		return
	case "gateway":
		if err := gatewayProcess(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// rawServer is a stdio server written by somebody with other ideas: it answers every call
// with the very message it got, and does as some methods say first.
func rawServer() {
	in := bufio.NewReader(os.Stdin)
	say := func(format string, args ...any) { fmt.Fprintf(os.Stdout, format+"\n", args...) }
	heard := 0 // notifications and answers
	var last string
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimSpace(line)
		m, err := protocol.ParseMessage([]byte(line))
		if err != nil {
			os.Exit(3)
		}
		if !m.IsCall() {
			heard++
			last = line
			continue
		}
		switch m.Method {
		case "initialize":
			say(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"x":{"n":1.0}},"serverInfo":{"name":"raw","version":"1"},"pid":%d}}`, m.ID, os.Getpid())
		case "tools/list":
			say(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"x","inputSchema":{"type":"object"},"more":[1e2]}]}}`, m.ID)
		case "vendor/heard":
			say(`{"jsonrpc":"2.0","id":%s,"result":{"n":%d,"last":%s}}`, m.ID, heard, protocol.Marshal(last))
		case "vendor/ask":
			say(`{"jsonrpc":"2.0","id":"q1","method":"elicitation/create","params":{"message":"ü","odd":1.0}}`)
			answer, _ := in.ReadString('\n')
			say(`{"jsonrpc":"2.0","id":%s,"result":{"answer":%s}}`, m.ID, strings.TrimSpace(answer))
		case "vendor/notify":
			say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1.0,"odd":{}}}`, protocol.Get(protocol.Get(m.Params, "_meta"), "progressToken"))
			say(`{"jsonrpc":"2.0","method":"notifications/vendor","params":{"ü":1e2}}`)
			say(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
		case "vendor/die":
			fmt.Fprintln(os.Stderr, "dying")
			os.Exit(7)
		case "vendor/error":
			say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32050,"message":"ü","data":{"n":1.0}}}`, m.ID)
		default:
			say(`{"jsonrpc":"2.0","id":%s,"result":{"method":%s,"params":%s,"z":1.0,"a":1e2,"big":12345678901234567890}}`, m.ID, protocol.Marshal(m.Method), orNull(m.Params))
		}
	}
}

func orNull(raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return json.RawMessage("null")
	}
	return raw
}

// serve runs a gateway until the test ends and returns its URL.
func serve(t *testing.T, c Config) string {
	t.Helper()
	url, stop := start(t, c)
	t.Cleanup(stop)
	return url
}

// start runs a gateway until stop is called.
func start(t *testing.T, c Config) (url string, stop func()) {
	t.Helper()
	if len(c.Command) > 0 && (c.Command[0] == "raw" || c.Command[0] == "example") {
		t.Setenv(role, c.Command[0])
		c.Command = []string{os.Args[0]}
	}
	if c.Store == "" {
		c.Store = "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")
	}
	if c.Support == "" {
		c.Support = protocol.Optional
	}
	c.Listen = "127.0.0.1:0"
	ready := make(chan string, 1)
	c.Ready = func(address string) {
		scheme := "http://"
		if c.Guard.TLS != nil {
			scheme = "https://"
		}
		ready <- scheme + address + "/mcp"
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, c) }()
	select {
	case url = <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	return url, sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// client is an HTTP client at the level of raw messages.
type client struct {
	t       *testing.T
	url     string
	session string
	web     *http.Client
}

func newClient(t *testing.T, url string) *client {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	c := &client{t: t, url: url, web: &http.Client{Transport: transport}}
	resp := c.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	if resp.status != http.StatusOK {
		t.Fatalf("initialize: %d %s", resp.status, resp.body)
	}
	c.session = resp.header.Get("Mcp-Session-Id")
	c.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

type response struct {
	status int
	header http.Header
	body   string
	events []string // the data of each
}

func (r response) last() string {
	if len(r.events) > 0 {
		return r.events[len(r.events)-1]
	}
	return r.body
}

func (c *client) request(method, body string) *http.Request {
	req, err := http.NewRequest(method, c.url, bytes.NewBufferString(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if c.session != "" {
		req.Header.Set("Mcp-Session-Id", c.session)
		req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	}
	return req
}

func (c *client) do(method, body string) response {
	c.t.Helper()
	resp, err := c.web.Do(c.request(method, body))
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	r := response{status: resp.StatusCode, header: resp.Header, body: string(data)}
	for line := range strings.Lines(r.body) {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			r.events = append(r.events, strings.TrimSpace(data))
		}
	}
	return r
}

func (c *client) post(body string) response {
	c.t.Helper()
	return c.do(http.MethodPost, body)
}

// call returns the result and the error object of a call.
func (c *client) call(method, params string) (result, fault json.RawMessage) {
	c.t.Helper()
	r := c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":%s}`, method, params))
	m, err := protocol.ParseMessage([]byte(r.last()))
	if err != nil {
		c.t.Fatalf("%s: %d %s: %v", method, r.status, r.body, err)
	}
	return m.Result, m.Error
}

func (c *client) create(params string) (id string) {
	c.t.Helper()
	result, fault := c.call("tools/call", params)
	id, _ = protocol.Unquote(protocol.Get(protocol.Get(result, "task"), "taskId"))
	if id == "" {
		c.t.Fatalf("create %s: %s %s", params, result, fault)
	}
	return id
}

func ref(id string) string { return `{"taskId":"` + id + `"}` }

// eventually polls until ok, for what happens in another process or on a timer of its own.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("never: ", what)
		}
	}
}
