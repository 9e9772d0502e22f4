package gateway

import (
	"context"
	"errors"
	"io"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/session"
)

// bridge carries messages between a client's connection and a server's until one of them
// ends. The end of the client's input is no error.
func bridge(ctx context.Context, front, back mcp.Transport) error {
	behind, err := back.Connect(ctx)
	if err != nil {
		return err
	}
	before, err := front.Connect(ctx)
	if err != nil {
		return errors.Join(err, behind.Close())
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
	closed := errors.Join(before.Close(), behind.Close())
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
