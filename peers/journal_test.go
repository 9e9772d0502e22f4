package peers

import (
	"encoding/json"
	"slices"
	"testing"
)

// journal is what went over the wire in a session of the TypeScript client, as it saw it.
type journal []struct {
	Stream         string // of what was received; see ts/journal.mjs
	Sent, Received *message
}

type message struct {
	ID     any
	Method string
	Params map[string]any
	Result map[string]any
	Error  *rpcError
}

// received is one message that came from the server.
type received struct {
	message
	at     int // its place in the journal
	stream string
}

// received returns the messages of a method.
func (j journal) received(method string) []received {
	var all []received
	for at, entry := range j {
		if entry.Received != nil && entry.Received.Method == method {
			all = append(all, received{*entry.Received, at, entry.Stream})
		}
	}
	return all
}

// sent returns where in the journal the requests of a method are.
func (j journal) sent(method string) []int {
	var all []int
	for at, entry := range j {
		if entry.Sent != nil && entry.Sent.Method == method {
			all = append(all, at)
		}
	}
	return all
}

// answered returns where in the journal the client answered a request of the server, or -1.
func (j journal) answered(id any) int {
	for at, entry := range j {
		if entry.Sent != nil && entry.Sent.Method == "" && entry.Sent.ID == id {
			return at
		}
	}
	return -1
}

// created returns where in the journal a task was first heard of as created, or -1.
func (j journal) created(taskID string) int {
	for at, entry := range j {
		if entry.Received == nil {
			continue
		}
		if task, ok := entry.Received.Result["task"].(map[string]any); ok && task["taskId"] == taskID {
			return at
		}
	}
	return -1
}

// related returns the task that a message's metadata names, or "".
func related(params map[string]any) string {
	meta, _ := params["_meta"].(map[string]any)
	about, _ := meta[relatedTask].(map[string]any)
	id, _ := about["taskId"].(string)
	return id
}

// checkQuestions checks that the client was asked once for each of its handler's calls, under an
// id of its own, over HTTP on the stream given, and about the task (INP-2, INP-5, REL-1).
func checkQuestions(t *testing.T, j journal, method, stream string, asked []question, taskID string) {
	t.Helper()
	on := j.received(method)
	if len(on) != len(asked) {
		t.Errorf("%d of %s received, %d handled", len(on), method, len(asked))
		return
	}
	var ids []any
	for _, ask := range on {
		if ask.stream != stream && ask.stream != "stdio" {
			t.Errorf("%s came on the stream of %s, want %s", method, ask.stream, stream)
		}
		if id := related(ask.Params); id != taskID {
			t.Errorf("%s is about task %q, want %q", method, id, taskID)
		}
		if slices.Contains(ids, ask.ID) {
			t.Errorf("id %v is used twice", ask.ID)
		}
		ids = append(ids, ask.ID)
	}
	for _, q := range asked {
		if q.TaskID != taskID || !slices.Contains(ids, q.RequestID) {
			t.Errorf("the handler saw task %q and id %v, want %q and one of %v", q.TaskID, q.RequestID, taskID, ids)
		}
	}
}

// question is one call of the client's handler for elicitation or sampling.
type question struct {
	RequestID any
	TaskID    string
	Params    map[string]any
	Meanwhile json.RawMessage
}

// during decodes what the handler did before it answered.
func during[T any](t *testing.T, q question) T {
	t.Helper()
	var out T
	if err := json.Unmarshal(q.Meanwhile, &out); err != nil {
		t.Fatalf("%v: %s", err, q.Meanwhile)
	}
	return out
}
