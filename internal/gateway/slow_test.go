package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// quick are times that a test can wait for.
var quick = Times{Header: 300 * time.Millisecond, Body: 300 * time.Millisecond, Write: 300 * time.Millisecond, Idle: 300 * time.Millisecond}

// dialRaw connects to an endpoint and sends it something.
func dialRaw(t *testing.T, url, send string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/mcp"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, send); err != nil {
		t.Fatal(err)
	}
	return conn
}

// awaitEnd reads until the other side ends the connection, and returns what it said before.
func awaitEnd(t *testing.T, conn net.Conn, what string) string {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	said, err := io.ReadAll(conn)
	if e, ok := err.(net.Error); ok && e.Timeout() { //nolint:errorlint // of the connection, as it is
		t.Errorf("%s: the connection goes on", what)
	}
	return string(said)
}

// Clients that hold a connection and do not go on lose it, while others are served.
func TestSlowClients(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.WriteHeader(http.StatusAccepted)
	}))
	defer backend.Close()
	url := serve(t, Config{URL: backend.URL, Guard: Guard{Times: quick}})
	post := "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: 1000\r\n%s\r\n{\"jsonrpc\":"
	slow := map[string]string{
		"half a header":         "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: appl",
		"nothing at all":        "",
		"half a body":           fmt.Sprintf(post, "application/json", ""),
		"half an opaque body":   fmt.Sprintf(post, "text/plain", ""),
		"half a chunked body":   "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"js",
		"half a refused body":   fmt.Sprintf(post, "application/json", "Origin: http://evil\r\n"),
		"half an unread body":   strings.Replace(fmt.Sprintf(post, "application/json", ""), "/mcp", "/elsewhere", 1),
		"nothing after a reply": "GET /elsewhere HTTP/1.1\r\nHost: localhost\r\n\r\n",
	}
	var ended sync.WaitGroup
	for what, send := range slow {
		conn := dialRaw(t, url, send)
		ended.Go(func() { awaitEnd(t, conn, what) })
	}
	// One that keeps sending, but next to nothing.
	trickle := dialRaw(t, url, fmt.Sprintf(post, "application/json", ""))
	ended.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for range 900 {
			if _, err := io.WriteString(trickle, " "); err != nil {
				return
			}
			<-tick.C
		}
		t.Error("a body that trickles in is waited for")
	})
	all := make(chan struct{})
	go func() {
		ended.Wait()
		close(all)
	}()
	c := &client{t: t, url: url, web: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	for served := 0; ; served++ {
		if r := c.post(`{"jsonrpc":"2.0","method":"notifications/vendor"}`); r.status != http.StatusAccepted {
			t.Errorf("another client: %d %s", r.status, r.body)
		}
		select {
		case <-all:
			if served < 3 {
				t.Errorf("only %d others were served meanwhile", served)
			}
			return
		default:
		}
	}
}

// A client that does not read its stream loses it, and whoever writes to it is told; over
// HTTP/1.1 and HTTP/2, where the connection and its other streams go on.
func TestUnreadStream(t *testing.T) {
	a := newAuthority(t)
	for proto, files := range map[int]*TLS{1: nil, 2: a.files(t, t.TempDir(), "localhost")} {
		ended := make(chan struct{})
		event := []byte("data: " + strings.Repeat("x", 1<<20) + "\n\n")
		backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Method != http.MethodGet {
				w.WriteHeader(http.StatusAccepted)
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			for {
				if _, err := w.Write(event); err != nil {
					close(ended)
					return
				}
			}
		}))
		url := serve(t, Config{URL: backend.URL, Guard: Guard{Times: quick, TLS: files}})
		transport := a.transport(nil)
		ask := func(method string) *http.Response {
			req, _ := http.NewRequest(method, url, strings.NewReader(`{"jsonrpc":"2.0","method":"notifications/vendor"}`))
			req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"text/event-stream"}}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		resp := ask(http.MethodGet)
		if resp.ProtoMajor != proto {
			t.Errorf("HTTP/%d, want %d", resp.ProtoMajor, proto)
		}
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Errorf("over HTTP/%d, a stream that nobody reads goes on", proto)
		}
		other := ask(http.MethodPost)
		_ = other.Body.Close()
		if other.StatusCode != http.StatusAccepted {
			t.Errorf("over HTTP/%d, another request: %d", proto, other.StatusCode)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err == nil {
			t.Errorf("over HTTP/%d, the stream ended as if it were whole", proto)
		}
		_ = resp.Body.Close()
		transport.CloseIdleConnections()
		backend.Close()
	}
}

// A stream that is quiet for longer than any of the times goes on; over HTTP/1.1 and HTTP/2.
func TestQuietStream(t *testing.T) {
	a := newAuthority(t)
	for proto, files := range map[int]*TLS{1: nil, 2: a.files(t, t.TempDir(), "localhost")} {
		next := make(chan string, 1)
		backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			for text := range next {
				fmt.Fprintf(w, "data: %s\n\n", text)
				_ = http.NewResponseController(w).Flush()
			}
		}))
		times := Times{Body: 50 * time.Millisecond, Write: 50 * time.Millisecond, Idle: 50 * time.Millisecond}
		url := serve(t, Config{URL: backend.URL, Guard: Guard{Times: times, TLS: files}})
		transport := a.transport(nil)
		req, _ := http.NewRequest(http.MethodPost, url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"vendor/x"}`))
		req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"text/event-stream"}}
		next <- "first"
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.ProtoMajor != proto {
			t.Errorf("HTTP/%d, want %d", resp.ProtoMajor, proto)
		}
		lines := bufio.NewScanner(resp.Body)
		for _, want := range []string{"first", "second"} {
			if !lines.Scan() || lines.Text() != "data: "+want {
				t.Errorf("over HTTP/%d: %q, %v; want %s", proto, lines.Text(), lines.Err(), want)
			}
			lines.Scan()
			if want == "first" {
				<-time.After(300 * time.Millisecond) // all times are over
				next <- "second"
			}
		}
		close(next)
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Errorf("over HTTP/%d: %v", proto, err)
		}
		_ = resp.Body.Close()
		transport.CloseIdleConnections()
		backend.Close()
	}
}

// A connection beyond the bound is served once another has ended.
func TestMaxConnections(t *testing.T) {
	url := serve(t, Config{Command: []string{"raw"}, Guard: Guard{Connections: 2, Times: Times{Header: 20 * time.Second}}})
	ask := "GET /elsewhere HTTP/1.1\r\nHost: localhost\r\n\r\n"
	status := func(conn net.Conn) chan string {
		got := make(chan string, 1)
		go func() {
			line, _ := bufio.NewReader(conn).ReadString('\n')
			got <- line
		}()
		return got
	}
	a, b := dialRaw(t, url, ask), dialRaw(t, url, ask)
	for _, conn := range []net.Conn{a, b} {
		if line := <-status(conn); !strings.Contains(line, "404") {
			t.Fatalf("got %q", line)
		}
	}
	third := status(dialRaw(t, url, ask))
	select {
	case line := <-third:
		t.Errorf("a third connection is served: %q", line)
	case <-time.After(100 * time.Millisecond):
	}
	a.Close()
	if line := <-third; !strings.Contains(line, "404") {
		t.Errorf("after one has ended: %q", line)
	}
}

// A header that is too large is refused while it is read.
func TestLargeHeader(t *testing.T) {
	url := serve(t, Config{Command: []string{"raw"}})
	conn := dialRaw(t, url, "GET /mcp HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", maxHeader+8<<10))
	if said := awaitEnd(t, conn, "a large header"); !strings.Contains(said, " 431 ") {
		t.Errorf("answered with %q", said)
	}
}
