package gateway

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/session"
)

// bridge carries messages between a client's connection and a server's until one of them
// ends. The end of the client's input is no error. settle is called once, before the server is made
// to end, which may take longer than the client lets us live.
func bridge(ctx context.Context, front, back mcp.Transport, settle func() error) error {
	behind, err := back.Connect(ctx)
	if err != nil {
		return errors.Join(err, settle())
	}
	before, err := front.Connect(ctx)
	if err != nil {
		return errors.Join(err, settle(), behind.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 2)
	go func() {
		err := carry(ctx, before, behind)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		ended <- err
	}()
	go func() { ended <- carry(ctx, behind, before) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
	}
	cancel()
	closed := errors.Join(before.Close(), settle(), behind.Close())
	if err == nil {
		err = closed
	}
	return err
}

func carry(ctx context.Context, from, to mcp.Connection) error {
	for {
		msg, err := from.Read(ctx)
		if err != nil {
			return err
		}
		if err := to.Write(ctx, msg); err != nil && !session.Passing(err) {
			return err
		}
	}
}

// departing is a client's transport, which notes when the client left.
type departing struct {
	mcp.Transport
	left atomic.Pointer[time.Time]
}

func (d *departing) Connect(ctx context.Context) (mcp.Connection, error) {
	conn, err := d.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &departingConn{conn, d}, nil
}

// grace returns what is left of stdioGrace.
func (d *departing) grace() time.Duration {
	if left := d.left.Load(); left != nil {
		return stdioGrace - time.Since(*left)
	}
	return stdioGrace
}

type departingConn struct {
	mcp.Connection
	client *departing
}

func (c *departingConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	msg, err := c.Connection.Read(ctx)
	if err != nil {
		now := time.Now()
		c.client.left.CompareAndSwap(nil, &now)
	}
	return msg, err
}
