package session

import (
	"bufio"
	"bytes"
	"io"
	"strconv"
	"time"
)

// event is one server-sent event.
type event struct {
	name  string
	id    string
	retry time.Duration // 0 if absent
	data  []byte        // its lines joined; nil if absent
}

// readEvents calls yield with each whole event of a stream until it returns false. An event
// that the stream's end cuts off is dropped, as the format demands. limit bounds one event,
// in bytes. The error is nil at the end of the stream.
func readEvents(r io.Reader, limit int, yield func(event) bool) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4096), limit)
	lines.Split(splitLine)
	var e event
	for lines.Scan() {
		line := lines.Bytes()
		if len(line) == 0 {
			if !yield(e) {
				return nil
			}
			e = event{}
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "event":
			e.name = string(value)
		case "id":
			e.id = string(value)
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
				e.retry = time.Duration(ms) * time.Millisecond
			}
		case "data":
			if len(e.data)+len(value) > limit {
				return bufio.ErrTooLong
			}
			if e.data != nil {
				e.data = append(e.data, '\n')
			}
			e.data = append(e.data, value...)
		}
	}
	return lines.Err()
}

// splitLine is a bufio.SplitFunc for lines that end with LF, CR LF or CR. What follows the
// last line end is no line.
func splitLine(data []byte, atEOF bool) (advance int, token []byte, err error) {
	i := bytes.IndexAny(data, "\r\n")
	switch {
	case i < 0:
		return 0, nil, nil
	case data[i] == '\n':
		return i + 1, data[:i], nil
	case i+1 < len(data) && data[i+1] == '\n':
		return i + 2, data[:i], nil
	case i+1 == len(data) && !atEOF:
		return 0, nil, nil // an LF may follow
	}
	return i + 1, data[:i], nil
}
