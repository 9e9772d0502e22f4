// Package sqlite is the store on a SQLite file: durable against kill -9 and power loss (WAL,
// synchronous=FULL), for one process or several on one machine.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	driver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/coatcheck/coatcheck/store"
)

// Options configures a Store. A nil *Options means all defaults.
type Options struct {
	// Follow is how often the store looks whether another process changed the file.
	// Default 100 ms.
	Follow time.Duration
	// BusyTimeout is how long Open and reads wait for a file that another process has locked.
	// Changes wait for it as long as it takes, or until the store is closed; closing then
	// takes up to this long for the changes at hand and once more for those behind them.
	// Default 10 s.
	BusyTimeout time.Duration
	// Readers is how many connections read beside the one that writes. Default 4.
	Readers int
	// Logger is told by Open if others than the owner may read or write the file. Default:
	// discards.
	Logger *slog.Logger
}

// Store keeps tasks in a SQLite database.
type Store struct {
	db     *sql.DB
	ownsDB bool
	busy   time.Duration

	changes chan *change  // to the writer
	changed chan struct{} // from the writer: another process committed
	closing chan struct{}
	stopped chan struct{} // closed when the writer is gone
	once    sync.Once
	writer  sync.WaitGroup

	read statements
}

var _ store.Store = (*Store)(nil)

// Open opens the database in a file, and makes it (mode 0600) if it is not there. The mode of a
// file that is there stays; SQLite gives it to the files beside it. Any
// number of processes on one machine may have it open.
func Open(ctx context.Context, file string, opts *Options) (*Store, error) {
	o := opts.withDefaults()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" { // which has no such modes
		o.Logger.Warn("others than its owner may use the store's file", "file", file, "mode", fmt.Sprintf("%04o", mode), "advised", "0600")
	}
	// Readers connect later, when the working directory may be another: they must find this file.
	if file, err = filepath.Abs(file); err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", fmt.Sprintf("file:%s?mode=rw&_pragma=busy_timeout(%d)", (&url.URL{Path: file}).EscapedPath(), o.BusyTimeout.Milliseconds()))
	if err != nil {
		return nil, err
	}
	s, err := open(ctx, db, true, o)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// OpenDB opens the database behind db, made with the driver "sqlite" of modernc.org/sqlite.
// db stays the caller's to close, after the Store. Its pool is set to Readers and one writer,
// which the Store keeps. For readers to wait for a locked file, db's name must set
// busy_timeout. An in-memory database needs a shared cache.
func OpenDB(ctx context.Context, db *sql.DB, opts *Options) (*Store, error) {
	return open(ctx, db, false, opts.withDefaults())
}

func (opts *Options) withDefaults() Options {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Follow <= 0 {
		o.Follow = 100 * time.Millisecond
	}
	if o.BusyTimeout <= 0 {
		o.BusyTimeout = 10 * time.Second
	}
	if o.Readers <= 0 {
		o.Readers = 4
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func open(ctx context.Context, db *sql.DB, ownsDB bool, o Options) (*Store, error) {
	db.SetMaxOpenConns(o.Readers + 1)
	db.SetMaxIdleConns(o.Readers + 1)
	s := &Store{
		db:      db,
		ownsDB:  ownsDB,
		busy:    o.BusyTimeout,
		changes: make(chan *change, maxBatch),
		stopped: make(chan struct{}),
		changed: make(chan struct{}, 1),
		closing: make(chan struct{}),
	}
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	if err := migrate(ctx, conn); err != nil {
		return nil, errors.Join(plain(err), conn.Close())
	}
	w, err := newWriter(ctx, conn)
	if err != nil {
		return nil, errors.Join(plain(err), conn.Close())
	}
	if err := s.read.prepare(ctx, db); err != nil {
		return nil, errors.Join(plain(err), w.close())
	}
	s.writer.Go(func() { s.write(w, o.Follow) })
	return s, nil
}

// connect returns a connection set up to write.
func (s *Store) connect(ctx context.Context) (*sql.Conn, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, plain(err)
	}
	for _, pragma := range []string{
		fmt.Sprintf("PRAGMA busy_timeout = %d", s.busy.Milliseconds()),
		"PRAGMA journal_mode = WAL",
		"PRAGMA synchronous = FULL",
		// A checkpoint syncs twice: let 32 MiB of pages gather, most of them written again and
		// again, before one.
		"PRAGMA wal_autocheckpoint = 8000",
	} {
		if err := s.patiently(ctx, conn, pragma); err != nil {
			return nil, errors.Join(plain(err), conn.Close())
		}
	}
	return conn, nil
}

// patiently executes a statement that SQLite refuses at once, whatever the busy timeout,
// while another process has the file: the change to WAL is one.
func (s *Store) patiently(ctx context.Context, conn *sql.Conn, statement string) error {
	const pause = 5 * time.Millisecond
	for until := time.Now().Add(s.busy); ; {
		_, err := conn.ExecContext(ctx, statement)
		if code(err) != sqlite3.SQLITE_BUSY || time.Now().After(until) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// plain says in one line what is wrong with a file, in words that need no SQLite.
func plain(err error) error {
	switch code(err) {
	case sqlite3.SQLITE_NOTADB:
		return errors.New("the file is not a SQLite database")
	case sqlite3.SQLITE_BUSY:
		return fmt.Errorf("another process keeps the file locked: %w", err)
	}
	return err
}

// code returns SQLite's primary result code; 0 if the error is nil or not SQLite's.
func code(err error) int {
	if e, ok := errors.AsType[*driver.Error](err); ok {
		return e.Code() & 0xff
	}
	return sqlite3.SQLITE_OK
}

// Changed implements store.Store.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// Close implements store.Store. It finishes the changes in flight.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		close(s.closing)
		s.writer.Wait()
		err = s.read.close()
		if s.ownsDB {
			err = errors.Join(err, s.db.Close())
		}
	})
	return err
}

// isClosing reports whether Close was called.
func (s *Store) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// closed makes an error that only says that the store is closed store.ErrClosed.
func (s *Store) closed(err error) error {
	if err != nil && s.isClosing() {
		return store.ErrClosed
	}
	return err
}
