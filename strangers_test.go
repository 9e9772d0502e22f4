package coatcheck_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/protocol"
)

// NOT-1, SEC-4: without a session and an identity nobody can tell whose a stream is, so no
// task's status, questions or words go there.
func TestStrangersStreams(t *testing.T) {
	s := settings{NoAuth: true, Capabilities: ableToAll, PushInput: true}
	server := newServer()
	rt, err := coatcheck.Open(t.Context(), server, s.options())
	if err != nil {
		t.Fatal(err)
	}
	stateless := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true})
	tapped := rt.Handler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet {
			stateless.ServeHTTP(w, req)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-req.Context().Done()
	}))
	listening := make(chan *written, 1)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			heard := &written{ResponseWriter: w}
			defer func() { listening <- heard }()
			w = heard
		}
		tapped.ServeHTTP(w, req)
	}))
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
		if err := rt.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})

	bob, leave := context.WithCancel(t.Context())
	defer leave()
	req, _ := http.NewRequestWithContext(bob, http.MethodGet, web.URL, nil)
	req.Header.Set("Accept", "text/event-stream")
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()

	p := connectHTTP(t, s, web.URL)("")
	for range 20 { // what went to the stream would be written while the next runs
		task := p.create(`{"name":"asking","arguments":{"script":"log report 3 ask"},"task":{},"_meta":{"progressToken":1}}`)
		p.call(protocol.MethodTasksCancel, idParams(task.TaskID))
	}
	leave()
	if heard := <-listening; len(heard.bytes) != 0 {
		t.Errorf("a stranger hears %s", heard.bytes)
	}
}

// written keeps what is written. It is read once the handler has returned.
type written struct {
	http.ResponseWriter
	bytes []byte
}

func (w *written) Write(p []byte) (int, error) {
	w.bytes = append(w.bytes, p...)
	return w.ResponseWriter.Write(p)
}

func (w *written) Unwrap() http.ResponseWriter { return w.ResponseWriter }
