package protocol_test

import (
	"encoding/json"
	"testing"

	"github.com/coatcheck/coatcheck/protocol"
)

func TestParseMessage(t *testing.T) {
	for _, tc := range []struct {
		in             string
		call, response bool
		fails          bool
	}{
		{in: `{"jsonrpc":"2.0","id":1,"method":"ping"}`, call: true},
		{in: `{"jsonrpc":"2.0","id":"a","method":"tasks/get","params":{"taskId":"x"}}`, call: true},
		{in: `{"jsonrpc":"2.0","method":"notifications/x"}`},
		{in: `{"jsonrpc":"2.0","id":null,"method":"ping"}`},
		{in: `{"jsonrpc":"2.0","id":{},"method":"ping"}`},
		{in: `{"jsonrpc":"2.0","id":1,"result":{}}`, response: true},
		{in: `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}`, response: true},
		{in: `{"jsonrpc":"2.0","id":1,"result":{},"error":null}`, response: true},
		{in: `{"jsonrpc":"2.0","id":1,"error":null}`},
		{in: `{"jsonrpc":"2.0","id":1}`},
		{in: `{"jsonrpc":"1.0","id":1,"method":"ping"}`, fails: true},
		{in: `{"id":1,"method":"ping"}`, fails: true},
		{in: `{"jsonrpc":"2.0","id":1,"method":7}`, fails: true},
		{in: `{"jsonrpc":"2.0","id":1,"Method":"tasks/get"}`}, // keys are case sensitive
		{in: `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, fails: true},
		{in: `{"jsonrpc":"2.0"`, fails: true},
		{in: ``, fails: true},
	} {
		m, err := protocol.ParseMessage([]byte(tc.in))
		if (err != nil) != tc.fails {
			t.Errorf("%s: error %v", tc.in, err)
			continue
		}
		if err == nil && (m.IsCall() != tc.call || m.IsResponse() != tc.response) {
			t.Errorf("%s: call %v, response %v", tc.in, m.IsCall(), m.IsResponse())
		}
	}
}

func FuzzParseMessage(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","task":{"ttl":1}}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":"ü","result":{"_meta":{}}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":-1.5e3,"error":{"code":-32602,"message":"m"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := protocol.ParseMessage(data)
		if err != nil {
			return
		}
		for _, raw := range []json.RawMessage{m.ID, m.Params, m.Result, m.Error} {
			if raw != nil && !json.Valid(raw) {
				t.Fatalf("%q: part %q is not valid", data, raw)
			}
		}
		if m.IsCall() {
			answer := protocol.AppendResult(nil, m.ID, json.RawMessage(`{}`))
			if back, err := protocol.ParseMessage(answer); err != nil || !back.IsResponse() || string(back.ID) != string(m.ID) {
				t.Fatalf("%q: answer %q: %v", data, answer, err)
			}
		}
	})
}
