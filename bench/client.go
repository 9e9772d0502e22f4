package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
)

// client is one HTTP/1.1 connection that does no more than it must, so that the servers'
// differences are not lost in the generator's own work.
type client struct {
	conn    net.Conn
	in      *bufio.Reader
	head    string // of each request, up to its length
	call    string // the beginning of each call: one at a time, so its id never changes
	out     []byte
	status  []byte
	body    []byte
	session string
}

func dial(address string, id int) (*client, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return &client{
		conn: conn,
		in:   bufio.NewReaderSize(conn, 16<<10),
		head: "POST /mcp HTTP/1.1\r\nHost: " + address + "\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n",
		call: `{"jsonrpc":"2.0","id":` + strconv.Itoa(id) + `,"method":"`,
	}, nil
}

// use has the client's requests belong to a session.
func (c *client) use(session string) {
	if session != "" {
		c.head += "Mcp-Session-Id: " + session + "\r\nMcp-Protocol-Version: 2025-11-25\r\n"
	}
}

// post sends a message, given in parts, and returns the body of the answer, good until the
// next one.
func (c *client) post(message ...string) ([]byte, error) {
	length := 0
	for _, part := range message {
		length += len(part)
	}
	c.out = append(c.out[:0], c.head...)
	c.out = append(c.out, "Content-Length: "...)
	c.out = strconv.AppendInt(c.out, int64(length), 10)
	c.out = append(c.out, "\r\n\r\n"...)
	for _, part := range message {
		c.out = append(c.out, part...)
	}
	if _, err := c.conn.Write(c.out); err != nil {
		return nil, err
	}
	status, err := c.line()
	if err != nil {
		return nil, err
	}
	c.status = append(c.status[:0], status...)
	length, chunked := 0, false
	for {
		line, err := c.line()
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(": "))
		switch {
		case bytes.EqualFold(name, contentLength):
			if length, err = strconv.Atoi(string(value)); err != nil {
				return nil, err
			}
		case bytes.EqualFold(name, transferEncoding):
			chunked = true
		case bytes.EqualFold(name, sessionID):
			c.session = string(value)
		}
	}
	c.body = c.body[:0]
	if !chunked {
		err = c.read(length)
	} else {
		err = c.chunks()
	}
	if err == nil && !bytes.HasPrefix(c.status, []byte("HTTP/1.1 2")) {
		err = fmt.Errorf("%s: %s", c.status, c.body)
	}
	return c.body, err
}

var (
	contentLength    = []byte("Content-Length")
	transferEncoding = []byte("Transfer-Encoding")
	sessionID        = []byte("Mcp-Session-Id")
)

func (c *client) line() ([]byte, error) {
	line, err := c.in.ReadSlice('\n')
	return bytes.TrimSuffix(line, []byte("\r\n")), err
}

func (c *client) read(n int) error {
	at := len(c.body)
	if cap(c.body) < at+n {
		c.body = append(make([]byte, 0, 2*(at+n)), c.body...)
	}
	c.body = c.body[:at+n]
	_, err := io.ReadFull(c.in, c.body[at:])
	return err
}

func (c *client) chunks() error {
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(string(line), 16, 32)
		if err != nil {
			return err
		}
		if err := c.read(int(n)); err != nil {
			return err
		}
		if end, err := c.line(); err != nil || len(end) != 0 {
			return errors.Join(err, errors.New("a chunk without its end"))
		}
		if n == 0 {
			return nil
		}
	}
}

const (
	initialize  = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	plainParams = `{"name":"noop","arguments":{}}`
	taskParams  = `{"name":"noop","arguments":{},"task":{"ttl":600000}}`
)

// request sends a call.
func (c *client) request(method, params string) ([]byte, error) {
	return c.post(c.call, method, `","params":`, params, `}`)
}

// about sends a call about a task.
func (c *client) about(method, id string) ([]byte, error) {
	return c.post(c.call, method, `","params":{"taskId":"`, id, `"}}`)
}

// create makes a task and returns its id.
func (c *client) create() (string, error) {
	answer, err := c.request("tools/call", taskParams)
	if err != nil {
		return "", err
	}
	_, rest, ok := bytes.Cut(answer, []byte(`"taskId":"`))
	if !ok {
		return "", fmt.Errorf("no task in %s", answer)
	}
	id, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(id), nil
}

// completed makes a task and waits for its result.
func (c *client) completed() error {
	id, err := c.create()
	if err != nil {
		return err
	}
	answer, err := c.about("tasks/result", id)
	if err == nil && !bytes.Contains(answer, []byte(`"done"`)) {
		err = fmt.Errorf("no result in %s", answer)
	}
	return err
}

func (c *client) get(id string) error {
	answer, err := c.about("tasks/get", id)
	if err == nil && !bytes.Contains(answer, []byte(`"completed"`)) {
		err = fmt.Errorf("no finished task in %s", answer)
	}
	return err
}

func (c *client) plain() error {
	answer, err := c.request("tools/call", plainParams)
	if err == nil && !bytes.Contains(answer, []byte(`"done"`)) {
		err = fmt.Errorf("no result in %s", answer)
	}
	return err
}
