package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Entry is a task that a ledger remembers.
type Entry struct {
	Server    string          `json:"server"` // as Options.Server
	ID        string          `json:"id"`
	Method    string          `json:"method"` // of the request
	Params    json.RawMessage `json:"params"` // of the request
	CreatedAt time.Time       `json:"createdAt"`
}

// Ledger remembers which tasks run where, so that a host finds them after a crash (AUD-3). A
// task is added once its id is known, and removed when its outcome was handed out or the
// server has it no longer. Its methods may be called concurrently.
type Ledger interface {
	// Add records a task, durably before it returns. Adding it again changes nothing.
	Add(ctx context.Context, e Entry) error
	// Remove takes a task out. One that is not there is no error.
	Remove(ctx context.Context, server, id string) error
	// List returns a server's tasks, oldest first.
	List(ctx context.Context, server string) ([]Entry, error)
}

// FileLedger is a Ledger in a file of JSON lines, to which each change is appended and synced.
// One process at a time may use a file.
type FileLedger struct {
	mu      sync.Mutex
	file    *os.File
	entries []Entry
}

var _ Ledger = (*FileLedger)(nil)

// line is one change.
type line struct {
	Add    *Entry `json:"add,omitempty"`
	Remove *Entry `json:"remove,omitempty"` // Server and ID alone
}

// OpenLedger opens the ledger in a file, and makes it (mode 0600) if it is not there. Lines
// that a crash has cut short are passed over. What was removed is dropped from the file when
// it is opened.
func OpenLedger(file string) (*FileLedger, error) {
	l := &FileLedger{}
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l.read(data)
	if err := l.rewrite(file); err != nil {
		return nil, fmt.Errorf("writing the ledger: %w", err)
	}
	if l.file, err = os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *FileLedger) read(data []byte) {
	lines := bufio.NewReader(bytes.NewReader(data))
	for {
		text, err := lines.ReadBytes('\n')
		var c line
		if json.Unmarshal(text, &c) == nil {
			l.apply(c)
		}
		if err != nil {
			return
		}
	}
}

func (l *FileLedger) apply(c line) {
	switch {
	case c.Add != nil:
		if l.index(c.Add.Server, c.Add.ID) < 0 {
			l.entries = append(l.entries, *c.Add)
		}
	case c.Remove != nil:
		if i := l.index(c.Remove.Server, c.Remove.ID); i >= 0 {
			l.entries = append(l.entries[:i:i], l.entries[i+1:]...)
		}
	}
}

func (l *FileLedger) index(server, id string) int {
	for i, e := range l.entries {
		if e.Server == server && e.ID == id {
			return i
		}
	}
	return -1
}

// rewrite makes the file hold the entries alone, by way of another one in its place.
func (l *FileLedger) rewrite(file string) error {
	fresh, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(fresh.Name())
	for _, e := range l.entries {
		if err = write(fresh, line{Add: &e}); err != nil {
			break
		}
	}
	if err == nil {
		err = fresh.Sync()
	}
	if err = errors.Join(err, fresh.Close()); err != nil {
		return err
	}
	return os.Rename(fresh.Name(), file)
}

func write(w io.Writer, c line) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// Add implements Ledger.
func (l *FileLedger) Add(_ context.Context, e Entry) error { return l.change(line{Add: &e}) }

// Remove implements Ledger.
func (l *FileLedger) Remove(_ context.Context, server, id string) error {
	return l.change(line{Remove: &Entry{Server: server, ID: id}})
}

func (l *FileLedger) change(c line) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.Add != nil && l.index(c.Add.Server, c.Add.ID) >= 0 || c.Remove != nil && l.index(c.Remove.Server, c.Remove.ID) < 0 {
		return nil
	}
	if err := write(l.file, c); err != nil {
		return err
	}
	if err := l.file.Sync(); err != nil {
		return err
	}
	l.apply(c)
	return nil
}

// List implements Ledger.
func (l *FileLedger) List(_ context.Context, server string) ([]Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []Entry
	for _, e := range l.entries {
		if e.Server == server {
			all = append(all, e)
		}
	}
	return all, nil
}

// Close closes the file.
func (l *FileLedger) Close() error { return l.file.Close() }

// record enters a new task into the session's ledger. That it cannot be does not fail the
// call, which runs.
func (t *Task) record(request json.RawMessage, state *State) {
	opts := t.session.opts
	if opts.Ledger == nil {
		return
	}
	err := opts.Ledger.Add(t.ctx, Entry{Server: opts.Server, ID: t.id, Method: "tools/call", Params: request, CreatedAt: state.CreatedAt})
	if err != nil {
		opts.Logger.Error("a task could not be written into the ledger", "task", t.id, "error", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recorded = true
}

// forget takes a task that has ended from the ledger, now that its outcome is handed out.
func (t *Task) forget() {
	if t.outcome.goesOn() {
		return
	}
	t.mu.Lock()
	recorded := t.recorded
	t.recorded = false
	t.mu.Unlock()
	if !recorded {
		return
	}
	opts := t.session.opts
	if err := opts.Ledger.Remove(context.WithoutCancel(t.ctx), opts.Server, t.id); err != nil {
		opts.Logger.Error("a task could not be taken from the ledger", "task", t.id, "error", err)
	}
}
