package client_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/internal/exampleserver"
)

func TestMain(m *testing.M) {
	if os.Getenv(hostRole) != "" && len(os.Args) == 4 {
		if err := hostProcess(os.Args[1], os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func accept(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"confirm": true, "name": "Zoë", "colour": "red"}}, nil
}

func newClient() *mcp.Client {
	return mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ClientOptions{ElicitationHandler: accept})
}

func TestQuick(t *testing.T) {
	server := exampleserver.New()
	rt, err := coatcheck.Open(t.Context(), server, &coatcheck.Options{Database: "memory:", Tools: map[string]coatcheck.Tool{
		"slow_compute": {Support: coatcheck.Optional}, "confirm_delete": {Support: coatcheck.Optional}, "multi_input": {Support: coatcheck.Required}}})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close(context.Background())
	web := httptest.NewServer(rt.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)))
	defer web.Close()
	s, err := client.Connect(t.Context(), newClient(), &mcp.StreamableClientTransport{Endpoint: web.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []*mcp.CallToolParams{
		{Name: "greet", Arguments: map[string]any{"name": "x"}},
		{Name: "slow_compute", Arguments: map[string]any{"seconds": 1}},
		{Name: "confirm_delete", Arguments: map[string]any{"filename": "x"}},
		{Name: "multi_input"},
	} {
		begin := time.Now()
		task, err := s.CallTool(t.Context(), c, nil)
		if err != nil {
			t.Fatal(err)
		}
		for u := range task.Updates(t.Context()) {
			t.Log(task.ID(), u, u.Progress)
		}
		res, err := task.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Log(res.Content[0].(*mcp.TextContent).Text, time.Since(begin))
	}
}
