package wire_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/protocol"
)

// script is a client's side of a connection: it says what is in says, and keeps what it hears.
type script struct {
	says  chan jsonrpc.Message
	heard chan jsonrpc.Message
}

func (s *script) Connect(context.Context) (mcp.Connection, error) { return s, nil }
func (s *script) SessionID() string                               { return "id" }
func (s *script) Close() error                                    { return nil }

func (s *script) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case msg, ok := <-s.says:
		if !ok {
			return nil, io.EOF
		}
		return msg, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *script) Write(_ context.Context, msg jsonrpc.Message) error {
	s.heard <- msg
	return nil
}

func decode(t *testing.T, message string) jsonrpc.Message {
	t.Helper()
	msg, err := jsonrpc.DecodeMessage([]byte(message))
	if err != nil {
		t.Fatalf("%s: %v", message, err)
	}
	return msg
}

// What is not about tasks reaches the server, and its messages the client, as the very
// values the transport made of them.
func TestTransportPassesTheRest(t *testing.T) {
	r, _ := newReceiver(t)
	client := &script{says: make(chan jsonrpc.Message, 1), heard: make(chan jsonrpc.Message, 1)}
	conn, err := wire.Transport(client, r, wire.TransportOptions{Principal: "p"}).Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if conn.SessionID() != "id" {
		t.Errorf("session id %q", conn.SessionID())
	}
	exchange := func(call, answer string) jsonrpc.Message { // with tasks negotiated
		client.says <- decode(t, call)
		if _, err := conn.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := conn.Write(t.Context(), decode(t, answer)); err != nil {
			t.Fatal(err)
		}
		return <-client.heard
	}
	hello := exchange(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`,
		`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
	if got := hello.(*jsonrpc.Response).Result; protocol.Get(protocol.Get(got, "capabilities"), "tasks") == nil {
		t.Fatalf("initialize was answered %s", got)
	}
	passed := 0
	for _, message := range passing {
		if _, err := protocol.ParseMessage([]byte(message)); err != nil {
			continue // no message: the SDK's transport deals with it before the tap
		}
		msg, err := jsonrpc.DecodeMessage([]byte(message))
		if err != nil {
			continue // as well
		}
		passed++
		client.says <- msg
		got, err := conn.Read(t.Context())
		if err != nil || got != msg {
			t.Errorf("said %s, the server heard %v, %v", message, got, err)
		}
		if err := conn.Write(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
		if heard := <-client.heard; heard != msg {
			t.Errorf("the server said %s, the client heard %v", message, heard)
		}
	}
	if passed < 20 {
		t.Errorf("only %d messages passed", passed)
	}
	list := exchange(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`, `{"jsonrpc":"2.0","id":"l","result":{"tools":[{"name":"x","n":1e2}]}}`)
	if got := string(list.(*jsonrpc.Response).Result); got != `{"tools":[{"name":"x","n":1e2,"execution":{"taskSupport":"optional"}}]}` {
		t.Errorf("tools/list was answered %s", got)
	}
	failed := exchange(`{"jsonrpc":"2.0","id":"f","method":"tools/list"}`, `{"jsonrpc":"2.0","id":"f","error":{"code":-1,"message":"m"}}`)
	if got := failed.(*jsonrpc.Response).Error; got == nil {
		t.Error("an error became a result")
	}
	client.says <- decode(t, `{"jsonrpc":"2.0","id":"t","method":"tasks/get","params":{"taskId":"x"}}`)
	close(client.says)
	if _, err := conn.Read(t.Context()); err != io.EOF { //nolint:errorlint // it must be the transport's own
		t.Errorf("read after the end: %v", err)
	}
}

// A stream is resumed as the SDK does it, and what is replayed says the same as the first time.
func TestResumption(t *testing.T) {
	r, _ := newReceiver(t)
	h := wire.Handler(newSDK(t, &mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)}), r, nil)
	session := initialize(t, h)
	version := []string{"Mcp-Session-Id", session, "Mcp-Protocol-Version", "2025-11-25"}
	first := post(h, `{"jsonrpc":"2.0","id":5,"method":"tools/list"}`, version...)
	var ids, data []string
	for line := range strings.Lines(first.Body.String()) {
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			ids = append(ids, strings.TrimSpace(id))
		}
		if d, ok := strings.CutPrefix(line, "data: "); ok && strings.TrimSpace(d) != "" {
			data = append(data, strings.TrimSpace(d))
		}
	}
	if len(ids) < 2 || len(data) != 1 || !strings.Contains(data[0], `"taskSupport":"optional"`) {
		t.Fatalf("tools/list was answered %s", first.Body)
	}
	again := get(h, append(version, "Last-Event-ID", ids[0])...)
	if again.Code != http.StatusOK || !strings.Contains(again.Body.String(), "data: "+data[0]+"\n") {
		t.Errorf("resumed with %d %s\nfirst was  %s", again.Code, again.Body, first.Body)
	}
}
