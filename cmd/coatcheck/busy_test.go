package main

import (
	"errors"
	"os"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/protocol"
)

// A call that is refused for a limit says when to try again; it did not fail.
func TestBusy(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, c := range []struct {
		data string
		json bool
		says string
	}{
		{`{"limit":"creates","retryAfterMs":1001}`, false, "busy, try again in 2 s"},
		{`{"limit":"queued","retryAfterMs":1}`, false, "busy, try again in 1 s"},
		{`{"limit":"creates","retryAfterMs":1001}`, true, ""}, // as it came
		{`{"limit":"tasks"}`, false, ""},                      // waiting does not help
	} {
		refused := &jsonrpc.Error{Code: protocol.CodeLimitExceeded, Message: "too many", Data: []byte(c.data)}
		err := (&callCmd{JSON: c.json}).refused(streams{out: null, err: null}, refused)
		exit, ok := errors.AsType[*exitError](err)
		if !ok || exit.code != codeOther {
			t.Errorf("%s: %v", c.data, err)
		} else if c.says != "" && exit.Error() != c.says {
			t.Errorf("%s: %q, want %q", c.data, exit, c.says)
		}
	}
}
