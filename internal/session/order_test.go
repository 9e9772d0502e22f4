//go:build unix

package session_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/session"
	"github.com/coatcheck/coatcheck/protocol"
)

// What a server asks and says is taken in its order, though no answer is there yet, and each
// request gets its own answer.
func TestRequestsInOrder(t *testing.T) {
	const pairs = 200
	client, server := mcp.NewInMemoryTransports()
	conn, err := server.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	write := func(msg jsonrpc.Message) {
		if err := conn.Write(t.Context(), msg); err != nil {
			t.Error(err)
		}
	}
	answers := make(chan map[string]string, 1)
	go func() {
		got := map[string]string{}
		defer func() { answers <- got }()
		for len(got) < pairs {
			msg, err := conn.Read(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			switch msg := msg.(type) {
			case *jsonrpc.Response:
				got[fmt.Sprint(msg.ID.Raw())] = string(msg.Result)
			case *jsonrpc.Request:
				if msg.Method == protocol.MethodInitialize {
					write(&jsonrpc.Response{ID: msg.ID, Result: json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{}}`)})
				}
			}
		}
	}()
	var order []string
	all := make(chan struct{}) // closed when everything was taken
	take := func(params json.RawMessage) {
		order = append(order, string(protocol.Get(params, "n")))
		if len(order) == 2*pairs {
			close(all)
		}
	}
	s, err := session.Connect(t.Context(), client, &session.Options{
		OnNotification: func(_ string, params json.RawMessage) { take(params) },
		OnRequest: func(_ context.Context, _ string, params json.RawMessage) session.Answer {
			take(params)
			return func() (json.RawMessage, *protocol.Error) {
				<-all
				return params, nil
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	n := func(i int) json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"n":%d}`, i)) }
	for i := range pairs {
		id, _ := jsonrpc.MakeID(fmt.Sprint(i))
		write(&jsonrpc.Request{ID: id, Method: protocol.MethodListRoots, Params: n(2 * i)})
		write(&jsonrpc.Request{Method: "notifications/message", Params: n(2*i + 1)})
	}
	got := <-answers
	for i := range pairs {
		if a := got[fmt.Sprint(i)]; a != string(n(2*i)) {
			t.Errorf("request %d is answered %s", i, a)
		}
	}
	if len(order) != 2*pairs {
		t.Fatalf("%d of %d were taken", len(order), 2*pairs)
	}
	for i, taken := range order {
		if taken != fmt.Sprint(i) {
			t.Fatalf("%s was taken as number %d", taken, i)
		}
	}
}
