package wire_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/store/memory"
	"github.com/coatcheck/coatcheck/task"
)

// fullStore stores no outcomes while it is full.
type fullStore struct {
	store.Store
	full atomic.Bool
}

func (s *fullStore) Update(ctx context.Context, t *task.Task) error {
	if s.full.Load() {
		return errors.New("the disk is full")
	}
	return s.Store.Update(ctx, t)
}

// ticketed is a connection on which a call was answered with a ticket.
type ticketed struct {
	client *script
	conn   mcp.Connection
	engine *engine.Engine
	ref    task.Ref
}

func newTicketed(t *testing.T, s store.Store) *ticketed {
	t.Helper()
	e, err := engine.New(t.Context(), engine.Options{Store: s, Runner: runner{}})
	if err != nil {
		t.Fatal(err)
	}
	r := receiver.New(receiver.Options{
		Engine: e, Tools: receiver.Tools{Default: protocol.Optional}, Tickets: receiver.Tickets{Mode: receiver.TicketsAuto, Patience: time.Second},
	})
	c := &ticketed{client: &script{says: make(chan jsonrpc.Message, 1), heard: make(chan jsonrpc.Message, 1)}, engine: e}
	c.conn, err = wire.Transport(c.client, r, wire.TransportOptions{Principal: "p"}).Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.says(t, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"capabilities":{}}}`)
	if err := c.conn.Write(t.Context(), decode(t, `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`)); err != nil {
		t.Fatal(err)
	}
	<-c.client.heard
	c.says(t, carriedCall)
	answer := (<-c.client.heard).(*jsonrpc.Response)
	id, _ := protocol.Unquote(protocol.Get(protocol.Get(protocol.Get(answer.Result, "_meta"), protocol.MetaTicket), "ticket"))
	if c.ref = (task.Ref{Principal: "p", ID: id}); id == "" {
		t.Fatalf("no ticket: %s", answer.Result)
	}
	return c
}

func (c *ticketed) says(t *testing.T, message string) {
	t.Helper()
	c.client.says <- decode(t, message)
	if _, err := c.conn.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestTicketOutlivesConnection: a call whose connection ends before the server answers ends as it
// would with the process: nobody hears what the server still says.
func TestTicketOutlivesConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTicketed(t, memory.New())
		close(c.client.says)
		if _, err := c.conn.Read(t.Context()); !errors.Is(err, io.EOF) {
			t.Errorf("read after the end: %v", err)
		}
		if err := c.conn.Close(); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if ended, err := c.engine.Await(ctx, c.ref); err != nil || !engine.Interrupted(ended.Outcome) {
			t.Errorf("ended as %v, %v", ended, err)
		}
		_ = c.engine.Shutdown(t.Context())
	})
}

// TestConnWithFullStore: a connection goes on while the outcome of a call of it cannot be stored.
func TestConnWithFullStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := &fullStore{Store: memory.New()}
		full.full.Store(true)
		c := newTicketed(t, full)
		wrote := make(chan error, 1)
		go func() { wrote <- c.conn.Write(t.Context(), decode(t, carriedReply)) }()
		select {
		case err := <-wrote:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("the server cannot write")
		}
		full.full.Store(false)
		close(c.client.says)
		_, _ = c.conn.Read(t.Context())
		_ = c.conn.Close()
		_ = c.engine.Shutdown(t.Context())
	})
}
