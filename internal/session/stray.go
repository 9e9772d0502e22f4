package session

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"sync"
)

// messageLines reads the lines of a server's stdout that may be messages. Some servers also
// print other things there, such as a greeting, which must not end the connection: those
// lines go to stray.
type messageLines struct {
	lines *bufio.Reader
	stray io.Writer

	within bool   // a line has begun
	skip   bool   // it is a stray one
	rest   []byte // of what was read, aliases the buffer of lines
	err    error
}

func newMessageLines(r io.Reader, stray io.Writer) *messageLines {
	if stray == nil {
		stray = io.Discard
	}
	return &messageLines{lines: bufio.NewReaderSize(r, 64<<10), stray: stray}
}

func (m *messageLines) Read(p []byte) (int, error) {
	for len(m.rest) == 0 {
		if m.err != nil {
			return 0, m.err
		}
		chunk, err := m.lines.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			m.err = err
		}
		if !m.within {
			start := bytes.TrimLeft(chunk, " \t\r\n")
			m.skip = len(start) > 0 && start[0] != '{' && start[0] != '['
		}
		m.within = len(chunk) > 0 && chunk[len(chunk)-1] != '\n'
		if m.skip {
			_, _ = m.stray.Write(chunk)
			continue
		}
		m.rest = chunk
	}
	n := copy(p, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

// lockedWriter is for two who write.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// Close implements io.Closer. The pipe is closed after the process has ended.
func (m *messageLines) Close() error { return nil }
