package session

import (
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// How a GET stream that ended is opened again.
const (
	minReconnect = time.Second // doubles while it fails, unless the server says how long
	maxReconnect = 30 * time.Second
)

// listenOn keeps the GET stream open as long as the connection, if the server has one.
func (c *httpConn) listenOn() {
	var lastID string
	delay := minReconnect
	for {
		again, retry, progress := c.listenOnce(&lastID)
		if !again {
			return
		}
		wait := delay
		switch {
		case retry > 0:
			wait = min(retry, maxReconnect)
		case progress:
			delay, wait = minReconnect, minReconnect
		default:
			delay = min(2*delay, maxReconnect)
		}
		select {
		case <-time.After(wait):
		case <-c.ctx.Done():
			return
		}
	}
}

// listenOnce reads one GET stream to its end. It reports whether to try again, after how long
// if the server said so, and whether a stream was there at all.
func (c *httpConn) listenOnce(lastID *string) (again bool, retry time.Duration, progress bool) {
	req, err := http.NewRequestWithContext(c.ctx, http.MethodGet, c.url, nil)
	if err != nil {
		return false, 0, false
	}
	req.Header.Set("Accept", "text/event-stream")
	if id := c.SessionID(); id != "" {
		req.Header.Set(sessionIDHeader, id)
	}
	if *lastID != "" {
		req.Header.Set("Last-Event-ID", *lastID)
	}
	resp, err := c.client.Do(req)
	c.hearOnce.Do(func() { close(c.heard) })
	if err != nil {
		return c.ctx.Err() == nil, 0, false
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusOK && isEventStream(resp):
	case resp.StatusCode >= 500, resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusConflict:
		return true, 0, false // 409: it does not know yet that the last one has ended
	case *lastID != "" && resp.StatusCode >= 400:
		*lastID = "" // it no longer has, or never had, what came since
		return true, 0, false
	default:
		return false, 0, false // it has no such stream
	}
	_ = readEvents(resp.Body, maxMessage, func(e event) bool {
		if e.id != "" {
			*lastID = e.id
		}
		if e.retry > 0 {
			retry = e.retry
		}
		if len(e.data) == 0 || e.name != "" && e.name != "message" {
			return true
		}
		msg, err := jsonrpc.DecodeMessage(e.data)
		return err != nil || c.deliver(msg) // what is no message is passed over
	}) // however it ended, what is left is to open it again
	return c.ctx.Err() == nil, retry, true
}
