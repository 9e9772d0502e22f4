package main

import (
	"bufio"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/coatcheck/coatcheck/internal/node"
)

// once has one client wait for one task, ends the work, and returns how long it took from
// there until the client had read the answer.
func (g *gated) once(n *node.Node, web *http.Client, address string) (time.Duration, error) {
	t, err := create(n.Engine, `{"name":"noop"}`)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+address, strings.NewReader(
		`{"jsonrpc":"2.0","id":1,"method":"tasks/result","params":{"taskId":"`+t.ID+`"}}`))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := web.Do(req) // its header is there: the server waits
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	gate := g.of(t.ID)
	close(gate.open)
	var read time.Time
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data: ") {
			read = time.Now()
		}
	}
	if read.IsZero() {
		return 0, errors.New("a waiter was not answered")
	}
	return read.Sub(gate.at), nil
}
