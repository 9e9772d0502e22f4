// Package sqlite is the store on a SQLite file: durable against kill -9 and power loss (WAL,
// synchronous=FULL), for one process or several on one machine.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
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
	// BusyTimeout is how long a change waits for another process's. Default 10 s.
	BusyTimeout time.Duration
	// Readers is how many connections read beside the one that writes. Default 4.
	Readers int
}

// Store keeps tasks in a SQLite database.
type Store struct {
	db     *sql.DB
	ownsDB bool
	busy   time.Duration

	changes chan *change  // to the writer
	changed chan struct{} // from the writer: another process committed
	closing chan struct{}
	once    sync.Once
	writer  sync.WaitGroup

	read statements
}

var _ store.Store = (*Store)(nil)

// Open opens the database in a file, and makes it (mode 0600) if it is not there. Any
// number of processes on one machine may have it open.
func Open(ctx context.Context, file string, opts *Options) (*Store, error) {
	o := opts.withDefaults()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", fmt.Sprintf("file:%s?_pragma=busy_timeout(%d)", (&url.URL{Path: file}).EscapedPath(), o.BusyTimeout.Milliseconds()))
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
// It changes db's pool so that a reader or two are always there, and stays the caller's to
// close, after the Store. An in-memory database needs a shared cache.
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
	return o
}

func open(ctx context.Context, db *sql.DB, ownsDB bool, o Options) (*Store, error) {
	db.SetMaxOpenConns(o.Readers + 1)
	db.SetMaxIdleConns(o.Readers + 1)
	s := &Store{
		db:      db,
		ownsDB:  ownsDB,
		busy:    o.BusyTimeout,
		changes: make(chan *change),
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
		return nil, errors.Join(err, conn.Close())
	}
	if err := s.read.prepare(ctx, db); err != nil {
		return nil, errors.Join(err, conn.Close())
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
		busy, ok := errors.AsType[*driver.Error](err)
		if !ok || busy.Code()&0xff != sqlite3.SQLITE_BUSY || time.Now().After(until) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// plain says in one line what is wrong with a file that is no database.
func plain(err error) error {
	if strings.Contains(err.Error(), "file is not a database") {
		return errors.New("the file is not a SQLite database")
	}
	return err
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

// closed makes an error that only says that the store is closed store.ErrClosed.
func (s *Store) closed(err error) error {
	select {
	case <-s.closing:
		return store.ErrClosed
	default:
		return err
	}
}
