package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseArguments(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, `{}`},
		{[]string{"label=mine", "seconds:=5"}, `{"label":"mine","seconds":5}`},
		{[]string{"a=b:=c", "empty=", "n=5"}, `{"a":"b:=c","empty":"","n":"5"}`},
		{[]string{`o:={"k": [1.0, 1e3, 12345678901234567890]}`}, `{"o":{"k": [1.0, 1e3, 12345678901234567890]}}`},
		{[]string{`q="quoted"`, "ü=😀"}, `{"q":"\"quoted\"","ü":"😀"}`},
		{[]string{"equation=x=1"}, `{"equation":"x=1"}`},
	} {
		got, err := parseArguments(c.args)
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
		} else if string(got) != c.want {
			t.Errorf("%q: %s, want %s", c.args, got, c.want)
		}
	}
}

func TestParseArgumentsRefuses(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"word"}, "write key=value"},
		{[]string{"=x"}, "the key is missing"},
		{[]string{":=1"}, "the key is missing"},
		{[]string{"seconds:=5s"}, "for a text write seconds=5s"},
		{[]string{"seconds:="}, "malformed JSON"},
		{[]string{"a=1", "a:=2"}, "a was given before"},
		{[]string{"a=\xff"}, "not UTF-8"},
		{[]string{"deep:=" + strings.Repeat("[", 2000) + strings.Repeat("]", 2000)}, "nested too deeply"},
	} {
		if got, err := parseArguments(c.args); err == nil {
			t.Errorf("%q: %s, want an error that says %q", c.args, got, c.says)
		} else if !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %q, want an error that says %q", c.args, err, c.says)
		}
	}
}

// FuzzParseArguments checks that what is accepted is an object with exactly the keys and
// values that were written.
func FuzzParseArguments(f *testing.F) {
	for _, seed := range []string{"a=b", "a:=1", `a:={"b":[null]}`, "a=b:=c", ":=", "=", "ü=\u2028<>&", "a:=\"\xff\"", `"=\`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		object, err := parseArguments([]string{arg})
		if err != nil {
			return
		}
		var got map[string]json.RawMessage
		if err := json.Unmarshal(object, &got); err != nil {
			t.Fatalf("%q became %s: %v", arg, object, err)
		}
		key, value, _ := strings.Cut(arg, "=")
		name, isJSON := strings.CutSuffix(key, ":")
		raw, ok := got[name]
		if !ok || len(got) != 1 {
			t.Fatalf("%q became %s", arg, object)
		}
		if isJSON {
			if want := strings.Trim(value, " \t\r\n"); string(raw) != want {
				t.Errorf("%q became %s", arg, object)
			}
			return
		}
		var text string
		if err := json.Unmarshal(raw, &text); err != nil || text != value {
			t.Errorf("%q became %s", arg, object)
		}
	})
}

func TestSplitCommand(t *testing.T) {
	for line, want := range map[string][]string{
		"npx some-server":                    {"npx", "some-server"},
		"  a\t b \n":                         {"a", "b"},
		`a 'b c' "d e" f\ g`:                 {"a", "b c", "d e", "f g"},
		`a "" ''`:                            {"a", "", ""},
		`a"b"'c'd`:                           {"abcd"},
		`a "\"\\\$\x" '\n'`:                  {"a", `"\$\x`, `\n`},
		`"/path with space/server" --flag=x`: {"/path with space/server", "--flag=x"},
	} {
		got, err := splitCommand(line)
		if err != nil {
			t.Errorf("%q: %v", line, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", line, diff)
		}
	}
	for _, line := range []string{"", "  ", "'a", `a "b`, `a\`, "''", `"\`} {
		if got, err := splitCommand(line); err == nil {
			t.Errorf("%q: %q, want an error", line, got)
		}
	}
}

// FuzzSplitCommand checks that words which are quoted for a shell come back as they were.
func FuzzSplitCommand(f *testing.F) {
	f.Add("npx", "some server", `'"\`)
	f.Add("a", "", "\n")
	f.Add("'", "\"", "$x `y` \xff")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		_, _ = splitCommand(a) // any text: it must not panic
		if a == "" {
			return
		}
		want := []string{a, b, c}
		got, err := splitCommand(quote(a) + " " + quote(b) + " " + quote(c))
		if err != nil {
			t.Fatalf("%q: %v", want, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
