package ticket_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/coatcheck/coatcheck/internal/ticket"
	"github.com/coatcheck/coatcheck/protocol"
)

func TestKeySame(t *testing.T) {
	for _, same := range [][]string{
		{``, `{}`, ` { } `, "{\n}"},
		{`{"a":1,"b":[true,null,"x"]}`, ` { "b" : [ true ,null, "x" ] , "a" : 1 } `, `{"\u0061":1.0,"b":[true,null,"\u0078"]}`},
		{`{"n":1}`, `{"n":1.0}`, `{"n":1e0}`, `{"n":1E+0}`, `{"n":10e-1}`, `{"n":0.001e3}`, `{"n":1.000e-0}`},
		{`{"n":0}`, `{"n":-0}`, `{"n":0.0}`, `{"n":0e99}`, `{"n":-0.00e99999999999999999999}`},
		{`{"n":-1200}`, `{"n":-12e2}`, `{"n":-1.2e+03}`, `{"n":-1200.0}`},
		{`{"n":1e400}`, `{"n":10e399}`, `{"n":0.1E401}`},
		{`{"s":"\/\b\f\n\r\t\"\\é😀"}`, `{"s":"/\u0008\u000c\u000A\u000d\u0009\u0022\u005C\u00e9\uD83D\ude00"}`},
		{`{"s":"\ud800x"}`, `{"s":"\uD800\u0078"}`},
		{`{"a":{"b":{"c":1,"d":2}}}`, `{"a":{"b":{"d":2,"c":1}}}`},
		{`{"é":1,"z":2}`, `{"z":2,"\u00e9":1}`},
	} {
		for _, other := range same[1:] {
			if ticket.Key("t", json.RawMessage(same[0])) != ticket.Key("t", json.RawMessage(other)) {
				t.Errorf("different keys: %s and %s", same[0], other)
			}
		}
	}
	if ticket.Key("t", nil) != ticket.Key("t", json.RawMessage(`{}`)) {
		t.Error("different keys: absent and {}")
	}
}

func TestKeyDifferent(t *testing.T) {
	seen := map[string]string{}
	for _, call := range [][2]string{
		{"t", `{}`}, {"u", `{}`}, {"", `{}`}, {"t{}", ``}, {"t", `[]`}, {"t", `null`}, {"t", `{"a":{}}`}, {"t", `{"a":[]}`},
		{"t", `{"a":null}`}, {"t", `{"a":"null"}`}, {"t", `{"a":true}`}, {"t", `{"a":false}`}, {"t", `{"a":""}`}, {"t", `{"":"a"}`},
		{"t", `{"a":1}`}, {"t", `{"a":"1"}`}, {"t", `{"a":[1]}`}, {"t", `{"a":-1}`}, {"t", `{"a":10}`}, {"t", `{"a":0.1}`},
		{"t", `{"a":[1,2]}`}, {"t", `{"a":[2,1]}`}, {"t", `{"a":[[1],2]}`}, {"t", `{"a":[12]}`}, {"t", `{"a":[[1,2]]}`},
		{"t", `{"a":9007199254740992}`}, {"t", `{"a":9007199254740993}`}, // one float64
		{"t", `{"a":123456789012345678901234567890}`}, {"t", `{"a":123456789012345678901234567891}`},
		{"t", `{"a":1e400}`}, {"t", `{"a":1e401}`}, {"t", `{"a":1e99999999999999999999}`}, {"t", `{"a":1e99999999999999999998}`},
		{"t", `{"a":1,"b":2}`}, {"t", `{"a":2,"b":1}`}, {"t", `{"a":1,"a":2}`}, {"t", `{"a":2,"a":1}`}, {"t", `{"A":1}`},
		{"t", `{"a":"\ud800"}`}, {"t", `{"a":"\udfff"}`}, {"t", `{"a":"\ufffd"}`}, {"t", "{\"a\":\"\xff\"}"}, {"t", `{"a":"\ud800\ud800"}`},
		{"t", `{"a":"é"}`}, {"t", `{"a":"e\u0301"}`}, // no normalisation
		{"t", `{`}, {"t", `{ `}, {"t", ` `}, {"t", `{}x`}, {"t", strings.Repeat("[", 2000) + strings.Repeat("]", 2000)},
	} {
		key := ticket.Key(call[0], json.RawMessage(call[1]))
		if other, ok := seen[key]; ok {
			t.Errorf("the same key: %s and %q", other, call)
		}
		seen[key] = fmt.Sprintf("%q", call)
		if len(key) != 43 {
			t.Errorf("a key of %d characters", len(key))
		}
	}
}

// FuzzKey checks that arguments have the same key just if they are equal as JSON values, and that
// a random other spelling of them has it too.
func FuzzKey(f *testing.F) {
	for _, seed := range [][2]string{
		{`{}`, ``}, {`{"a":1}`, `{"a":1.0}`}, {`{"a":[1,{"b":"\u00e9"}]}`, `{"a":[1,{"b":"é"}]}`}, {`{"a":"\ud800"}`, `{"a":"\udc00"}`},
		{`{"a":-0.10e-2}`, `{"b":0}`}, {`{`, `[`}, {`"\u12`, `"\`}, {`{"a":1,"a":2}`, `{"a":2}`}, {`[1e5,12]`, `[1e512]`}, {`1`, `10`},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]), uint64(1))
	}
	f.Fuzz(func(t *testing.T, a, b []byte, seed uint64) {
		keyA, keyB := ticket.Key("t", a), ticket.Key("t", b) // never panics
		valueA, plainA := value(a)
		if !plainA {
			return
		}
		random := rand.New(rand.NewPCG(seed, 0))
		if other := spell(random, valueA); ticket.Key("t", []byte(other)) != keyA {
			t.Fatalf("different keys: %s and %s", a, other)
		}
		if valueB, plainB := value(b); plainB && (spell(nil, valueA) == spell(nil, valueB)) != (keyA == keyB) {
			t.Fatalf("%s and %s: same key %t", a, b, keyA == keyB)
		}
	})
}

// value decodes arguments; plain is false where readers of JSON differ, or numbers are huge.
func value(data []byte) (v any, plain bool) {
	if len(data) == 0 {
		data = []byte("{}")
	}
	if protocol.Valid(data) != nil || bytes.ContainsRune(data, '\uFFFD') {
		return nil, false
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if dec.Decode(&v) != nil {
		return nil, false
	}
	return v, isPlain(data)
}

func isPlain(data []byte) bool {
	if s, ok := protocol.Unquote(data); ok {
		return !strings.ContainsRune(s, '\uFFFD')
	}
	if _, exponent, ok := strings.Cut(strings.ToLower(string(data)), "e"); ok && data[0] <= '9' && len(exponent) > 4 {
		return false
	}
	if elements, err := protocol.Elements(data); err == nil {
		return !slices.ContainsFunc(elements, func(el protocol.Member) bool { return !isPlain(el.Value) })
	}
	members, _ := protocol.Members(data)
	names := map[string]bool{}
	for _, m := range members {
		if names[m.Key] || strings.ContainsRune(m.Key, '\uFFFD') || !isPlain(m.Value) {
			return false
		}
		names[m.Key] = true
	}
	return true
}

// spell writes a value in one of the ways there are, or, if random is nil, in the one that equal
// values have.
func spell(random *rand.Rand, v any) string {
	pick := func(ways ...string) string {
		if random == nil {
			return ways[0]
		}
		return ways[random.IntN(len(ways))]
	}
	space := func() string { return pick("", " ", "\n\t") }
	text := func(s string) string {
		out := `"`
		for _, c := range s {
			plain := strings.Trim(string(protocol.Marshal(string(c))), `"`)
			if c == '"' {
				plain = `\"`
			}
			escaped := fmt.Sprintf(`\u%04x`, c)
			if c > 0xffff {
				c -= 0x10000
				escaped = fmt.Sprintf(`\u%04x\u%04X`, 0xd800+c>>10, 0xdc00+c&0x3ff)
			}
			out += pick(plain, escaped)
		}
		return out + `"`
	}
	var parts []string
	switch v := v.(type) {
	case string:
		return text(v)
	case json.Number:
		ratio, _ := new(big.Rat).SetString(v.String())
		if random == nil {
			return ratio.String()
		}
		if strings.ContainsAny(v.String(), "eE") {
			return v.String()
		}
		if strings.Trim(v.String(), "-") == "0" { // no digit may follow
			return pick(v.String(), v.String()+".0", v.String()+"E+00")
		}
		if !strings.Contains(v.String(), ".") {
			return pick(v.String(), v.String()+".0", v.String()+"e0", v.String()+"0e-1", v.String()+"E+00")
		}
		return pick(v.String(), v.String()+"0", v.String()+"00e-0")
	case []any:
		for _, el := range v {
			parts = append(parts, space()+spell(random, el)+space())
		}
		return "[" + strings.Join(parts, ",") + "]"
	case map[string]any:
		keys := slices.Sorted(maps.Keys(v))
		if random != nil {
			random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		}
		for _, key := range keys {
			parts = append(parts, space()+text(key)+space()+":"+space()+spell(random, v[key])+space())
		}
		return "{" + strings.Join(parts, ",") + space() + "}"
	}
	return string(protocol.Marshal(v))
}
