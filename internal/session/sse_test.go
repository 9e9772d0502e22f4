package session

import (
	"bytes"
	"strings"
	"testing"
	"testing/iotest"
)

// Whatever a stream holds, it reads the same in one piece and byte by byte.
func FuzzReadEvents(f *testing.F) {
	f.Add([]byte("id: 1\nretry: 10\ndata: {\"a\":1}\n\n"))
	f.Add([]byte(": c\r\nevent:message\r\ndata\rdata: x\r\r\ndata: cut"))
	f.Add([]byte("\n\n\r\n:\ndata:é\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		const limit = 1 << 16
		read := func(r *bytes.Reader, oneByte bool) (events []event, failed bool) {
			from := iotest.DataErrReader(r)
			if oneByte {
				from = iotest.OneByteReader(r)
			}
			err := readEvents(from, limit, func(e event) bool {
				events = append(events, e)
				return true
			})
			return events, err != nil
		}
		whole, failed := read(bytes.NewReader(stream), false)
		bytewise, failedBytewise := read(bytes.NewReader(stream), true)
		if failed != failedBytewise || len(whole) != len(bytewise) {
			t.Fatalf("%q: %d events (failed %v), byte by byte %d (%v)", stream, len(whole), failed, len(bytewise), failedBytewise)
		}
		for i, e := range whole {
			if e.name != bytewise[i].name || e.id != bytewise[i].id || e.retry != bytewise[i].retry || !bytes.Equal(e.data, bytewise[i].data) {
				t.Fatalf("%q: event %d is %+v, byte by byte %+v", stream, i, e, bytewise[i])
			}
			if strings.ContainsAny(e.name+e.id, "\r\n") {
				t.Fatalf("%q: %+v", stream, e)
			}
		}
	})
}

// Of any output, what is passed on are the lines that may be messages, unchanged.
func FuzzMessageLines(f *testing.F) {
	f.Add([]byte("hello\n{\"jsonrpc\":\"2.0\"}\n\n [1]\r\ncut"), 3)
	f.Add([]byte("{\"a\":\"é\"}"), 1)
	f.Fuzz(func(t *testing.T, output []byte, size int) {
		var want, wantStray []byte
		for line := range bytes.Lines(output) {
			start := bytes.TrimLeft(line, " \t\r\n")
			if len(start) == 0 || start[0] == '{' || start[0] == '[' {
				want = append(want, line...)
			} else {
				wantStray = append(wantStray, line...)
			}
		}
		var stray bytes.Buffer
		m := newMessageLines(bytes.NewReader(output), &stray)
		var got []byte
		for buf := make([]byte, 1+uint(size)%100); ; {
			n, err := m.Read(buf)
			got = append(got, buf[:n]...)
			if err != nil {
				break
			}
		}
		if !bytes.Equal(got, want) || !bytes.Equal(stray.Bytes(), wantStray) {
			t.Fatalf("%q: got %q, stray %q", output, got, stray.Bytes())
		}
	})
}
