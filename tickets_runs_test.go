package coatcheck_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/protocol"
)

// scripted is a tool whose runs a test begins and ends.
type scripted struct {
	name       string
	brief      bool // its patience; others wait a minute
	repeatable bool // it says so
	cancel     bool // its work is cancelled when the reply is lost
	required   bool // it runs as a task only
}

// GoString is what rapid shows.
func (s *scripted) GoString() string { return s.name }

var scriptedTools = []*scripted{
	{name: "quick", brief: true},
	{name: "slow"},
	{name: "look", brief: true, repeatable: true},
	{name: "peek", repeatable: true},
	{name: "drop", cancel: true},
	{name: "must", brief: true, required: true},
	{name: "wants", required: true},
}

func scriptedTickets(reattach time.Duration) coatcheck.Tickets {
	tickets := coatcheck.Tickets{
		Mode: coatcheck.TicketsAuto, Patience: time.Minute, Heartbeat: 10 * time.Millisecond, Reattach: reattach,
		ByName: map[string]coatcheck.TicketTool{},
	}
	for _, tool := range scriptedTools {
		own := coatcheck.TicketTool{CancelLost: tool.cancel}
		if tool.brief {
			own.Patience = 20 * time.Millisecond
		}
		tickets.ByName[tool.name] = own
	}
	return tickets
}

func scriptedSupport() map[string]protocol.TaskSupport {
	support := map[string]protocol.TaskSupport{}
	for _, tool := range scriptedTools {
		if tool.required {
			support[tool.name] = protocol.Required
		}
	}
	return support
}

// metaCall, in the _meta of a call, names it: so a run knows of which call it is.
const metaCall = "coatcheck.test/call"

// office is where the runs of scripted tools report, of all processes, and are told what to do.
// What it knows is what happened: it outlives the servers under test.
type office struct {
	web *httptest.Server

	mu      sync.Mutex
	changed chan struct{} // closed and made anew with each run
	runs    []*run        // in the order in which they began
}

// run is one run of a scripted tool: a side effect.
type run struct {
	call        int // the one that caused it
	tool, label string
	orders      chan order
	stopped     chan struct{} // closed when it was stopped, or its process is gone, before it ended
}

// order is what a run is told: to report progress, or to end.
type order struct {
	Progress float64 `json:",omitempty"`
	Text     string
	IsError  bool `json:",omitempty"`
	Refuse   bool `json:",omitempty"` // with a JSON-RPC error
}

// result and refusal are what the server answers when it is told to end; one of them is nil.
func (o order) answer() (result, refusal json.RawMessage) {
	if o.Refuse {
		return nil, fmt.Appendf(nil, `{"code":-32050,"message":%q,"data":{"z":1.0,"a":[]}}`, o.Text)
	}
	if o.IsError {
		return fmt.Appendf(nil, `{"content":[{"type":"text","text":%q}],"isError":true}`, o.Text), nil
	}
	return fmt.Appendf(nil, `{"content":[{"type":"text","text":%q}]}`, o.Text), nil
}

func newOffice() *office {
	o := &office{changed: make(chan struct{})}
	o.web = httptest.NewServer(o)
	return o
}

// ServeHTTP takes the report of a run that begins, and gives it orders.
func (o *office) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	call, err := strconv.Atoi(req.FormValue("call"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r := &run{call: call, tool: req.FormValue("tool"), label: req.FormValue("label"), orders: make(chan order, 64), stopped: make(chan struct{})}
	o.mu.Lock()
	o.runs = append(o.runs, r)
	close(o.changed)
	o.changed = make(chan struct{})
	o.mu.Unlock()
	w.WriteHeader(http.StatusOK)
	for {
		_ = http.NewResponseController(w).Flush()
		select {
		case next := <-r.orders:
			_, _ = w.Write(protocol.Marshal(next))
			if next.Progress == 0 {
				return
			}
		case <-req.Context().Done():
			close(r.stopped)
			return
		}
	}
}

// of returns the runs of a call, and a channel that is closed when there are more of any.
func (o *office) of(call int) (runs []*run, changed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range o.runs {
		if r.call == call {
			runs = append(runs, r)
		}
	}
	return runs, o.changed
}

func (o *office) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.runs)
}

// release has all runs end.
func (o *office) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range o.runs {
		select {
		case r.orders <- order{Text: "released"}:
		default: // it was told enough
		}
	}
}

func (o *office) close() {
	o.web.CloseClientConnections()
	o.web.Close()
}

// newScriptedServer returns a server whose runs report to an office.
func newScriptedServer(officeURL string) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "scripted", Version: "1"}, nil)
	for _, tool := range scriptedTools {
		described := &mcp.Tool{Name: tool.name, InputSchema: json.RawMessage(`{"type":"object"}`)}
		if tool.repeatable {
			described.Annotations = &mcp.ToolAnnotations{IdempotentHint: true}
		}
		server.AddTool(described, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return obey(ctx, req, officeURL)
		})
	}
	return server
}

// obey reports a run and does what it is told.
func obey(ctx context.Context, call *mcp.CallToolRequest, officeURL string) (*mcp.CallToolResult, error) {
	var arguments struct{ Label string }
	if err := json.Unmarshal(call.Params.Arguments, &arguments); err != nil {
		return nil, err
	}
	report := url.Values{"tool": {call.Params.Name}, "label": {arguments.Label}, "call": {fmt.Sprint(call.Params.Meta[metaCall])}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, officeURL+"?"+report.Encode(), nil)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	for orders := json.NewDecoder(resp.Body); ; {
		var next order
		switch err := orders.Decode(&next); {
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		case next.Progress > 0:
			if token := call.Params.GetProgressToken(); token != nil {
				_ = call.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: next.Progress, Message: next.Text})
			}
		case next.Refuse:
			_, refusal := next.answer()
			var wire jsonrpc.Error
			if err := json.Unmarshal(refusal, &wire); err != nil {
				return nil, err
			}
			return nil, &wire
		default:
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: next.Text}}, IsError: next.IsError}, nil
		}
	}
}
