package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
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
	said := req.Params.Messages[0].Content.(*mcp.TextContent).Text
	answer, err := m.answer(ctx, said, req.Params.Meta, func(progress float64) {
		_ = req.Session.NotifyProgress(context.WithoutCancel(ctx), &mcp.ProgressNotificationParams{ // that it is not heard is seen there
			ProgressToken: req.Params.GetProgressToken(), Progress: progress, Total: 2})
	})
	if err != nil {
		return nil, err
	}
	return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: answer}}, nil
}

// call is sample as a tool, which knows some more words.
func (m *model) call(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	var said struct{ Text string }
	if err := json.Unmarshal(req.Params.Arguments, &said); err != nil {
		return nil, err
	}
	switch said.Text {
	case "isError":
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: "out of luck"}}}, nil
	case "panic":
		panic("secret inner detail")
	case "ask":
		answer, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}}}`)})
		if err != nil {
			return nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(answer.Action, " ", answer.Content["n"])}}}, nil
	case "now":
		coatcheck.FromContext(ctx).RespondNow("Working on it.")
		said.Text = "wait"
	}
	answer, err := m.answer(ctx, said.Text, req.Params.Meta, func(progress float64) {
		_ = req.Session.NotifyProgress(context.WithoutCancel(ctx), &mcp.ProgressNotificationParams{
			ProgressToken: req.Params.GetProgressToken(), Progress: progress, Total: 2})
	})
	if err != nil {
		return nil, err
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: answer}}}, nil
}

func (m *model) answer(ctx context.Context, said string, meta mcp.Meta, speak func(float64)) (string, error) {
	m.asked.Add(1)
	switch said {
	case "error":
		return "", &jsonrpc.Error{Code: -32050, Message: "no model", Data: json.RawMessage(`{"n":1.50}`)}
	case "wait":
		m.meta <- meta
		m.speak <- speak
		select {
		case <-m.release:
		case <-ctx.Done():
			m.stopped <- struct{}{}
			<-m.release // it takes its time
			return "", ctx.Err()
		}
	}
	return said + "! <é>", nil
}

// direction says who asks whom.
type direction struct {
	name     string
	declares string // the receiver, of tasks
	insists  int64  // the code of its refusal of a plain request
}

var (
	toServer = &direction{"client to server", `{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}`, -32601}
	toClient = &direction{"server to client", `{"list":{},"cancel":{},"requests":{"sampling":{"createMessage":{}},"elicitation":{"create":{}}}}`, -32600}
)

// limits are the settings of a receiver, of either kind.
type limits struct {
	required, undeclared, noStatus     bool
	immediate                          bool // the answer to a create waits for one
	maxTTL, minRetention, pollInterval time.Duration
}

// stage is a receiver, and the requestors it is connected to.
type stage struct {
	*testing.T
	*model
	limits
	from     *direction
	database string
	way      func(s *stage, principal string) (r *requesting, leave func())
	open     any // what the way keeps for all requestors
}

// connect connects a requestor of that name. It leaves with the test, or earlier.
func (s *stage) connect(name string) (r *requesting, leave func()) {
	s.Helper()
	r, done := s.way(s, name)
	left := false
	leave = func() {
		if !left {
			left = true
			done()
		}
	}
	s.Cleanup(leave)
	return r, leave
}

// hosting connects a client that hosts tasks to a server made by over.
func hosting(over func(*testing.T) *requesting) func(*stage, string) (*requesting, func()) {
	return func(s *stage, name string) (*requesting, func()) {
		host, ok := s.open.(*client.Host)
		if !ok {
			host = openHost(s)
			s.open = host
		}
		r := over(s.T)
		r.method, r.params = protocol.MethodCreateMessage, sampling
		c := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ClientOptions{CreateMessageHandler: s.sample, ElicitationHandler: accept})
		session, err := client.Connect(s.Context(), c, r.transport, &client.Options{Host: host, Server: name})
		if err != nil {
			s.Fatal(err)
		}
		done := func() {}
		if r.connected != nil {
			done = r.connected(session)
		}
		return r, func() {
			done()
			_ = session.Close()
		}
	}
}

func openHost(s *stage) *client.Host {
	s.Helper()
	opts := &client.HostOptions{
		Sampling: client.Optional, Elicitation: client.Optional, Database: s.database, Grace: -1,
		MaxTTL: s.maxTTL, MinRetention: s.minRetention, PollInterval: s.pollInterval, NoStatusNotifications: s.noStatus,
	}
	if s.required {
		opts.Sampling = client.Required
	}
	if s.undeclared {
		opts.Elicitation = client.Forbidden
	}
	host, err := client.OpenHost(s.Context(), opts)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := host.Close(context.Background()); err != nil {
			s.Error(err)
		}
	})
	return host
}

// ways are how a requestor and a receiver are connected.
var ways = []struct {
	name string
	from *direction
	way  func(s *stage, name string) (*requesting, func())
}{
	{"stdio", toServer, callingOverStdio},
	{"http", toServer, callingOverHTTP},
	{"stdio", toClient, hosting(overPipes)},
	{"http", toClient, hosting(func(t *testing.T) *requesting { return overWeb(t).requesting })},
	{"http, on a call's stream", toClient, hosting(func(t *testing.T) *requesting {
		w := overWeb(t)
		w.connected = w.hold
		return w.requesting
	})},
}

// Part A in both directions, over stdio and HTTP: what is requested of a server's tools, and
// what is requested of a client that hosts tasks.
func TestRules(t *testing.T) {
	for _, rule := range []struct {
		name   string
		limits limits
		run    func(s *stage)
		not    map[*direction]string // why it is not run in a direction
	}{
		{"CAP-1 CAP-2 TOOL-3", limits{}, ruleDeclares, nil},
		{"CAP-2 CAP-5", limits{undeclared: true}, ruleUndeclared, map[*direction]string{
			toServer: "a server has one kind of request; what a tool forbids is refused there (TOOL-2, rules_test.go of the root)",
		}},
		{"CAP-6 TOOL-4", limits{required: true}, ruleRequired, nil},
		{"CRE-1 elicitation", limits{}, ruleElicitation, map[*direction]string{toServer: "a server is not elicited"}},
		{"CRE-1 CRE-2 CRE-3 TTL-1 TTL-2 TTL-4", limits{maxTTL: time.Hour, pollInterval: 700 * time.Millisecond}, ruleCreation, nil},
		{"RES-1 RES-2 RES-3 RES-4 GET-1 GET-3 REL-3", limits{}, ruleResult, nil},
		{"EXE-1 EXE-3 RES-1", limits{}, ruleError, nil},
		{"CAN-1 CAN-2 CAN-3 CAN-4", limits{}, ruleCancel, nil},
		{"TTL-3", limits{minRetention: -1}, ruleExpiry, nil},
		{"PROG-1 REL-1 REL-4", limits{}, ruleProgress, nil},
		{"NOT-1 NOT-3", limits{}, ruleStatus, nil},
		{"NOT-1 off", limits{noStatus: true}, ruleNoStatus, nil},
		{"LST-1 LST-2 LST-3", limits{}, ruleList, nil},
		{"ERR-1", limits{}, ruleUnknown, nil},
		{"SEC-1 SEC-2 NOT-1", limits{}, ruleForeign, nil},
		{"a session's end", limits{}, ruleSessionEnds, map[*direction]string{
			toServer: "a tool's task goes on without the session (delivery_test.go of the root); a host's handler is the session's",
		}},
		{"ID-1 SEC-3 REL-2 REL-3", limits{}, ruleID, nil},
		{"EXE-2 EXE-3", limits{}, ruleIsError, map[*direction]string{
			toClient: "what is sampled or elicited has no isError",
		}},
		{"ERR-2", limits{}, rulePanic, map[*direction]string{
			toClient: "the handlers are the host program's, and the SDK lets a panic in them end it; an error of theirs is RES-1's",
		}},
		{"CRE-4", limits{immediate: true}, ruleNow, map[*direction]string{
			toClient: "the immediate response is for a model, which servers do not have",
		}},
		{"INP-1 INP-2 INP-3 INP-4 INP-5 REL-4 FLOW-2", limits{}, ruleInput, map[*direction]string{
			toClient: "a client's handlers ask nobody: no request of a server's leads to another",
		}},
		{"CAP-3 SEC-4", limits{}, nil, map[*direction]string{
			toServer: "needs a server without authorization: rules_test.go of the root",
			toClient: "a host always knows which server asks, and declares both list and cancel",
		}},
		{"GET-4 GET-5", limits{}, nil, map[*direction]string{
			toServer: "what a client drops is cut at every point by delivery_test.go of the root",
			toClient: "a client answers with a POST, and has no streams of its own",
		}},
	} {
		t.Run(rule.name, func(t *testing.T) {
			for _, way := range ways {
				t.Run(way.from.name+", "+way.name, func(t *testing.T) {
					if why := rule.not[way.from]; why != "" {
						t.Skip(why)
					}
					rule.run(&stage{
						T: t, model: newModel(), limits: rule.limits, from: way.from, way: way.way,
						database: "sqlite:" + filepath.Join(t.TempDir(), "tasks.db"),
					})
				})
			}
		})
	}
}
