package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/internal/node"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// quickRunner ends every task at once.
type quickRunner struct{}

func (quickRunner) Run(context.Context, *engine.Job) (task.Outcome, error) {
	return task.Outcome{Result: json.RawMessage(`{"content":[]}`)}, nil
}

// someServer answers calls as JSON, and everything else shortly.
func someServer(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	m, parsed := protocol.ParseMessage(body)
	switch {
	case err != nil:
		http.Error(w, "failed to read body", http.StatusBadRequest)
	case req.Method == http.MethodGet:
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n")
	case req.Method != http.MethodPost:
		w.WriteHeader(http.StatusNoContent)
	case parsed != nil:
		writeError(w, http.StatusBadRequest, nil, protocol.CodeParseError, "malformed")
	case m.IsCall():
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set(sessionHeader, "s")
		_, _ = w.Write(protocol.AppendResult(nil, m.ID, json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"tools":[{"name":"x"}]}`)))
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

// FuzzRequest sends any request to the whole endpoint: whatever a server of net/http takes for
// one is answered with a status, and where that says so with JSON that is a JSON-RPC response.
func FuzzRequest(f *testing.F) {
	endless := limit.Rate{PerSecond: limit.None}
	policy := &limit.Policy{Limits: limit.Limits{Creates: endless, Gets: endless, Lists: endless, Misses: endless}}
	n, err := node.Open(f.Context(), node.Config{
		Database: "memory:", Runner: quickRunner{}, Tools: receiver.Tools{Default: protocol.Optional}, Limits: policy, PollInterval: time.Millisecond,
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = n.Close(context.Background()) })
	c := Config{Guard: Guard{Origins: []string{"https://app.example"}, Hosts: []string{"h"}}}
	c.Guard.setDefaults()
	endpoint := c.handler(http.HandlerFunc(someServer), n.Receiver, &wire.HTTPOptions{
		AnyHost: true, MaxBody: 4 << 10,
		Principal: func(req *http.Request) (task.Principal, bool) {
			return task.Principal(req.Header.Get("Who")), req.Header.Get("Who") != ""
		},
	}, nil, nil)

	usual := "Host: h\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
	for _, body := range []string{
		initialize, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","task":{}}}`,
		`{"jsonrpc":"2.0","id":"a","method":"tasks/get","params":{"taskId":"x"}}`, `{"jsonrpc":"2.0","id":1,"method":"tasks/result","params":{"taskId":"x"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tasks/list","params":{"cursor":"AAAA"}}`, `{"jsonrpc":"2.0","id":1,"method":"tasks/cancel","params":{"taskId":"x"}}`,
		`{"jsonrpc":"2.0","id":"coatcheck-ask-1","result":{}}`, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		`[]`, `{`, ``, `{"jsonrpc":"2.0","id":1e400,"method":"x"}`, strings.Repeat("[", 2000), strings.Repeat(" ", 5000), "\xff",
	} {
		f.Add("POST", "/mcp", usual+"Mcp-Session-Id: s\r\nWho: a\r\n", []byte(body))
	}
	f.Add("GET", "/mcp", usual+"Last-Event-ID: 1\r\n", []byte{})
	f.Add("DELETE", "/mcp", "Host: h\r\nMcp-Session-Id: s\r\n", []byte{})
	f.Add("OPTIONS", "*", "Host: h\r\nOrigin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n", []byte{})
	f.Add("POST", "/mcp", usual+"Origin: https://app.example\r\nTransfer-Encoding: chunked\r\n", []byte("2\r\n{}\r\n0\r\n\r\n"))
	f.Add("POST", "http://[::1]:%31/../mcp?%", usual+"Origin: null\r\nOrigin: x\r\nHost: \r\n", []byte("{}"))
	f.Add("CONNECT", "h:1", usual, []byte("{}"))
	f.Add("POST", "/mcp", "Host: h\r\nContent-Type: application/json; charset\r\nMcp-Protocol-Version: 2099-01-01\r\nContent-Encoding: gzip\r\n", []byte("{}"))

	at := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80}
	f.Fuzz(func(t *testing.T, method, path, headers string, body []byte) {
		var raw bytes.Buffer
		raw.WriteString(method + " " + path + " HTTP/1.1\r\n" + headers)
		if lower := strings.ToLower(headers); !strings.Contains(lower, "content-length") && !strings.Contains(lower, "transfer-encoding") {
			_, _ = raw.WriteString("Content-Length: " + string(protocol.Marshal(len(body))) + "\r\n")
		}
		raw.WriteString("\r\n")
		raw.Write(body)
		req, err := http.ReadRequest(bufio.NewReader(&raw))
		if err != nil {
			return
		}
		req.RemoteAddr = "192.0.2.2:5"
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(at)), time.Minute)
		defer cancel()
		w := httptest.NewRecorder()
		w.Code = 0
		endpoint.ServeHTTP(w, req.WithContext(ctx))
		if ctx.Err() != nil {
			t.Fatal("not answered in a minute")
		}
		if w.Code < 200 || w.Code > 599 {
			t.Fatalf("status %d %s", w.Code, w.Body)
		}
		if media, _, _ := mime.ParseMediaType(w.Header().Get("Content-Type")); media == "application/json" {
			if m, err := protocol.ParseMessage(w.Body.Bytes()); err != nil || !m.IsResponse() && (m.Error == nil || m.Method != "" || string(m.ID) != "null") {
				t.Fatalf("status %d, %s: %v", w.Code, w.Body, err)
			}
		}
	})
}
