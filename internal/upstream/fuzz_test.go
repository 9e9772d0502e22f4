//go:build unix

package upstream

import (
	"encoding/json"
	"testing"

	"github.com/coatcheck/coatcheck/protocol"
)

func FuzzToolsPage(f *testing.F) {
	f.Add([]byte(`{"tools":[{"name":"a","execution":{"taskSupport":"required"}},{"name":"b"}],"nextCursor":"c"}`))
	f.Add([]byte(`{"tools":[7,{"name":null},{"name":"a","execution":[]}],"nextCursor":3}`))
	f.Add([]byte(`{"tools":{}}`))
	f.Fuzz(func(t *testing.T, result []byte) {
		if !json.Valid(result) {
			return // what is no JSON does not get here
		}
		byName, names, next, err := toolsOn(result)
		if err != nil {
			return
		}
		if next != nil && !json.Valid(next) {
			t.Fatalf("%q: cursor %q", result, next)
		}
		known := map[string]bool{}
		for _, name := range names {
			known[name] = true
		}
		for name, support := range byName {
			if !known[name] || support != protocol.Optional && support != protocol.Required {
				t.Fatalf("%q: %s is %s", result, name, support)
			}
		}
	})
}
