package ticket

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/coatcheck/coatcheck/protocol"
)

// Key names a call by its tool and its arguments: 43 characters that are the same for the same
// call and, as SHA-256 is, different for another.
//
// Arguments are the same if they are equal as JSON values: whitespace, the order of an object's
// members, the spelling of numbers (1, 1.0 and 1e0; all digits count) and escapes in strings do
// not matter, and absent arguments are {}. Where readers differ, arguments differ: members of
// the same name all count, in their order, and so do halves of surrogate pairs. Malformed
// arguments are the same only byte for byte.
func Key(tool string, arguments json.RawMessage) string {
	if len(arguments) == 0 {
		arguments = json.RawMessage("{}")
	}
	canonical := append([]byte{'!'}, arguments...)
	if protocol.Valid(arguments) == nil {
		r := reader{data: arguments}
		canonical = r.value()
	}
	sum := sha256.Sum256(part(part(nil, []byte(tool)), canonical))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// part appends bytes to dst with their length in front, so that they cannot run into the next.
func part(dst, bytes []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(bytes))), bytes...)
}

// reader reads valid JSON, nested at most protocol.MaxDepth deep, in one pass: what is nested
// goes into what is around it as a hash.
type reader struct {
	data []byte
	at   int
}

// next returns the next byte that is no space, without going past it.
func (r *reader) next() byte {
	for {
		switch c := r.data[r.at]; c {
		case ' ', '\t', '\r', '\n':
			r.at++
		default:
			return c
		}
	}
}

// value reads a value and returns its canonical form.
func (r *reader) value() []byte {
	switch r.next() {
	case '{':
		return r.object()
	case '[':
		return r.array()
	case '"':
		return append([]byte{'"'}, r.text()...)
	case 't', 'f', 'n':
		return r.scalar()
	}
	return append([]byte{'#'}, number(r.scalar())...)
}

func (r *reader) object() []byte {
	type member struct{ key, value []byte }
	var members []member
	for r.at++; r.next() != '}'; {
		if r.next() == ',' {
			r.at++
			r.next()
		}
		m := member{key: r.text()}
		r.next()
		r.at++ // the colon
		m.value = r.value()
		members = append(members, m)
	}
	r.at++
	slices.SortStableFunc(members, func(a, b member) int { return bytes.Compare(a.key, b.key) })
	h := sha256.New()
	for _, m := range members {
		h.Write(part(part(nil, m.key), m.value))
	}
	return h.Sum([]byte{'{'})
}

func (r *reader) array() []byte {
	h := sha256.New()
	for r.at++; r.next() != ']'; {
		if r.next() == ',' {
			r.at++
		}
		h.Write(part(nil, r.value()))
	}
	r.at++
	return h.Sum([]byte{'['})
}

// scalar reads a number, true, false or null.
func (r *reader) scalar() []byte {
	start := r.at
	for r.at < len(r.data) && bytes.IndexByte([]byte(" \t\r\n,]}"), r.data[r.at]) < 0 {
		r.at++
	}
	return r.data[start:r.at:r.at]
}

// text reads a string and returns its characters in UTF-8. Half a surrogate pair is encoded as
// if it were a character, and what is no UTF-8 stays.
func (r *reader) text() []byte {
	var out []byte
	for r.at++; ; {
		switch c := r.data[r.at]; c {
		case '"':
			r.at++
			return out
		case '\\':
			out = r.escape(out)
		default:
			out = append(out, c)
			r.at++
		}
	}
}

// escape appends to dst what the escape, or the pair of them, means at which r is.
func (r *reader) escape(dst []byte) []byte {
	c := r.data[r.at+1]
	r.at += 2
	switch c {
	case 'b':
		return append(dst, '\b')
	case 'f':
		return append(dst, '\f')
	case 'n':
		return append(dst, '\n')
	case 'r':
		return append(dst, '\r')
	case 't':
		return append(dst, '\t')
	case 'u':
	default:
		return append(dst, c)
	}
	unit := r.hex(r.at)
	r.at += 4
	if !utf16.IsSurrogate(unit) {
		return utf8.AppendRune(dst, unit)
	}
	if bytes.HasPrefix(r.data[r.at:], []byte(`\u`)) {
		if pair := utf16.DecodeRune(unit, r.hex(r.at+2)); pair != utf8.RuneError {
			r.at += 6
			return utf8.AppendRune(dst, pair)
		}
	}
	return append(dst, 0xe0|byte(unit>>12), 0x80|byte(unit>>6)&0x3f, 0x80|byte(unit)&0x3f)
}

// hex reads four hexadecimal digits.
func (r *reader) hex(at int) rune {
	unit, _ := strconv.ParseUint(string(r.data[at:at+4]), 16, 16)
	return rune(unit)
}

// number returns a JSON number as its significant digits and the power of ten they are times.
// An exponent of more than 18 digits is left as it is spelt.
func number(spelt []byte) []byte {
	mantissa, exponent := spelt, []byte("0")
	if at := bytes.IndexAny(spelt, "eE"); at >= 0 {
		mantissa, exponent = spelt[:at], bytes.TrimPrefix(spelt[at+1:], []byte("+"))
	}
	var sign []byte
	if mantissa[0] == '-' {
		sign, mantissa = mantissa[:1], mantissa[1:]
	}
	whole, fraction, _ := bytes.Cut(mantissa, []byte("."))
	digits := bytes.TrimLeft(slices.Concat(whole, fraction), "0")
	significant := bytes.TrimRight(digits, "0")
	if len(significant) == 0 {
		return []byte("0")
	}
	power := int64(len(digits)-len(significant)) - int64(len(fraction))
	out := append(append(slices.Clone(sign), significant...), 'e')
	if by, err := strconv.ParseInt(string(exponent), 10, 64); err == nil && by > -1e18 && by < 1e18 {
		return strconv.AppendInt(out, power+by, 10)
	}
	return append(append(strconv.AppendInt(out, power, 10), 'e'), exponent...)
}
