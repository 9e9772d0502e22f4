package main

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/protocol"
)

// TestRefused: what cannot be asked is an error of the request.
func TestRefused(t *testing.T) {
	show, _ := onScreen(t)
	a := newAsker(show, newStatus(show))
	for _, c := range []struct {
		params string
		code   int64
	}{
		{`[]`, protocol.CodeInvalidParams},
		{`{"mode":"voice"}`, protocol.CodeInvalidParams},
		{`{"mode":"url","url":"javascript:alert(1)"}`, protocol.CodeInvalidParams},
		{`{"mode":"url","url":"https://a.example/\u202e"}`, protocol.CodeInvalidParams},
		{`{"requestedSchema":{"properties":{"a":{"type":"null"}}}}`, protocol.CodeInvalidParams},
	} {
		_, err := a.elicit(t.Context(), json.RawMessage(c.params))
		if wire, ok := errors.AsType[*jsonrpc.Error](err); !ok || wire.Code != c.code {
			t.Errorf("%s: %v, want code %d", c.params, err, c.code)
		}
	}
}
