package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// web is a requesting server over HTTP that is one of the SDK's. What it asks comes on the
// GET stream, or on that of the client's call of the tool hold, while that lasts.
//
// The SDK's server can send only what it knows. So it sends a ping or a progress notification
// that stands for the message, which is put in its place on the way out.
type web struct {
	*requesting
	sdk  http.Handler
	over context.Context // done once the test is
	held chan struct{}   // received from once a call of hold is there, and again to let it go

	mu        sync.Mutex
	ctx       context.Context // of what is sent
	session   *mcp.ServerSession
	standing  map[string][]byte          // messages, by what stands for them
	wire      map[string]json.RawMessage // the ids of pings, by that of the request they stand for
	listening chan struct{}              // closed once the GET stream is open
	opened    sync.Once
	ready     chan struct{} // closed once the session is initialized
}

// overWeb returns a web for one client's session.
func overWeb(t *testing.T) *web {
	t.Helper()
	w := &web{
		requesting: newRequesting(t), held: make(chan struct{}), ctx: context.Background(),
		standing: map[string][]byte{}, wire: map[string]json.RawMessage{},
		listening: make(chan struct{}), ready: make(chan struct{}),
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, &mcp.ServerOptions{
		InitializedHandler: func(_ context.Context, req *mcp.InitializedRequest) {
			w.session = req.Session
			close(w.ready)
		},
	})
	mcp.AddTool(server, &mcp.Tool{Name: "hold"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		w.sendWith(ctx)
		w.held <- struct{}{}
		<-w.held
		w.sendWith(context.Background())
		return &mcp.CallToolResult{}, nil, nil
	})
	w.say = w.send
	w.sdk = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	listener := httptest.NewServer(w)
	over, end := context.WithCancel(context.Background())
	w.over = over
	t.Cleanup(func() {
		end() // of requests that are never answered, since they were cancelled
		listener.CloseClientConnections()
		listener.Close()
		for session := range server.Sessions() {
			_ = session.Close()
		}
	})
	w.transport = &mcp.StreamableClientTransport{Endpoint: listener.URL}
	return w
}

// hold has the client call hold, so that all that is asked comes on that call's stream.
func (w *web) hold(s *client.Session) (leave func()) {
	task := call(w.t, s, "hold", `{}`, nil)
	<-w.held
	return func() {
		w.held <- struct{}{}
		if _, err := task.Wait(context.Background()); err != nil {
			w.t.Error("hold:", err)
		}
	}
}

func (w *web) sendWith(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ctx = ctx
}

func (w *web) send(id, method string, params json.RawMessage) error {
	for _, open := range []chan struct{}{w.ready, w.listening} {
		select {
		case <-open:
		case <-time.After(patience):
			return errors.New("there is no session, or no GET stream")
		}
	}
	stands := "stands for " + id
	w.mu.Lock()
	w.standing[stands] = []byte(line(id, method, params))
	ctx := w.ctx
	w.mu.Unlock()
	if id == "" {
		return w.session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: stands})
	}
	go func() {
		// That it is not answered shows where the answer is waited for.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(w.over, cancel)()
		_ = w.session.Ping(ctx, &mcp.PingParams{Meta: mcp.Meta{"progressToken": stands}})
	}()
	return nil
}

func (w *web) ServeHTTP(out http.ResponseWriter, req *http.Request) {
	if req.Method == http.MethodPost {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return // the client is gone
		}
		m, err := protocol.ParseMessage(body)
		if err != nil {
			w.t.Errorf("not a message: %s", body)
			return
		}
		if id, ours := w.heard(m); ours {
			w.mu.Lock()
			body = protocol.AppendResult(nil, w.wire[id], json.RawMessage("{}"))
			w.mu.Unlock()
		}
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	w.sdk.ServeHTTP(&stream{out, w, req.Method == http.MethodGet}, req)
}

// stream is a stream of events, each of which the SDK's server writes whole.
type stream struct {
	http.ResponseWriter
	web *web
	get bool
}

func (s *stream) Flush() {
	s.ResponseWriter.(http.Flusher).Flush()
	if s.get {
		s.web.opened.Do(func() { close(s.web.listening) })
	}
}

func (s *stream) Write(event []byte) (int, error) {
	_, err := s.ResponseWriter.Write(s.web.put(event))
	return len(event), err
}

// put puts a message in the place of what stands for it in an event.
func (w *web) put(event []byte) []byte {
	lines := bytes.SplitAfter(event, []byte("\n"))
	for i, text := range lines {
		m, err := protocol.ParseMessage(bytes.TrimPrefix(text, []byte("data: ")))
		if err != nil {
			continue
		}
		stands, ok := protocol.Unquote(protocol.Get(m.Params, "progressToken"))
		if !ok {
			stands, _ = protocol.Unquote(protocol.Get(protocol.Get(m.Params, "_meta"), "progressToken"))
		}
		w.mu.Lock()
		if message := w.standing[stands]; message != nil {
			delete(w.standing, stands)
			if id, _ := protocol.Unquote(protocol.Get(message, "id")); id != "" {
				w.wire[id] = bytes.Clone(m.ID)
			}
			lines[i] = append([]byte("data: "), message...)
		}
		w.mu.Unlock()
	}
	return bytes.Join(lines, nil)
}
