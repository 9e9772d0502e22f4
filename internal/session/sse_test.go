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
