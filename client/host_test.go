package client_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
)

// model answers a sampling request as its text says.
type model struct {
	asked   atomic.Int32
	release chan struct{}      // closed to have "wait" answer
	stopped chan struct{}      // receives when a "wait" was cancelled
	meta    chan mcp.Meta      // of each "wait"
	speak   chan func(float64) // of each "wait": reports progress
}

func newModel() *model {
	return &model{release: make(chan struct{}), stopped: make(chan struct{}, 100), meta: make(chan mcp.Meta, 100), speak: make(chan func(float64), 100)}
}

func (m *model) sample(ctx context.Context, req *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
	m.asked.Add(1)
	said := req.Params.Messages[0].Content.(*mcp.TextContent).Text
	switch said {
	case "error":
		return nil, &jsonrpc.Error{Code: -32050, Message: "no model", Data: json.RawMessage(`{"n":1.50}`)}
	case "wait":
		m.meta <- req.Params.Meta
		m.speak <- func(progress float64) {
			_ = req.Session.NotifyProgress(context.WithoutCancel(ctx), &mcp.ProgressNotificationParams{ // that it is not heard is seen there
				ProgressToken: req.Params.GetProgressToken(), Progress: progress, Total: 2})
		}
		select {
		case <-m.release:
		case <-ctx.Done():
			m.stopped <- struct{}{}
			<-m.release // it takes its time
			return nil, ctx.Err()
		}
	}
	return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: said + "! <é>"}}, nil
}

// stage is a host, and what servers it is connected to.
type stage struct {
	*testing.T
	*model
	host *client.Host
	way  func(*testing.T) *requesting
}

// connect connects the client to a server of that name. The client leaves with the test, or
// earlier.
func (s *stage) connect(name string) (r *requesting, leave func()) {
	s.Helper()
	r = s.way(s.T)
	c := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ClientOptions{CreateMessageHandler: s.sample, ElicitationHandler: accept})
	session, err := client.Connect(s.Context(), c, r.transport, &client.Options{Host: s.host, Server: name})
	if err != nil {
		s.Fatal(err)
	}
	done := func() {}
	if r.connected != nil {
		done = r.connected(session)
	}
	left := false
	leave = func() {
		if !left {
			left = true
			done()
			_ = session.Close()
		}
	}
	s.Cleanup(leave)
	return r, leave
}

// Part A with the roles exchanged: the server is the requestor, the client the receiver.
func TestHosting(t *testing.T) {
	both := client.HostOptions{Sampling: client.Optional, Elicitation: client.Optional}
	with := func(change func(o *client.HostOptions)) client.HostOptions {
		opts := both
		change(&opts)
		return opts
	}
	for name, test := range map[string]struct {
		opts client.HostOptions
		run  func(s *stage)
	}{
		"capabilities":    {both, hostDeclares},
		"sampling only":   {client.HostOptions{Sampling: client.Optional}, hostOfSampling},
		"required":        {client.HostOptions{Sampling: client.Required}, hostInsists},
		"creation":        {with(func(o *client.HostOptions) { o.MaxTTL, o.PollInterval = time.Hour, 700*time.Millisecond }), hostCreates},
		"result":          {both, hostResult},
		"error":           {both, hostError},
		"cancel":          {both, hostCancels},
		"expiry":          {with(func(o *client.HostOptions) { o.MinRetention = -1 }), hostExpires},
		"progress":        {both, hostProgress},
		"status":          {both, hostTellsStatus},
		"no status":       {with(func(o *client.HostOptions) { o.NoStatusNotifications = true }), hostTellsNoStatus},
		"list":            {both, hostLists},
		"unknown":         {both, hostUnknown},
		"foreign":         {both, hostForeign},
		"another session": {both, hostOtherSession},
	} {
		t.Run(name, func(t *testing.T) {
			for name, way := range ways {
				t.Run(name, func(t *testing.T) {
					opts := test.opts
					opts.Database, opts.Grace = "sqlite:"+filepath.Join(t.TempDir(), "tasks.db"), -1
					host, err := client.OpenHost(t.Context(), &opts)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() {
						if err := host.Close(context.Background()); err != nil {
							t.Error(err)
						}
					})
					test.run(&stage{t, newModel(), host, way})
				})
			}
		})
	}
}
