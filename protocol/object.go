package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"unicode/utf8"
)

// MaxDepth is the deepest nesting of arrays and objects that is accepted.
const MaxDepth = 1000

// Errors of reading JSON that is not ours.
var (
	ErrSyntax    = errors.New("malformed JSON")
	ErrNotObject = errors.New("not a JSON object")
	ErrNotArray  = errors.New("not a JSON array")
	ErrTooDeep   = errors.New("JSON nested too deeply")
)

// Member is one member of a JSON object. Value aliases the bytes it was read from.
type Member struct {
	Key   string
	Value json.RawMessage

	start, end int // of `"key": value` in the object's bytes
}

// Valid reports whether data is one JSON value nested at most MaxDepth deep.
// The error is ErrSyntax or ErrTooDeep.
func Valid(data []byte) error {
	// Few brackets cannot nest deeply, and counting them is quick.
	if bytes.Count(data, []byte("{"))+bytes.Count(data, []byte("[")) > MaxDepth && depth(data) > MaxDepth {
		return ErrTooDeep
	}
	if !json.Valid(data) {
		return ErrSyntax
	}
	return nil
}

// depth returns the deepest nesting in data, valid or not, without recursion.
func depth(data []byte) int {
	deepest, d := 0, 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = skipString(data, i) - 1
		case '{', '[':
			d++
			deepest = max(deepest, d)
		case '}', ']':
			d--
		}
	}
	return deepest
}

// Members returns the members of a JSON object in order, with their raw values.
// data must be valid JSON (see Valid); a value that is not an object is ErrNotObject.
func Members(data []byte) ([]Member, error) {
	members := make([]Member, 0, 6)
	err := eachMember(data, func(m Member) { members = append(members, m) })
	if err != nil {
		return nil, err
	}
	return members, nil
}

// eachMember calls visit with each member of a JSON object, in order. It allocates nothing
// for keys of the protocol.
func eachMember(data []byte, visit func(Member)) error {
	i := skipSpace(data, 0)
	if i >= len(data) || data[i] != '{' {
		return ErrNotObject
	}
	for i++; ; {
		i = skipSpace(data, i)
		if i < len(data) && data[i] == '}' {
			return nil
		}
		if i >= len(data) || data[i] != '"' {
			return ErrSyntax
		}
		m := Member{start: i}
		end := skipString(data, i)
		var ok bool
		if m.Key, ok = unquote(data[i:end]); !ok {
			return ErrSyntax
		}
		i = skipSpace(data, end)
		if i >= len(data) || data[i] != ':' {
			return ErrSyntax
		}
		i = skipSpace(data, i+1)
		end = skipValue(data, i)
		if end == i {
			return ErrSyntax
		}
		m.Value, m.end = data[i:end:end], end
		visit(m)
		i = skipSpace(data, end)
		if i < len(data) && data[i] == ',' {
			i++
			continue
		}
		if i >= len(data) || data[i] != '}' {
			return ErrSyntax
		}
	}
}

// Get returns the raw value of the last member named key, or nil if there is none
// or data is not an object.
func Get(data []byte, key string) json.RawMessage {
	var value json.RawMessage
	if eachMember(data, func(m Member) {
		if m.Key == key {
			value = m.Value
		}
	}) != nil {
		return nil
	}
	return value
}

// Set returns a copy of the object data with key set to value and every other byte as it
// was. A new member is added at the end. data must be a valid JSON object.
func Set(data []byte, key string, value []byte) (json.RawMessage, error) {
	members, err := Members(data)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(data)+len(key)+len(value)+6)
	for _, m := range slices.Backward(members) {
		if m.Key == key {
			out = append(out, data[:m.end-len(m.Value)]...)
			out = append(out, value...)
			return append(out, data[m.end:]...), nil
		}
	}
	at := bytes.LastIndexByte(data, '}')
	if len(members) > 0 {
		at = members[len(members)-1].end
	}
	out = append(out, data[:at]...)
	if len(members) > 0 {
		out = append(out, ',')
	}
	out = AppendString(out, key)
	out = append(out, ':')
	out = append(out, value...)
	return append(out, data[at:]...), nil
}

// Delete returns a copy of the object data without any member named key, and every other
// byte as it was. data must be a valid JSON object.
func Delete(data []byte, key string) (json.RawMessage, error) {
	members, err := Members(data)
	if err != nil {
		return nil, err
	}
	if len(members) == 0 {
		return bytes.Clone(data), nil
	}
	out := append(make([]byte, 0, len(data)), data[:members[0].start]...)
	kept := 0
	for i, m := range members {
		if m.Key == key {
			continue
		}
		if kept++; kept > 1 {
			out = append(out, data[members[i-1].end:m.start]...)
		}
		out = append(out, data[m.start:m.end]...)
	}
	return append(out, data[members[len(members)-1].end:]...), nil
}

// SetMeta returns a copy of the object data with _meta[key] set to value, other members
// of _meta kept. A _meta that is no object is replaced.
func SetMeta(data []byte, key string, value []byte) (json.RawMessage, error) {
	meta := Get(data, "_meta")
	set, err := Set(meta, key, value)
	if err != nil {
		set, err = Set([]byte("{}"), key, value)
	}
	if err != nil {
		return nil, err
	}
	return Set(data, "_meta", set)
}

// RelatedTask returns the value of MetaRelatedTask for a task id.
func RelatedTask(id string) []byte {
	return append(AppendString([]byte(`{"taskId":`), id), '}')
}

func skipSpace(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\n' || data[i] == '\t' || data[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the index after the string that starts at data[i] == '"'.
func skipString(data []byte, i int) int {
	quote := -1 // the next one, searched for again only when an escape has stepped over it
	for i++; i < len(data); {
		if quote < i {
			next := bytes.IndexByte(data[i:], '"')
			if next < 0 {
				break
			}
			quote = i + next
		}
		escape := bytes.IndexByte(data[i:quote], '\\')
		if escape < 0 {
			return quote + 1
		}
		i += escape + 2
	}
	return len(data)
}

// skipValue returns the index after the value that starts at i.
func skipValue(data []byte, i int) int {
	for d := 0; i < len(data); {
		switch data[i] {
		case '"':
			i = skipString(data, i)
			if d == 0 {
				return i
			}
			continue
		case '{', '[':
			d++
		case '}', ']':
			if d == 0 {
				return i // end of a bare value
			}
			if d--; d == 0 {
				return i + 1
			}
		case ',', ' ', '\n', '\t', '\r':
			if d == 0 {
				return i
			}
		}
		i++
	}
	return len(data)
}

func unquote(quoted []byte) (string, bool) {
	if len(quoted) < 2 || quoted[len(quoted)-1] != '"' {
		return "", false
	}
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
		return known(inner), true
	}
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		return "", false
	}
	return s, true
}

// known returns b as a string, without allocating for the words of the protocol.
func known(b []byte) string {
	switch string(b) {
	case "jsonrpc":
		return "jsonrpc"
	case "2.0":
		return "2.0"
	case "id":
		return "id"
	case "method":
		return "method"
	case "params":
		return "params"
	case "result":
		return "result"
	case "error":
		return "error"
	case "_meta":
		return "_meta"
	case "task":
		return "task"
	case "taskId":
		return "taskId"
	case "name":
		return "name"
	case "arguments":
		return "arguments"
	case "content":
		return "content"
	case "isError":
		return "isError"
	case MethodTasksGet:
		return MethodTasksGet
	case MethodTasksResult:
		return MethodTasksResult
	case MethodToolsCall:
		return MethodToolsCall
	}
	return string(b)
}

// Unquote returns the Go string of a raw JSON string; ok is false for any other value.
func Unquote(raw json.RawMessage) (s string, ok bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	return unquote(raw)
}

// AppendString appends s as a JSON string, without HTML escaping.
func AppendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return append(dst, Marshal(s)...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// Marshal encodes a value of this module's own types, without HTML escaping.
// It panics if the value cannot be encoded.
func Marshal(v any) json.RawMessage {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}

// Elements returns the elements of a JSON array in order, as Members does. Their start and
// end are offsets in data.
func Elements(data []byte) ([]Member, error) {
	i := skipSpace(data, 0)
	if i >= len(data) || data[i] != '[' {
		return nil, ErrNotArray
	}
	var elements []Member
	for i++; ; {
		i = skipSpace(data, i)
		if i < len(data) && data[i] == ']' {
			return elements, nil
		}
		end := skipValue(data, i)
		if end == i {
			return nil, ErrSyntax
		}
		elements = append(elements, Member{Value: data[i:end:end], start: i, end: end})
		i = skipSpace(data, end)
		if i < len(data) && data[i] == ',' {
			i++
			continue
		}
		if i >= len(data) || data[i] != ']' {
			return nil, ErrSyntax
		}
	}
}

// MapElements returns a copy of the JSON array data with each element replaced by what
// change makes of it, and every other byte as it was.
func MapElements(data []byte, change func(json.RawMessage) (json.RawMessage, error)) (json.RawMessage, error) {
	elements, err := Elements(data)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(data)+64*len(elements))
	from := 0
	for _, el := range elements {
		changed, err := change(el.Value)
		if err != nil {
			return nil, err
		}
		out = append(out, data[from:el.start]...)
		out = append(out, changed...)
		from = el.end
	}
	return append(out, data[from:]...), nil
}
