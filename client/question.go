package client

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/protocol"
)

// question is a request of the server that belongs to a task and is not answered yet. One
// that is asked again, because another tasks/result was opened (INP-3), is one question, which
// its handler sees once: whoever is answering it must not begin again.
type question struct {
	task   string // "" if it is none's, or not known
	method string
	params json.RawMessage
	id     jsonrpc.ID   // as which the handler has it
	asked  []jsonrpc.ID // the requests that wait for its answer
	again  bool         // the next that looks like it is it
}

// asked takes a request of the server, and reports whether its handler has it already.
func (c *conn) asked(req *jsonrpc.Request) (again bool) {
	task := relatedTask(req.Params)
	c.mu.Lock()
	defer c.mu.Unlock()
	if task != "" {
		c.related[req.ID] = task
	} else if len(c.results) == 1 { // a server that leaves out what REL-1 demands
		for task = range c.results {
		}
	}
	for _, q := range c.questions {
		if q.again && q.task == task && q.method == req.Method && bytes.Equal(q.params, req.Params) {
			q.asked, q.again = append(q.asked, req.ID), false
			return true
		}
	}
	c.questions = append(c.questions, &question{task: task, method: req.Method, params: req.Params, id: req.ID, asked: []jsonrpc.ID{req.ID}})
	return false
}

// collecting says that a task's tasks/result is opened, on which its questions are asked
// again, until the function that it returns is called.
func (c *conn) collecting(task string) (ended func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.results[task]++
	for _, q := range c.questions {
		q.again = q.again || q.task == task
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.results[task]--; c.results[task] == 0 {
			delete(c.results, task)
		}
	}
}

// reply returns the requests that a handler's answer to one is for.
func (c *conn) reply(id jsonrpc.ID) []jsonrpc.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, q := range c.questions {
		if q.id == id {
			c.questions = slices.Delete(c.questions, i, i+1)
			return q.asked
		}
	}
	return []jsonrpc.ID{id}
}

// withdrawn takes the server's withdrawal of a request. It returns it as it is for the
// handler, nil if the question still stands.
func (c *conn) withdrawn(note *jsonrpc.Request) *jsonrpc.Request {
	id := requestID(note.Params)
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, q := range c.questions {
		at := slices.Index(q.asked, id)
		if at < 0 {
			continue
		}
		delete(c.related, id)
		if q.asked = slices.Delete(q.asked, at, at+1); len(q.asked) > 0 {
			return nil
		}
		c.questions = slices.Delete(c.questions, i, i+1)
		params, err := protocol.Set(note.Params, "requestId", protocol.Marshal(q.id.Raw()))
		if err != nil {
			return note
		}
		return &jsonrpc.Request{Method: note.Method, Params: params}
	}
	return note
}
