package wire

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// events returns the data of each event in a stream.
func events(stream []byte) (all []string) {
	for {
		end := eventEnd(stream)
		if end == 0 {
			return all
		}
		if data := eventData(stream[:end]); len(data) > 0 {
			all = append(all, string(data))
		}
		stream = stream[end:]
	}
}

func newSharedStream() (*sharedStream, *httptest.ResponseRecorder) {
	w := httptest.NewRecorder()
	s := &sharedStream{ResponseWriter: w, boundary: make(chan struct{}, 1), opened: func() {}}
	s.Header().Set("Content-Type", "text/event-stream")
	return s, w
}

// write writes as an inner handler does: what became of it is no concern of the stream's.
func write(w http.ResponseWriter, p []byte) { _, _ = w.Write(p) }

// An event that is added waits until the inner handler has ended its own.
func TestAddedEventWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newSharedStream()
		added := make(chan error, 1)
		write(s, []byte("id: 1\ndata: inner\n"))
		go func() { added <- s.send(t.Context(), messageEvent([]byte("ours"))) }()
		synctest.Wait()
		write(s, []byte("data: more\n"))
		synctest.Wait()
		if strings.Contains(w.Body.String(), "ours") {
			t.Error("added in the middle of an event")
		}
		write(s, []byte("\n: a comment\n"))
		if err := <-added; err != nil {
			t.Fatal(err)
		}
		if got := events(w.Body.Bytes()); !slices.Equal(got, []string{"inner\nmore", "ours"}) {
			t.Errorf("got %q in %q", got, w.Body)
		}
		// One that can never be added ends with its context.
		write(s, []byte("data: never ended"))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if s.send(ctx, messageEvent([]byte("x"))) == nil {
			t.Error("added")
		}
	})
}

// Only an event stream is opened; anything else passes.
func TestOpened(t *testing.T) {
	for _, c := range []struct {
		status      int
		contentType string
		encoding    string
		want        bool
	}{
		{http.StatusOK, "text/event-stream", "", true},
		{http.StatusOK, "text/event-stream; charset=utf-8", "", true},
		{http.StatusOK, "text/event-stream", "gzip", false},
		{http.StatusOK, "application/json", "", false},
		{http.StatusMethodNotAllowed, "text/event-stream", "", false},
	} {
		opened := 0
		s, w := newSharedStream()
		s.opened = func() { opened++ }
		s.Header().Set("Content-Type", c.contentType)
		s.Header().Set("Content-Encoding", c.encoding)
		s.WriteHeader(c.status)
		write(s, []byte("x"))
		s.WriteHeader(http.StatusTeapot)
		if opened == 1 != c.want || w.Code != c.status || w.Body.String() != "x" {
			t.Errorf("%+v: opened %d times, %d %q", c, opened, w.Code, w.Body)
		}
	}
}

// FuzzSharedStream puts events between what an inner handler writes, in whatever pieces: the
// inner handler's events stay as they were, and all of ours are there.
func FuzzSharedStream(f *testing.F) {
	f.Add([]byte("event: message\ndata: a\n\n: ping\n\ndata: b\r\ndata: c\r\n\r\n"), 3)
	f.Add([]byte("data: a\r\rdata: b\n\n\n\n"), 1)
	f.Add([]byte(": \n\n:\n"), 2)
	f.Fuzz(func(t *testing.T, inner []byte, piece int) {
		if piece < 1 || bytes.Contains(inner, []byte("ours")) {
			return
		}
		s, w := newSharedStream()
		over, cancel := context.WithCancel(t.Context())
		cancel()
		added := 0
		for chunk := range slices.Chunk(inner, piece) {
			write(s, chunk)
			if s.send(over, messageEvent([]byte("ours"))) == nil {
				added++
			}
		}
		var theirs []string
		ours := 0
		for _, data := range events(w.Body.Bytes()) {
			if data == "ours" {
				ours++
			} else {
				theirs = append(theirs, data)
			}
		}
		if want := events(inner); ours != added || !slices.Equal(theirs, want) {
			t.Fatalf("%d of %d events, the inner handler's are %q, were %q, in %q", ours, added, theirs, want, w.Body)
		}
	})
}
