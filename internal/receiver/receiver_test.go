package receiver_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store/memory"
	"github.com/coatcheck/coatcheck/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type instant struct{}

func (instant) Run(context.Context, *engine.Job) (task.Outcome, error) {
	return task.Outcome{Result: json.RawMessage(`{"content":[]}`)}, nil
}

func newReceiver(t testing.TB, tools receiver.Tools) *receiver.Receiver {
	e, err := engine.New(context.Background(), engine.Options{Store: memory.New(), Runner: instant{}, Limits: limit.Off()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Shutdown(context.Background()) })
	return receiver.New(receiver.Options{Engine: e, Tools: tools, Limits: limit.Off()})
}

func TestDeclareTools(t *testing.T) {
	r := newReceiver(t, receiver.Tools{
		Default: protocol.Optional,
		ByName:  map[string]protocol.TaskSupport{"off": protocol.Forbidden, "must": protocol.Required},
	})
	for _, tc := range []struct{ in, want string }{
		{`{"tools":[]}`, `{"tools":[]}`},
		{`{"tools":[{"name":"a","x":1.0}],"nextCursor":"c"}`, `{"tools":[{"name":"a","x":1.0,"execution":{"taskSupport":"optional"}}],"nextCursor":"c"}`},
		{`{"tools":[{"name":"off"},{"name":"must"}]}`, `{"tools":[{"name":"off"},{"name":"must","execution":{"taskSupport":"required"}}]}`},
		{`{"tools":[{"name":"a","execution":{"taskSupport":"required","y":2}}]}`, `{"tools":[{"name":"a","execution":{"taskSupport":"required","y":2}}]}`},
		{`{"tools":[{"name":"off","execution":{"taskSupport":"required","y":2}}]}`, `{"tools":[{"name":"off","execution":{"taskSupport":"forbidden","y":2}}]}`},
		{`{"tools":[{"name":"a","execution":{"taskSupport":"forbidden"}}]}`, `{"tools":[{"name":"a","execution":{"taskSupport":"optional"}}]}`},
		{`{"tools":[{"name":"a","execution":null},7,{"title":"no name"}]}`, `{"tools":[{"name":"a","execution":{"taskSupport":"optional"}},7,{"title":"no name"}]}`},
		{`{"tools":7}`, `{"tools":7}`},
		{`[]`, `[]`},
	} {
		if got := r.DeclareTools(json.RawMessage(tc.in)); string(got) != tc.want {
			t.Errorf("%s\ngot  %s\nwant %s", tc.in, got, tc.want)
		}
	}
}

func TestNegotiate(t *testing.T) {
	r := newReceiver(t, receiver.Tools{Default: protocol.Optional})
	for _, tc := range []struct {
		in, want   string
		identified bool
		tasks      bool
	}{
		{`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"x":1.0}`,
			`{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}},"x":1.0}`, false, true}, // SEC-4
		{`{"protocolVersion":"2025-11-25","capabilities":{"tasks":{"list":{}}}}`,
			`{"protocolVersion":"2025-11-25","capabilities":{"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}}}`, true, true},
		{`{"protocolVersion":"2025-11-25"}`,
			`{"protocolVersion":"2025-11-25","capabilities":{"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}}}`, true, true},
		{`{"protocolVersion":"2025-06-18","capabilities":{}}`, `{"protocolVersion":"2025-06-18","capabilities":{}}`, true, false},
		{`{"protocolVersion":"2026-07-28","capabilities":{}}`, `{"protocolVersion":"2026-07-28","capabilities":{}}`, true, false},
		{`7`, `7`, true, false},
	} {
		got, tasks := r.Negotiate(&receiver.Requestor{Caller: engine.Caller{Identified: tc.identified}}, json.RawMessage(tc.in))
		if string(got) != tc.want || tasks != tc.tasks {
			t.Errorf("%s\ngot  %s, %v\nwant %s", tc.in, got, tasks, tc.want)
		}
	}
}

func TestServerSaysRequired(t *testing.T) {
	asked := 0
	r := newReceiver(t, receiver.Tools{
		Default: protocol.Forbidden,
		ByName:  map[string]protocol.TaskSupport{"named": protocol.Optional},
		Server: func(context.Context) (map[string]protocol.TaskSupport, error) {
			asked++
			if asked > 1 {
				return nil, errors.New("unreachable")
			}
			return map[string]protocol.TaskSupport{"theirs": protocol.Required}, nil
		},
	})
	call := func(name string) receiver.Answer {
		m := protocol.NewCall(json.RawMessage("1"), protocol.MethodToolsCall, json.RawMessage(`{"name":"`+name+`","task":{}}`))
		if !r.Takes(m) {
			t.Fatalf("%s was not taken", name)
		}
		a, err := r.Handle(t.Context(), &receiver.Requestor{}, m)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := call("named"); a.Error != nil || asked != 0 {
		t.Errorf("%s, asked %d times", a.Error, asked)
	}
	if a := call("theirs"); a.Error != nil || asked != 1 {
		t.Errorf("%s, asked %d times", a.Error, asked)
	}
	if a := call("other"); a.Error == nil { // TOOL-2
		t.Errorf("%s", a.Result)
	}
}

// FuzzHandle sends anything to every method: it is always answered, with a well-formed
// result or a JSON-RPC error that is the requestor's fault.
func FuzzHandle(f *testing.F) {
	r := newReceiver(f, receiver.Tools{Default: protocol.Optional, ByName: map[string]protocol.TaskSupport{"must": protocol.Required}})
	for _, params := range []string{
		`{}`, `null`, `[]`, `7`, `{"taskId":"x"}`, `{"taskId":{}}`, `{"cursor":"AAAA"}`, `{"cursor":1}`,
		`{"name":"x","task":{"ttl":1e400}}`, `{"name":"x","task":{"ttl":-0}}`, `{"name":"must"}`,
		`{"name":"x","task":{},"_meta":{"coatcheck/idempotency-key":"k"}}`, `{"name":"x","task":{},"task":7}`, ``,
	} {
		for method := range uint8(5) {
			f.Add(method, []byte(params))
		}
	}
	methods := []string{protocol.MethodTasksGet, protocol.MethodTasksResult, protocol.MethodTasksCancel, protocol.MethodTasksList, protocol.MethodToolsCall}
	f.Fuzz(func(t *testing.T, method uint8, params []byte) {
		if len(params) > 0 && protocol.Valid(params) != nil {
			return
		}
		m := protocol.NewCall(json.RawMessage(`"id"`), methods[int(method)%len(methods)], params)
		if !r.Takes(m) {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		a, err := r.Handle(ctx, &receiver.Requestor{Caller: engine.Caller{Identified: true}}, m)
		if err != nil {
			t.Fatal(err)
		}
		back, err := protocol.ParseMessage(a.Append(nil, m.ID))
		if err != nil || !back.IsResponse() {
			t.Fatalf("%s %s was answered %s: %v", m.Method, params, a.Append(nil, m.ID), err)
		}
		if a.Error != nil {
			switch code := string(protocol.Get(a.Error, "code")); code {
			case "-32602", "-32601":
			default:
				t.Fatalf("%s %s was answered %s", m.Method, params, a.Error)
			}
		}
	})
}
