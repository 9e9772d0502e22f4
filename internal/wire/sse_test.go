package wire

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coatcheck/coatcheck/protocol"
)

const stream = ": hello\n\n" +
	"event: message\r\nid: 7_1\r\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\r\n\r\n" +
	"id: 7_2\nevent: message\nretry: 5\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\ndata: \"result\":{\"a\": 1.0}}\nunknown: kept\n\n" +
	"data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n\n" +
	"data: not closed"

func addB(m *protocol.Message) json.RawMessage {
	if string(m.ID) != "1" {
		return nil
	}
	changed, _ := protocol.Set(m.Result, "b", []byte("2"))
	return changed
}

// An event is edited however its bytes are cut, and the other events stay as they are.
func TestRewriterEvents(t *testing.T) {
	want := strings.Replace(stream, "data: {\"jsonrpc\":\"2.0\",\"id\":1,\ndata: \"result\":{\"a\": 1.0}}", "data: {\"jsonrpc\":\"2.0\",\"id\":1,\ndata: \"result\":{\"a\": 1.0,\"b\":2}}", 1)
	for size := 1; size <= len(stream); size++ {
		w := httptest.NewRecorder()
		rw := newRewriter(w, addB)
		rw.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		rw.WriteHeader(http.StatusOK)
		for chunk := range chunks(stream, size) {
			if n, err := rw.Write(chunk); n != len(chunk) || err != nil {
				t.Fatal(n, err)
			}
			rw.Flush()
		}
		rw.finish()
		if w.Body.String() != want {
			t.Fatalf("in pieces of %d:\ngot  %q\nwant %q", size, w.Body, want)
		}
	}
}

func TestRewriterBody(t *testing.T) {
	for _, tc := range []struct{ contentType, in, want string }{
		{"application/json", `{"jsonrpc":"2.0","id":1,"result":{"a":1e2}} `, `{"jsonrpc":"2.0","id":1,"result":{"a":1e2,"b":2}} `},
		{"application/json", `{"jsonrpc":"2.0","id":2,"result":{}}`, `{"jsonrpc":"2.0","id":2,"result":{}}`},
		{"application/json", `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}`},
		{"application/json", `broken`, `broken`},
		{"text/plain", `{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","id":1,"result":{}}`},
	} {
		w := httptest.NewRecorder()
		rw := newRewriter(w, addB)
		rw.Header().Set("Content-Type", tc.contentType)
		rw.Header().Set("Content-Length", "7")
		for chunk := range chunks(tc.in, 5) {
			_, _ = rw.Write(chunk)
		}
		rw.finish()
		if w.Body.String() != tc.want {
			t.Errorf("%s %s became %s", tc.contentType, tc.in, w.Body)
		}
	}
}

func chunks(s string, size int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(s) > 0 {
			n := min(size, len(s))
			if !yield([]byte(s[:n])) {
				return
			}
			s = s[n:]
		}
	}
}

// FuzzEvents: whatever an inner handler streams comes out whole and in order, in any pieces,
// and what is written as an event reads back as it was.
func FuzzEvents(f *testing.F) {
	f.Add([]byte(stream), uint8(3))
	f.Add([]byte("\r\r\n\n\r\n"), uint8(1))
	f.Add([]byte("data\ndata:\ndata: \n\n"), uint8(2))
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		w := httptest.NewRecorder()
		rw := newRewriter(w, func(*protocol.Message) json.RawMessage { return nil })
		rw.Header().Set("Content-Type", "text/event-stream")
		for chunk := range chunks(string(data), int(size)+1) {
			_, _ = rw.Write(chunk)
		}
		rw.finish()
		if !bytes.Equal(w.Body.Bytes(), data) {
			t.Fatalf("%q came out as %q", data, w.Body)
		}
		event := messageEvent(data)
		if eventEnd(event) != len(event) {
			t.Fatalf("event of %q is not one event: %q", data, event)
		}
		normal := bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")), []byte("\r"), []byte("\n"))
		if got := eventData(event); !bytes.Equal(got, normal) {
			t.Fatalf("%q read back as %q", data, got)
		}
	})
}
