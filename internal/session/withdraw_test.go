package session_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/session"
)

// CAN-2: a cancellation that overtakes its call stops the work all the same, also of a tool that
// asks something, and if the server has no time for the first.
func TestCancellationOvertakesItsCall(t *testing.T) {
	for _, json := range []bool{false, true} {
		for _, tool := range []string{"wait", "ask"} {
			for _, way := range []string{"cancelled", "closed", "refused at first"} {
				name := tool + ", " + way
				if json {
					name += ", JSON"
				}
				t.Run(name, func(t *testing.T) {
					server := newServer(nil)
					taken := make(chan struct{}, 9) // the call is begun, or answered before it is
					server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
						return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
							if method == "tools/call" {
								taken <- struct{}{}
							}
							return next(ctx, method, req)
						}
					})
					inner := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{JSONResponse: json})
					arrived, overtaken := make(chan struct{}), make(chan struct{})
					var once sync.Once
					var refused atomic.Bool
					ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
						body, _ := io.ReadAll(req.Body)
						req.Body = io.NopCloser(bytes.NewReader(body))
						switch {
						case bytes.Contains(body, []byte(`"tools/call"`)):
							close(arrived)
							<-overtaken
							w = answering{w, taken}
						case bytes.Contains(body, []byte(`"notifications/cancelled"`)):
							defer once.Do(func() { close(overtaken) })
							if way == "refused at first" && refused.CompareAndSwap(false, true) {
								w.WriteHeader(http.StatusServiceUnavailable)
								return
							}
						case req.Method == http.MethodDelete:
							<-taken
						}
						inner.ServeHTTP(w, req)
					}))
					defer ts.Close()
					s := connect(t, session.HTTPTransport(ts.URL, ts.Client()), &session.Options{Capabilities: []byte(`{"elicitation":{}}`)})
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					called := make(chan error, 1)
					go func() {
						_, err := s.Call(ctx, "tools/call", call(tool))
						called <- err
					}()
					<-arrived
					if way == "closed" {
						s.Close()
						if err := <-called; !errors.Is(err, session.ErrClosed) {
							t.Error(err)
						}
					} else {
						cancel()
						if err := <-called; !errors.Is(err, context.Canceled) {
							t.Error(err)
						}
					}
					s.Close() // the answer to DELETE waits for the server's handlers
					for range server.Sessions() {
						t.Error("the server still works")
					}
				})
			}
		}
	}
}

// answering tells when something is written.
type answering struct {
	http.ResponseWriter
	begun chan<- struct{}
}

func (w answering) Write(p []byte) (int, error) {
	select {
	case w.begun <- struct{}{}:
	default:
	}
	return w.ResponseWriter.Write(p)
}

func (w answering) Unwrap() http.ResponseWriter { return w.ResponseWriter }
