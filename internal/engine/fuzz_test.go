package engine

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store/memory"
	"github.com/coatcheck/coatcheck/task"
)

// What a server reports as progress, whatever it is, becomes a statusMessage that is text and
// bounded, and passes with the requestor's own token or not at all.
func FuzzProgress(f *testing.F) {
	f.Add([]byte(`{"progressToken":"p","progress":3,"total":8,"message":"computing"}`), []byte(`"p"`))
	f.Add([]byte(`{"progressToken":1.0,"progress":1e300,"message":"é"}`), []byte(`1`))
	f.Add([]byte(`{"progressToken":"p","progress":"3"}`), []byte(`"\u0070"`))
	f.Fuzz(func(t *testing.T, params, token []byte) {
		if !json.Valid(params) || !json.Valid(token) {
			return // what is no JSON does not get here
		}
		l := newLive(t.Context(), &task.Task{Status: task.Working}, nil, nil)
		r := &line{engine: &Engine{store: memory.New()}, live: l, token: token}
		passed, ok := r.progress(params)
		if said := l.progress.Load(); said != nil && (len(*said) > 2*maxSaid || !utf8.ValidString(*said)) {
			t.Fatalf("%q became %q", params, *said)
		}
		if ok && (!json.Valid(passed) || string(protocol.Get(passed, "progressToken")) != string(token)) {
			t.Fatalf("%q under %s passed as %q", params, token, passed)
		}
	})
}
