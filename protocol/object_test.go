package protocol_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/coatcheck/coatcheck/protocol"
)

func TestSetKeepsEveryOtherByte(t *testing.T) {
	for _, tc := range []struct{ in, key, value, want string }{
		{`{}`, "a", `1`, `{"a":1}`},
		{` { } `, "a", `1`, ` { "a":1} `},
		{`{"b" : 1.0e+2 ,"c":"é\u00e9"}`, "a", `{}`, `{"b" : 1.0e+2 ,"c":"é\u00e9","a":{}}`},
		{`{ "a" : [1, 2] , "b":2}`, "a", `null`, `{ "a" : null , "b":2}`},
		{`{"a":1,"a":2}`, "a", `3`, `{"a":1,"a":3}`}, // the last one counts
		{`{"\u0061":1}`, "a", `2`, `{"\u0061":2}`},
		{`{"x":"a}\",\"a\":1"}`, "a", `2`, `{"x":"a}\",\"a\":1","a":2}`},
	} {
		got, err := protocol.Set([]byte(tc.in), tc.key, []byte(tc.value))
		if err != nil || string(got) != tc.want {
			t.Errorf("Set(%s, %s) = %s, %v; want %s", tc.in, tc.key, got, err, tc.want)
		}
	}
}

func TestDelete(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{`{}`, `{}`},
		{`{"k":1}`, `{}`},
		{`{"k":1,"b":2}`, `{"b":2}`},
		{`{"a":1 , "k":{"k":1}, "b":[2]}`, `{"a":1, "b":[2]}`},
		{`{"a":1,"k":2,"k":3}`, `{"a":1}`},
		{`{"k":0,"a":1,"k":2,"b":3}`, `{"a":1,"b":3}`},
		{`{"a":{"k":1}}`, `{"a":{"k":1}}`},
	} {
		got, err := protocol.Delete([]byte(tc.in), "k")
		if err != nil || string(got) != tc.want {
			t.Errorf("Delete(%s) = %s, %v; want %s", tc.in, got, err, tc.want)
		}
	}
}

func TestSetMeta(t *testing.T) {
	value := protocol.RelatedTask("T1")
	for _, tc := range []struct{ in, want string }{
		{`{"content":[]}`, `{"content":[],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"T1"}}}`},
		{`{"_meta":{"x":1},"b":2}`, `{"_meta":{"x":1,"io.modelcontextprotocol/related-task":{"taskId":"T1"}},"b":2}`},
		{`{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"other"}}}`, `{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"T1"}}}`},
		{`{"_meta":null}`, `{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"T1"}}}`},
	} {
		got, err := protocol.SetMeta([]byte(tc.in), protocol.MetaRelatedTask, value)
		if err != nil || string(got) != tc.want {
			t.Errorf("SetMeta(%s) = %s, %v; want %s", tc.in, got, err, tc.want)
		}
	}
}

func TestMapElements(t *testing.T) {
	double := func(el json.RawMessage) (json.RawMessage, error) {
		return append(append(json.RawMessage{}, el...), el...), nil
	}
	got, err := protocol.MapElements([]byte(` [ 1 ,"]", {"a":[2]}]`), double)
	if want := ` [ 11 ,"]""]", {"a":[2]}{"a":[2]}]`; err != nil || string(got) != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	if _, err := protocol.MapElements([]byte(`{}`), double); err == nil {
		t.Error("an object was taken for an array")
	}
}

func TestValidBoundsNesting(t *testing.T) {
	deep := func(n int) []byte { return []byte(strings.Repeat("[", n) + strings.Repeat("]", n)) }
	if err := protocol.Valid(deep(protocol.MaxDepth)); err != nil {
		t.Error(err)
	}
	if err := protocol.Valid(deep(protocol.MaxDepth + 1)); !errors.Is(err, protocol.ErrTooDeep) {
		t.Error(err)
	}
	if err := protocol.Valid([]byte(strings.Repeat("[", 1<<20))); !errors.Is(err, protocol.ErrTooDeep) {
		t.Error("unclosed nesting:", err)
	}
	if err := protocol.Valid([]byte(`{"a":"` + strings.Repeat("[", 2000) + `"}`)); err != nil {
		t.Error("brackets in a string:", err)
	}
}

// FuzzObject compares the object editing with encoding/json.
func FuzzObject(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"a":1}`, ` {"k" : [1,{"k":2}] , "a":"\"}" }`, `{"k":1,"k":2}`, `{"_meta":{"k":null}}`,
		`[1]`, `"x"`, `{"\ud800":1}`, `{"a":1e400}`, "{\"\xff\":1}", `{"\u006b":0}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if protocol.Valid(data) != nil {
			return
		}
		members, err := protocol.Members(data)
		var want map[string]json.RawMessage
		if isObject := json.Unmarshal(data, &want) == nil && want != nil; isObject != (err == nil) {
			t.Fatalf("Members(%q): %v, but encoding/json says object is %v", data, err, isObject)
		}
		if err != nil {
			return
		}
		got := map[string]json.RawMessage{}
		for _, m := range members {
			got[m.Key] = m.Value
		}
		same(t, data, got, want)

		set, err := protocol.Set(data, "k", []byte(`[true]`))
		if err != nil {
			t.Fatal(err)
		}
		want["k"] = json.RawMessage(`[true]`)
		var after map[string]json.RawMessage
		if err := json.Unmarshal(set, &after); err != nil {
			t.Fatalf("Set(%q) = %q: %v", data, set, err)
		}
		same(t, data, after, want)

		deleted, err := protocol.Delete(data, "k")
		if err != nil {
			t.Fatal(err)
		}
		delete(want, "k")
		after = nil
		if err := json.Unmarshal(deleted, &after); err != nil {
			t.Fatalf("Delete(%q) = %q: %v", data, deleted, err)
		}
		same(t, data, after, want)
	})
}

func same(t *testing.T, data []byte, got, want map[string]json.RawMessage) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%q: got %d members, want %d", data, len(got), len(want))
	}
	for key, value := range want {
		if !bytes.Equal(bytes.TrimSpace(got[key]), bytes.TrimSpace(value)) {
			t.Fatalf("%q: member %q is %q, want %q", data, key, got[key], value)
		}
	}
}
