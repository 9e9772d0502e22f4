package receiver_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store/memory"
)

// An operation needs its scopes, all of them, of a requestor that has a token (SEC-1).
func TestScopes(t *testing.T) {
	e, err := engine.New(t.Context(), engine.Options{Store: memory.New(), Runner: instant{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Shutdown(t.Context()) })
	r := receiver.New(receiver.Options{
		Engine: e, Tools: receiver.Tools{Default: protocol.Optional},
		Scopes: map[receiver.Operation]string{receiver.Create: "make", receiver.Read: "see look"},
	})
	calls := []struct{ method, params, needs string }{
		{protocol.MethodToolsCall, `{"name":"x","task":{}}`, "make"},
		{protocol.MethodTasksGet, `{"taskId":"none"}`, "see look"},
		{protocol.MethodTasksResult, `{"taskId":"none"}`, "see look"},
		{protocol.MethodTasksList, `{}`, "see look"},
		{protocol.MethodTasksCancel, `{"taskId":"none"}`, ""},
	}
	for _, has := range []string{"", "make", "see", "look see", "make see look", "MAKE", "no token"} {
		from := &receiver.Requestor{Caller: engine.Caller{Principal: "p", Identified: true}}
		if has != "no token" {
			from.TokenInfo = &auth.TokenInfo{UserID: "p", Scopes: strings.Fields(has)}
		}
		for _, call := range calls {
			may := from.TokenInfo == nil
			if !may {
				may = true
				for name := range strings.FieldsSeq(call.needs) {
					may = may && strings.Contains(" "+has+" ", " "+name+" ")
				}
			}
			m := protocol.NewCall(json.RawMessage("1"), call.method, json.RawMessage(call.params))
			a, err := r.Handle(t.Context(), from, m)
			if err != nil {
				t.Fatal(err)
			}
			refused := string(protocol.Get(a.Error, "code")) == "-32033"
			if refused == may || refused != (a.Scope != "") || a.Scope != "" && (a.Scope != call.needs ||
				string(protocol.Get(a.Error, "data")) != `{"scope":"`+call.needs+`"}`) {
				t.Errorf("%q, %s: %s, scope %q", has, call.method, a.Error, a.Scope)
			}
			if call.method != protocol.MethodTasksResult {
				continue
			}
			if waiting, a := r.Result(t.Context(), from, m); waiting != nil || (a.Scope != "") == may {
				t.Errorf("%q, result: %s, scope %q", has, a.Error, a.Scope)
			}
		}
	}
}
