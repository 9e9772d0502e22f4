package client

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/protocol"
)

// maxBusy bounds how long the client waits at a time where a server refuses for a limit.
const maxBusy = time.Minute

// RetryAfter returns how long to wait before what a server refused for a limit is tried again;
// ok is false if err is no such refusal, or waiting does not help. What is asked about a task
// the client tries again by itself; what makes one (CallTool) it does not.
func RetryAfter(err error) (wait time.Duration, ok bool) {
	_, wait, ok = refusal(err)
	return wait, ok
}

// refusal reads a refusal for a limit that is worth waiting out, with the limit's name.
func refusal(err error) (limit string, wait time.Duration, ok bool) {
	wire, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok || wire.Code != protocol.CodeLimitExceeded {
		return "", 0, false
	}
	var data struct {
		Limit        string  `json:"limit"`
		RetryAfterMs float64 `json:"retryAfterMs"`
	}
	if json.Unmarshal(wire.Data, &data) != nil || !(data.RetryAfterMs > 0) {
		return "", 0, false
	}
	const most = 365 * 24 * time.Hour // of what a duration can hold
	return data.Limit, time.Duration(min(data.RetryAfterMs, float64(most.Milliseconds())) * float64(time.Millisecond)), true
}

// busy is how long to wait before a task is asked about again. Only a limit on asking is meant: any
// other is the outcome of a task whose own request was refused, somewhere behind the server.
func busy(err error) (wait time.Duration, ok bool) {
	limit, wait, ok := refusal(err)
	switch limit {
	case "gets", "misses", "waits", "lists":
		return min(wait, maxBusy), ok
	}
	return 0, false
}

// pause waits, until ctx is done or the connection has ended at most. The error is ctx's or the
// connection's.
func (s *Session) pause(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.conn.ended:
		return s.conn.err
	}
}
