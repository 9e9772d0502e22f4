package coatcheck_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/protocol"
)

// An answer that comes too late is refused, and costs the SDK's client no more than that: its
// session goes on.
func TestLateAnswerOfAnSDKClient(t *testing.T) {
	p := openHTTP(t, settings{NoAuth: true, PushInput: true})("")
	asked, answer := make(chan struct{}), make(chan struct{})
	client := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			close(asked)
			<-answer
			return &mcp.ElicitResult{Action: "decline"}, nil
		},
	})
	through := &refusals{refused: make(chan struct{}, 10)}
	t.Cleanup(through.CloseIdleConnections)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: p.web.url, HTTPClient: &http.Client{Transport: through}},
		&mcp.ClientSessionOptions{ProtocolVersion: protocol.Version20251125})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()

	p.web.session = session.ID() // what p sends now is of the SDK's session
	task := p.create(`{"name":"asking","arguments":{"script":"ask"},"task":{}}`)
	<-asked
	p.call(protocol.MethodTasksCancel, idParams(task.TaskID))
	close(answer)
	<-through.refused
	if err := session.Ping(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// refusals tells of responses with status 400.
type refusals struct {
	http.Transport
	refused chan struct{}
}

func (r *refusals) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.Transport.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusBadRequest {
		r.refused <- struct{}{}
	}
	return resp, err
}
