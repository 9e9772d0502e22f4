package wire

import "bytes"

// eventEnd returns the length of the first whole event in stream, with the blank line that
// ends it, or 0 if there is none yet.
func eventEnd(stream []byte) int {
	for i := 0; i < len(stream); {
		line, next := nextLine(stream[i:])
		if next == 0 {
			return 0
		}
		i += next
		if len(line) == 0 {
			return i
		}
	}
	return 0
}

// nextLine returns the first line of b without its end, and where the next one starts;
// next is 0 if the line has no end yet. A line ends with LF, CR LF or CR.
func nextLine(b []byte) (line []byte, next int) {
	i := bytes.IndexAny(b, "\r\n")
	switch {
	case i < 0:
		return nil, 0
	case b[i] == '\n':
		return b[:i], i + 1
	case i+1 == len(b):
		return nil, 0 // the LF may follow
	case b[i+1] == '\n':
		return b[:i], i + 2
	}
	return b[:i], i + 1
}

// field splits a line of an event into its field name and value.
func field(line []byte) (name, value []byte) {
	name, value, _ = bytes.Cut(line, []byte(":"))
	return name, bytes.TrimPrefix(value, []byte(" "))
}

// eventData returns the data of an event, its lines joined.
func eventData(event []byte) []byte {
	var data [][]byte
	for len(event) > 0 {
		line, next := nextLine(event)
		if next == 0 {
			break
		}
		if name, value := field(line); string(name) == "data" {
			data = append(data, value)
		}
		event = event[next:]
	}
	return bytes.Join(data, []byte("\n"))
}

// replaceData returns the event with other data and its other fields as they were.
func replaceData(event, data []byte) []byte {
	var out []byte
	replaced := false
	for len(event) > 0 {
		line, next := nextLine(event)
		if next == 0 {
			break
		}
		switch name, _ := field(line); {
		case string(name) != "data":
			out = append(out, event[:next]...)
		case !replaced:
			replaced = true
			out = appendData(out, data)
		}
		event = event[next:]
	}
	return out
}

// messageEvent is a message event with the given JSON.
func messageEvent(data []byte) []byte {
	return append(appendData([]byte("event: message\n"), data), '\n')
}

// appendData appends data as lines of an event. Line breaks in JSON are white space, so
// that any kind may become the one that the lines are joined with.
func appendData(dst, data []byte) []byte {
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	data = bytes.ReplaceAll(data, []byte("\r"), []byte("\n"))
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		dst = append(dst, "data: "...)
		dst = append(dst, line...)
		dst = append(dst, '\n')
	}
	return dst
}
