package form

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// everything has every kind of field there is in revision 2025-11-25.
const everything = `{"type":"object","properties":{
	"name":{"type":"string","title":"Your name","description":"as on the ticket","minLength":2,"maxLength":5,"default":"Zoë"},
	"mail":{"type":"string","format":"email"},
	"site":{"type":"string","format":"uri"},
	"day":{"type":"string","format":"date"},
	"at":{"type":"string","format":"date-time"},
	"code":{"type":"string","pattern":"^[A-Z]{3}$"},
	"share":{"type":"number","minimum":0,"maximum":1.5},
	"count":{"type":"integer","minimum":1,"default":3},
	"sure":{"type":"boolean","default":false},
	"colour":{"type":"string","enum":["r","g"],"enumNames":["Red"],"default":"g"},
	"size":{"type":"string","oneOf":[{"const":"s","title":"Small"},{"const":"l","title":"Large"}]},
	"days":{"type":"array","items":{"type":"string","enum":["mo","tu"]},"maxItems":1},
	"extras":{"type":"array","minItems":1,"items":{"anyOf":[{"const":"a","title":"A"},{"const":"b","title":"B"}]},"default":["b"]}
},"required":["name","count","sure"]}`

func parse(t testing.TB, schema string) *Form {
	t.Helper()
	f, err := Parse(json.RawMessage(schema))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestParse(t *testing.T) {
	var got []string
	for _, f := range parse(t, everything).Fields {
		got = append(got, fmt.Sprintf("%s kind=%d required=%v default=%s: %s; %s", f.Label(), f.Kind, f.Required, f.Default, f.Takes(), f.Limits()))
	}
	want := []string{
		`Your name kind=0 required=true default="Zoë": a text; at least 2 characters, at most 5 characters`,
		`mail kind=0 required=false default=: an email address; `,
		`site kind=0 required=false default=: a URI such as https://example.com/; `,
		`day kind=0 required=false default=: a date such as 2025-11-25; `,
		`at kind=0 required=false default=: a date and time such as 2025-11-25T08:30:00Z; `,
		`code kind=0 required=false default=: a text; pattern ^[A-Z]{3}$`,
		`share kind=1 required=false default=: a number; at least 0, at most 1.5`,
		`count kind=2 required=true default=3: a whole number; at least 1`,
		`sure kind=3 required=true default=false: true or false; `,
		`colour kind=4 required=false default="g": one of "r" (Red), "g"; `,
		`size kind=4 required=false default=: one of "s" (Small), "l" (Large); `,
		`days kind=5 required=false default=: some of "mo", "tu"; at most 1`,
		`extras kind=5 required=false default=["b"]: some of "a" (A), "b" (B); at least 1`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseRefuses(t *testing.T) {
	var many, options strings.Builder
	for i := range maxFields + 1 {
		fmt.Fprintf(&many, `,"f%d":{"type":"string"}`, i)
	}
	for range maxOptions + 1 {
		options.WriteString(`,"x"`)
	}
	for schema, says := range map[string]string{
		`{`:                                      "malformed JSON",
		`[]`:                                     "not a JSON object",
		`{"type":"array"}`:                       `the schema has type "array", not "object"`,
		`{"properties":3}`:                       "the schema's properties: not a JSON object",
		`{"properties":{"a":3}}`:                 `field "a": its schema: not a JSON object`,
		`{"properties":{"a":{}}}`:                `field "a": type "" cannot be asked for`,
		`{"properties":{"a":{"type":"object"}}}`: `field "a": type "object" cannot be asked for`,
		`{"properties":{"a":{"type":["string","null"]}}}`:                             `field "a": its schema cannot be read`,
		`{"properties":{"a":{"type":"array","items":{}}}}`:                            `field "a": an array of anything but choices`,
		`{"properties":{"a":{"type":"string","enum":[1]}}}`:                           `field "a": its schema cannot be read`,
		`{"properties":{"a":{"type":"string","oneOf":[{}]}}}`:                         `field "a": an option has no const`,
		`{"properties":{"a":{"type":"string"},"a":{"type":"string"}}}`:                `the schema has field "a" twice`,
		`{"properties":{"a":{"type":"string"}},"required":["b"]}`:                     `the schema requires field "b", which it does not have`,
		`{"properties":{"a":{"type":"string"}},"required":"a"}`:                       "the schema's required is no array",
		`{"properties":{"a":{"type":"string","enum":["y"` + options.String() + `]}}}`: "more than 1000 options",
		`{"properties":{` + many.String()[1:] + `}}`:                                  "the schema has 201 fields, more than 200",
	} {
		if _, err := Parse(json.RawMessage(schema)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.80s: %v, want %q", schema, err, says)
		}
	}
	for _, schema := range []string{``, `{}`, `{"type":"object","properties":{}}`} {
		if f := parse(t, schema); len(f.Fields) != 0 {
			t.Errorf("%s: %v", schema, f.Fields)
		}
	}
}

// A default that does not fit is no default; a pattern that Go cannot read is the server's to check.
func TestParseForgives(t *testing.T) {
	f := parse(t, `{"properties":{"a":{"type":"integer","default":"x"},"b":{"type":"string","pattern":"(?=x)"}}}`)
	if f.Fields[0].Default != nil {
		t.Errorf("default %s", f.Fields[0].Default)
	}
	if err := f.Fields[1].Check(json.RawMessage(`"y"`)); err != nil {
		t.Error(err)
	}
}

func TestValue(t *testing.T) {
	f := parse(t, everything)
	field := map[string]Field{}
	for _, each := range f.Fields {
		field[each.Name] = each
	}
	for _, c := range []struct {
		name  string
		typed []string
		want  string // the value, or the error after "!"
	}{
		{"name", []string{"Ann"}, `"Ann"`},
		{"name", []string{"<é>"}, `"<é>"`},
		{"name", nil, "!is required"},
		{"name", []string{""}, "!is required"},
		{"name", []string{"é"}, "!must have at least 2 characters"},
		{"name", []string{"ééééé"}, `"ééééé"`},
		{"name", []string{"éééééé"}, "!must have at most 5 characters"},
		{"name", []string{"a", "b"}, "!takes one value"},
		{"mail", []string{""}, ""},
		{"mail", []string{"a@example.com"}, `"a@example.com"`},
		{"mail", []string{"A <a@example.com>"}, "!must be an email address"},
		{"mail", []string{"example.com"}, "!must be an email address"},
		{"site", []string{"https://example.com/?a=b"}, `"https://example.com/?a=b"`},
		{"site", []string{"example.com"}, "!must be a URI such as https://example.com/"},
		{"day", []string{"2024-02-29"}, `"2024-02-29"`},
		{"day", []string{"2025-02-29"}, "!must be a date such as 2025-11-25"},
		{"at", []string{"2024-02-29T01:02:03.5+01:00"}, `"2024-02-29T01:02:03.5+01:00"`},
		{"at", []string{"2024-02-29"}, "!must be a date and time such as 2025-11-25T08:30:00Z"},
		{"code", []string{"ABC"}, `"ABC"`},
		{"code", []string{"ABCD"}, "!must match the pattern ^[A-Z]{3}$"},
		{"share", []string{" 1.50 "}, `1.50`},
		{"share", []string{"+1e0"}, `1e0`},
		{"share", []string{"-0.1"}, "!must be at least 0"},
		{"share", []string{"2"}, "!must be at most 1.5"},
		{"share", []string{"1e999"}, "!must be a number"},
		{"share", []string{"0x1"}, "!must be a number"},
		{"share", []string{"NaN"}, "!must be a number"},
		{"share", []string{`"1"`}, "!must be a number"},
		{"count", []string{"12345678901234567890"}, "12345678901234567890"},
		{"count", []string{"1.0"}, "!must be a whole number"},
		{"count", []string{"-"}, "!must be a whole number"},
		{"count", []string{"0"}, "!must be at least 1"},
		{"sure", []string{"Yes"}, "true"},
		{"sure", []string{"false"}, "false"},
		{"sure", []string{"perhaps"}, "!must be true or false"},
		{"colour", []string{"r"}, `"r"`},
		{"colour", []string{"Red"}, `!must be one of "r" (Red), "g"`},
		{"size", []string{"l"}, `"l"`},
		{"size", []string{""}, ""},
		{"days", []string{"mo"}, `["mo"]`},
		{"days", []string{"mo", "tu"}, "!choose at most 1"},
		{"days", []string{"we"}, `!must be some of "mo", "tu"`},
		{"extras", []string{"b", "a"}, `["b","a"]`},
		{"extras", []string{"b", "b"}, `!has "b" twice`},
		{"extras", nil, ""},
	} {
		value, err := field[c.name].Value(c.typed...)
		got := string(value)
		if err != nil {
			got = "!" + err.Error()
		}
		if got != c.want {
			t.Errorf("%s %q: %s, want %s", c.name, c.typed, got, c.want)
		}
	}
	chosen := parse(t, `{"properties":{"a":{"type":"array","items":{"enum":["x"]}}},"required":["a"]}`).Fields[0]
	if value, err := chosen.Value(); string(value) != "[]" || err != nil {
		t.Errorf("a required array with nothing chosen: %s, %v", value, err)
	}
}

func TestContent(t *testing.T) {
	f := parse(t, everything)
	values := make([]json.RawMessage, len(f.Fields))
	for i, field := range f.Fields {
		var err error
		if values[i], err = field.Value(field.Typed(field.Default)...); err != nil {
			t.Errorf("%s: %v", field.Name, err)
		}
	}
	content := f.Content(values)
	if want := `{"name":"Zoë","count":3,"sure":false,"colour":"g","extras":["b"]}`; string(content) != want {
		t.Errorf("content %s, want %s", content, want)
	}
	if err := f.Check(content); err != nil {
		t.Error(err)
	}
}

func TestCheck(t *testing.T) {
	f := parse(t, everything)
	for content, says := range map[string]string{
		`{"name":"Ann","count":2,"sure":true,"days":[]}`: "",
		`{"name":"Ann","count":2.0,"sure":true}`:         "",
		`{"name":"Ann","count":2.5,"sure":true}`:         `field "count": must be a whole number`,
		`{"name":"Ann","count":null,"sure":true}`:        `field "count": must be a whole number`,
		`{"name":5,"count":2,"sure":true}`:               `field "name": must be a text`,
		`{"name":"Ann","count":2,"sure":"true"}`:         `field "sure": must be true or false`,
		`{"name":"Ann","count":2}`:                       `field "sure" is missing`,
		`{"name":"Ann","name":"Bob"}`:                    `the content has field "name" twice`,
		`{"days":"mo"}`:                                  `field "days": must be some of "mo", "tu"`,
		`{"extras":[]}`:                                  `field "extras": choose at least 1`,
		`{"nam":"x"}`:                                    `there is no field "nam"; the form has "name", "mail"`,
		`[]`:                                             "not a JSON object",
		`{`:                                              "malformed JSON",
	} {
		err := f.Check(json.RawMessage(content))
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", content, err, says)
		}
	}
	if err := (&Form{}).Check(json.RawMessage(`{"a":1}`)); err == nil || !strings.Contains(err.Error(), "the form has none") {
		t.Errorf("a form without fields: %v", err)
	}
}

// FuzzParse: no schema makes it fail but with an error, and what Value accepts fits.
func FuzzParse(f *testing.F) {
	f.Add([]byte(everything), "Ann", []byte(`{"name":"Ann","count":2,"sure":true}`))
	f.Add([]byte(`{"properties":{"a":{"type":"array","items":{"anyOf":[{"const":"x","title":"X"}]},"minItems":1}}}`), "x", []byte(`{"a":["x"]}`))
	f.Add([]byte(`{"properties":{"a":{"type":"string","pattern":"(a+)+$","format":"date-time"}},"required":["a"]}`), "2025-11-25T08:30:00Z", []byte(`{}`))
	f.Add([]byte(`{"properties":{"n":{"type":"number","minimum":-1e308,"maximum":1e308,"default":0}}}`), "-1e5", []byte(`{"n":1e400}`))
	f.Fuzz(func(t *testing.T, schema []byte, typed string, content []byte) {
		form, err := Parse(schema)
		if err != nil {
			return
		}
		_ = form.Check(content)
		values := make([]json.RawMessage, len(form.Fields))
		missing := false
		for i, field := range form.Fields {
			_, _, _ = field.Takes(), field.Limits(), field.Label()
			if field.Default != nil {
				if err := field.Check(field.Default); err != nil {
					t.Errorf("%s: its default %s does not fit: %v", field.Name, field.Default, err)
				}
			}
			if values[i], err = field.Value(typed); err != nil {
				values[i] = nil
				missing = missing || field.Required
			}
		}
		if err := form.Check(form.Content(values)); err != nil && !missing {
			t.Errorf("%s: %s, made of values that fit: %v", schema, form.Content(values), err)
		}
	})
}
