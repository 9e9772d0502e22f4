package gateway

import (
	"io"
	"net/http"
	"time"
)

// pace holds a request's client to its times: the body must come, and what is written must be
// taken. Streams may last, as long as their client reads.
func pace(w http.ResponseWriter, req *http.Request, t *Times) *pacedWriter {
	conn := http.NewResponseController(w)
	_ = conn.SetWriteDeadline(time.Time{}) // of the connection's request before; here and below, what has no deadlines is left without
	if req.Body != nil && req.Body != http.NoBody {
		body := &pacedBody{ReadCloser: req.Body, conn: conn, patience: t.Body, left: req.ContentLength, until: time.Now().Add(t.Body)}
		_ = conn.SetReadDeadline(body.until) // also for a body that nobody here reads
		req.Body = body
	}
	return &pacedWriter{ResponseWriter: w, conn: conn, patience: t.Write, shared: req.ProtoMajor >= 2}
}

// pacedBody is a request body that must keep up with bodyRate.
type pacedBody struct {
	io.ReadCloser
	conn     *http.ResponseController
	patience time.Duration
	left     int64 // bytes; negative if it is not known
	until    time.Time
}

// Read reads on until the deadline, which each byte moves. At the body's end there is none: the
// server then watches the connection, which may be quiet for as long as the answer takes.
func (b *pacedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left > 0 {
		b.left -= int64(n)
	}
	b.until = b.until.Add(time.Duration(n) * (time.Second / bodyRate))
	if latest := time.Now().Add(b.patience); b.until.After(latest) {
		b.until = latest
	}
	switch {
	case err == io.EOF || b.left == 0:
		_ = b.conn.SetReadDeadline(time.Time{})
	case err == nil:
		_ = b.conn.SetReadDeadline(b.until)
	}
	return n, err
}

// pacedWriter is a response of which each part must be taken in time.
type pacedWriter struct {
	http.ResponseWriter
	conn     *http.ResponseController
	patience time.Duration
	shared   bool // the connection, with other streams: a deadline that passes ends the stream even if nothing is written
}

func (w *pacedWriter) Write(p []byte) (int, error) {
	defer w.rest()
	for written := 0; ; {
		w.hurry()
		n, err := w.ResponseWriter.Write(p[written:min(len(p), written+writeSize)])
		written += n
		if err != nil || written == len(p) {
			return written, err
		}
	}
}

// FlushError is what http.ResponseController looks for.
func (w *pacedWriter) FlushError() error {
	defer w.rest()
	w.hurry()
	return w.conn.Flush()
}

// Flush implements http.Flusher.
func (w *pacedWriter) Flush() { _ = w.FlushError() }

// Unwrap lets http.ResponseController reach the connection.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *pacedWriter) hurry() { _ = w.conn.SetWriteDeadline(time.Now().Add(w.patience)) }

func (w *pacedWriter) rest() {
	if w.shared {
		_ = w.conn.SetWriteDeadline(time.Time{})
	}
}
