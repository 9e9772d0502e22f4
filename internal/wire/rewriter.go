package wire

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"strconv"

	"github.com/coatcheck/coatcheck/protocol"
)

// rewriter edits results on their way from the inner handler to the client, in a JSON body
// or in an event stream. Events and bodies that are not edited pass byte for byte.
type rewriter struct {
	http.ResponseWriter
	change func(*protocol.Message) json.RawMessage // the new result of a response; nil leaves it

	mode    mode
	status  int
	pending bytes.Buffer // a JSON body so far, or an event so far
}

type mode int

const (
	undecided mode = iota
	passing
	buffering // a JSON body
	streaming // an event stream
)

func newRewriter(w http.ResponseWriter, change func(*protocol.Message) json.RawMessage) *rewriter {
	return &rewriter{ResponseWriter: w, change: change}
}

func (rw *rewriter) WriteHeader(status int) {
	if rw.mode != undecided {
		return
	}
	if status < 200 { // informational; the answer is still to come
		rw.ResponseWriter.WriteHeader(status)
		return
	}
	rw.status = status
	media, _, _ := mime.ParseMediaType(rw.Header().Get("Content-Type"))
	switch {
	case media == "text/event-stream":
		rw.mode = streaming
		rw.Header().Del("Content-Length")
	case media == "application/json" && rw.Header().Get("Content-Encoding") == "":
		rw.mode = buffering // the header follows when the length is known
		return
	default:
		rw.mode = passing
	}
	rw.ResponseWriter.WriteHeader(status)
}

func (rw *rewriter) Write(p []byte) (int, error) {
	rw.WriteHeader(http.StatusOK)
	switch rw.mode {
	case buffering:
		return rw.pending.Write(p)
	case streaming:
		return rw.writeEvents(p)
	}
	return rw.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (rw *rewriter) Flush() { _ = rw.FlushError() }

// FlushError is what http.ResponseController looks for.
func (rw *rewriter) FlushError() error {
	rw.WriteHeader(http.StatusOK)
	if rw.mode == buffering {
		return nil
	}
	return http.NewResponseController(rw.ResponseWriter).Flush()
}

// Unwrap lets http.ResponseController reach the connection's deadlines.
func (rw *rewriter) Unwrap() http.ResponseWriter { return rw.ResponseWriter }

// writeEvents passes on the events that p completes.
func (rw *rewriter) writeEvents(p []byte) (int, error) {
	rw.pending.Write(p)
	for {
		end := eventEnd(rw.pending.Bytes())
		if end == 0 {
			return len(p), nil
		}
		if _, err := rw.ResponseWriter.Write(rw.edited(rw.pending.Next(end))); err != nil {
			return 0, err
		}
	}
}

// edited returns an event with the result in it changed, or the event as it is.
func (rw *rewriter) edited(event []byte) []byte {
	data := eventData(event)
	if changed := rw.changed(data); changed != nil {
		return replaceData(event, changed)
	}
	return event
}

func (rw *rewriter) changed(data []byte) []byte {
	m, err := protocol.ParseMessage(data)
	if err != nil || !m.IsResponse() || m.Result == nil {
		return nil
	}
	result := rw.change(m)
	if result == nil || bytes.Equal(result, m.Result) {
		return nil
	}
	changed, err := protocol.Set(data, "result", result)
	if err != nil {
		return nil
	}
	return changed
}

// finish ends the answer. It must be called after the inner handler returned.
func (rw *rewriter) finish() {
	body := rw.pending.Bytes()
	if rw.mode == buffering {
		if changed := rw.changed(body); changed != nil {
			body = changed
			rw.Header().Set("Content-Length", strconv.Itoa(len(body)))
		}
		rw.ResponseWriter.WriteHeader(rw.status)
	}
	if len(body) > 0 {
		_, _ = rw.ResponseWriter.Write(body)
	}
}
