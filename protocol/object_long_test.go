package protocol_test

import (
	"strings"
	"testing"

	"github.com/coatcheck/coatcheck/protocol"
)

// A text of many lines is one long string with many escapes. Reading it takes time in
// proportion to its length; were it the square, this test would take longer than tests may.
func TestGetPastLongStringWithEscapes(t *testing.T) {
	for _, escape := range []string{`\n`, `\"`, `\\`} {
		data := `{"text":"` + strings.Repeat(escape, 4<<20) + `","isError":true}`
		if got := string(protocol.Get([]byte(data), "isError")); got != "true" {
			t.Errorf("%s: isError is %q", escape, got)
		}
	}
}
