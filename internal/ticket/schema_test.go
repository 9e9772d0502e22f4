package ticket_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/coatcheck/coatcheck/internal/ticket"
	"github.com/coatcheck/coatcheck/protocol"
)

// schemaCase is one of testdata/schemas.json, which TestAdapted in peers also goes through, with
// the TypeScript SDK's validator.
type schemaCase struct {
	Name            string
	Schema, Adapted json.RawMessage
	Valid, Invalid  []json.RawMessage
	Loose           bool
}

func schemaCases(t testing.TB) []schemaCase {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "schemas.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []schemaCase
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

func TestAdaptSchema(t *testing.T) {
	for _, tc := range schemaCases(t) {
		tool := `{"name":"t","outputSchema":` + string(tc.Schema) + `}`
		want := `{"name":"t","outputSchema":` + string(tc.Adapted) + `}`
		if got := ticket.Adapt([]byte(tool)); string(got) != want {
			t.Errorf("%s:\n got %s\nwant %s", tc.Name, got, want)
		}
	}
}

func TestAdaptKeepsEveryOtherByte(t *testing.T) {
	const schema = `{ "type" : "object" , "required" : [ "a" ] }`
	const adapted = `{"type":"object","anyOf":[{ "type" : "object" , "required" : [ "a" ] },` + answerSchema + `]}`
	for _, tc := range []struct{ tool, want string }{
		{`{"name":"t"}`, ``},
		{`{"name":"t","outputSchema":null}`, ``},
		{`{"name":"t","outputSchema":true}`, ``},
		{`{"name":"t","inputSchema":` + schema + `}`, ``},
		{`[]`, ``},
		{
			` { "name" : "t\u0065",  "outputSchema" : ` + schema + ` , "x":1.0e+2, "icons":[ ] ,"_meta":{"a" :"é"}, "annotations": {"title":"\/"} } `,
			` { "name" : "t\u0065",  "outputSchema" : ` + adapted + ` , "x":1.0e+2, "icons":[ ] ,"_meta":{"a" :"é"}, "annotations": {"title":"\/"} } `,
		},
		// The last of repeated members counts.
		{`{"outputSchema":{"$id":"x"},"outputSchema":` + schema + `}`, `{"outputSchema":{"$id":"x"},"outputSchema":` + adapted + `}`},
		{
			`{"outputSchema":{"$defs":1,"type":"array","$defs":{},"title":"a","type":"object","title":"b"}}`,
			`{"outputSchema":{"type":"object","title":"b","$defs":{},"anyOf":[{"type":"array","type":"object"},` + answerSchema + `]}}`,
		},
		// A type that results of revision 2025-11-25 do not have.
		{`{"outputSchema":{"type":"array"}}`, `{"outputSchema":{"anyOf":[{"type":"array"},` + answerSchema + `]}}`},
		{`{"outputSchema":{}}`, `{"outputSchema":{"anyOf":[{},` + answerSchema + `]}}`},
		{`{"outputSchema":{"$ref":"#/properties/a"}}`, `{"outputSchema":{}}`},
		{`{"outputSchema":{"id":"http://x/y","type":"object"}}`, `{"outputSchema":{"type":"object"}}`}, // draft 4
		{`{"outputSchema":{"type":"object","$dynamicRef":"#a"}}`, `{"outputSchema":{"type":"object"}}`},
		{`{"outputSchema":{"type":"object","items":[[{"$recursiveRef":"#"}]]}}`, `{"outputSchema":{"type":"object"}}`},
		{`{"outputSchema":{"type":"object","items":{"$ref":"other.json"}}}`, `{"outputSchema":{"type":"object"}}`},
		{`{"outputSchema":{"type":"object","items":{"$ref":"#/$defsx/a"}}}`, `{"outputSchema":{"type":"object"}}`},
	} {
		if tc.want == "" {
			tc.want = tc.tool
		}
		if got := ticket.Adapt([]byte(tc.tool)); string(got) != tc.want {
			t.Errorf("Adapt(%s)\n got %s\nwant %s", tc.tool, got, tc.want)
		}
	}
}

const answerSchema = `{"type":"object","properties":{"ticket":{"type":"string"},` +
	`"status":{"type":"string","enum":["working","input_required"]},"message":{"type":"string"}},` +
	`"required":["ticket","status","message"]}`

// FuzzAdapt checks that an adapted tool differs in its outputSchema only, that what is valid
// against the original schema stays so, and that a ticket is.
func FuzzAdapt(f *testing.F) {
	for _, tc := range schemaCases(f) {
		f.Add([]byte(`{"name":"t","outputSchema":` + string(tc.Schema) + `}`))
	}
	for _, seed := range []string{
		`{}`, ` { "outputSchema" : { } } `, `{"outputSchema":[`, `{"outputSchema":{"$defs":{"$ref":"#"},"$defs":1}}`,
		`{"outputSchema":{"type":["object","null"],"not":{"$ref":"#/definitions/a"},"definitions":{"a":false}}}`,
		`{"outputSchema":{"type":"object","unevaluatedProperties":false,"$ref":"#/$defs/a","$defs":{"a":{"properties":{"a":{}}}}}}`,
	} {
		f.Add([]byte(seed))
	}
	instances := []any{
		map[string]any{}, map[string]any{"a": 1.0}, map[string]any{"sum": 1.0}, map[string]any{"title": "t"},
		map[string]any{"x": 1.0}, map[string]any{"a": "x", "b": "y"}, map[string]any{"children": []any{map[string]any{}}},
		[]any{}, "x", 1.0, true, nil,
	}
	var answer any = map[string]any{}
	result := ticket.NamesFor(0, true).Waiting(ticket.State{Ticket: "T", Running: time.Second}, true)
	if err := json.Unmarshal(protocol.Get(result, "structuredContent"), &answer); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, tool []byte) {
		adapted := ticket.Adapt(tool) // never panics
		if protocol.Valid(tool) != nil {
			return
		}
		if !json.Valid(adapted) {
			t.Fatalf("malformed: %s", adapted)
		}
		original := protocol.Get(tool, "outputSchema")
		if _, err := protocol.Members(original); err != nil {
			if string(adapted) != string(tool) {
				t.Fatalf("changed: %s", adapted)
			}
			return
		}
		if back, err := protocol.Set(adapted, "outputSchema", original); err != nil || string(back) != string(tool) {
			t.Fatalf("other bytes changed: %s, %v", adapted, err)
		}
		before := resolve(original)
		if before == nil {
			return
		}
		after := resolve(protocol.Get(adapted, "outputSchema"))
		if after == nil {
			t.Fatalf("no schema any more: %s", adapted)
		}
		if err := after.Validate(answer); err != nil {
			t.Fatalf("a ticket is not valid: %v\n%s", err, adapted)
		}
		for _, instance := range instances {
			if before.Validate(instance) == nil && after.Validate(instance) != nil {
				t.Fatalf("%v was valid and is not: %s", instance, adapted)
			}
		}
	})
}

// refs matches names, and references to other than definitions.
var refs = regexp.MustCompile(`"\$(id|anchor|dynamicAnchor|dynamicRef)"|"\$ref":"#([^/]|"|/[^$d])|"\$ref":"[^#]|"\$ref":""`)

// resolve returns a schema ready to validate, or nil if it is none, or none that the validator of
// the test takes.
func resolve(schema json.RawMessage) *jsonschema.Resolved {
	var s jsonschema.Schema
	var plain any
	if json.Unmarshal(schema, &s) != nil || json.Unmarshal(schema, &plain) != nil {
		return nil
	}
	// The validator takes "Title" for "title"; JSON Schema does not.
	spelt := string(protocol.Marshal(plain))
	folded := strings.ToLower(strings.ToUpper(spelt))
	for _, key := range []string{`"type"`, `"$schema"`, `"title"`, `"description"`, `"$defs"`, `"definitions"`, `"$ref"`, `"$id"`} {
		if strings.Count(folded, key) != strings.Count(spelt, key) {
			return nil
		}
	}
	switch s.Schema {
	case "", "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema":
	default:
		return nil
	}
	// References that may go round have the validator overflow its stack.
	rest := s
	rest.Defs, rest.Definitions = nil, nil
	defs, outside := string(protocol.Marshal([]any{s.Defs, s.Definitions})), string(protocol.Marshal(&rest))
	if strings.Contains(defs, `"$ref"`) || refs.MatchString(outside) {
		return nil
	}
	resolved, err := s.Resolve(nil) // without a loader: nothing is fetched
	if err != nil {
		return nil
	}
	return resolved
}
