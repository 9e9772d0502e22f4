package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/coatcheck/coatcheck/store"
)

// maxBatch bounds the changes in one transaction.
const maxBatch = 256

// change is one atomic change that waits for its transaction.
type change struct {
	do   func(context.Context, *writer) error // may run more than once
	err  error                                // the change's own, if the transaction was committed
	done chan error                           // the transaction's
}

// writer is the one connection that writes, with its statements.
type writer struct {
	conn *sql.Conn
	begin, commit, rollback, dataVersion,
	create, byKey, usage, update, putInput, exists, expire, expireInputs, remember, forget, bury, renew, release, rekey *sql.Stmt
}

func newWriter(ctx context.Context, conn *sql.Conn) (*writer, error) {
	w := &writer{conn: conn}
	for to, query := range w.all() {
		stmt, err := conn.PrepareContext(ctx, query) //nolint:sqlclosecheck // close closes it
		if err != nil {
			return nil, err
		}
		*to = stmt
	}
	return w, nil
}

func (w *writer) all() map[**sql.Stmt]string {
	return map[**sql.Stmt]string{
		&w.begin:        "BEGIN IMMEDIATE",
		&w.commit:       "COMMIT",
		&w.rollback:     "ROLLBACK",
		&w.dataVersion:  "PRAGMA data_version",
		&w.create:       createSQL,
		&w.byKey:        byKeySQL,
		&w.usage:        usageSQL,
		&w.update:       updateSQL,
		&w.putInput:     putInputSQL,
		&w.exists:       existsSQL,
		&w.expire:       "DELETE FROM tasks WHERE principal = ? AND id = ? AND expires_at <= ? RETURNING asked",
		&w.expireInputs: "DELETE FROM inputs WHERE principal = ? AND id = ?",
		&w.remember:     "INSERT OR REPLACE INTO expired (principal, id, remember_until) VALUES (?, ?, ?)",
		&w.forget:       "DELETE FROM expired WHERE remember_until <= ?",
		&w.bury:         "DELETE FROM owners WHERE alive_until <= ?", // no row and a dead one are the same
		&w.renew:        "INSERT OR REPLACE INTO owners (owner, alive_until) VALUES (?, ?)",
		&w.rekey:        "UPDATE OR IGNORE tasks SET key = ? WHERE principal = ? AND id = ?",
		&w.release:      "DELETE FROM owners WHERE owner = ?",
	}
}

// close gives the connection back without the statements: it may be one of a caller's pool.
func (w *writer) close() error {
	var errs []error
	for to := range w.all() {
		errs = append(errs, (*to).Close())
	}
	return errors.Join(append(errs, w.conn.Close())...)
}

// submit has the writer make a change, and returns when it is durable. If ctx ends first
// the change may still be made, whole.
func (s *Store) submit(ctx context.Context, do func(context.Context, *writer) error) error {
	if s.isClosing() { // select would let some in, and Close finishes what is in
		return store.ErrClosed
	}
	c := &change{done: make(chan error, 1), do: func(background context.Context, w *writer) error {
		if err := ctx.Err(); err != nil {
			return err // the caller left while another process had the file
		}
		return do(background, w)
	}}
	select {
	case s.changes <- c:
	case <-s.closing:
		return store.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-c.done:
		return c.answer(err)
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stopped:
		select {
		case err := <-c.done:
			return c.answer(err)
		default:
			return store.ErrClosed // it came after the writer's last look
		}
	}
}

func (c *change) answer(transaction error) error {
	if transaction != nil {
		return transaction
	}
	return c.err
}

// write is the writer's loop: it takes all changes that wait, makes them in one transaction
// and answers them after the commit (group commit). While it is idle it looks whether
// another process committed.
func (s *Store) write(w *writer, follow time.Duration) {
	ctx := context.Background()
	defer close(s.stopped)
	defer func() { _ = w.close() }()
	var seen int64
	_ = w.dataVersion.QueryRowContext(ctx).Scan(&seen)
	tick := time.NewTicker(follow)
	defer tick.Stop()
	for {
		select {
		case c := <-s.changes:
			s.commit(ctx, w, s.batch(c))
		case <-tick.C:
			version := seen
			if w.dataVersion.QueryRowContext(ctx).Scan(&version) == nil && version != seen {
				seen = version
				select {
				case s.changed <- struct{}{}:
				default:
				}
			}
		case <-s.closing:
			for { // those in flight
				select {
				case c := <-s.changes:
					s.commit(ctx, w, s.batch(c))
				default:
					return
				}
			}
		}
	}
}

// batch returns c with all other changes that wait now. It lets those go first who are about
// to submit one: a sync costs much more than a look.
func (s *Store) batch(c *change) []*change {
	batch := []*change{c}
	for range 2 {
		runtime.Gosched()
		batch = s.waiting(batch)
	}
	return batch
}

// waiting adds the changes that wait to a batch.
func (s *Store) waiting(batch []*change) []*change {
	for len(batch) < maxBatch {
		select {
		case c := <-s.changes:
			batch = append(batch, c)
		default:
			return batch
		}
	}
	return batch
}

// commit makes changes in one transaction. If one of them breaks it, for another reason
// than those a change reports, each gets a transaction of its own.
func (s *Store) commit(ctx context.Context, w *writer, batch []*change) {
	err := s.transaction(ctx, w, batch)
	if err != nil && len(batch) > 1 && code(err) != sqlite3.SQLITE_BUSY {
		for _, c := range batch {
			c.done <- s.transaction(ctx, w, []*change{c})
		}
		return
	}
	for _, c := range batch {
		c.done <- err
	}
}

func (s *Store) transaction(ctx context.Context, w *writer, batch []*change) error {
	for {
		_, err := w.begin.ExecContext(ctx)
		if err == nil {
			break
		}
		if code(err) != sqlite3.SQLITE_BUSY || s.isClosing() { // the busy timeout paces the attempts
			return plain(err)
		}
	}
	for _, c := range batch {
		if c.err = c.do(ctx, w); c.err != nil && !reported(c.err) {
			_, _ = w.rollback.ExecContext(ctx)
			return c.err
		}
	}
	if _, err := w.commit.ExecContext(ctx); err != nil {
		_, _ = w.rollback.ExecContext(ctx)
		return err
	}
	return nil
}

// reported tells an answer to one change from a fault of the transaction: a change that
// returns one of these has changed nothing.
func reported(err error) bool {
	return errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrExpired) ||
		errors.Is(err, store.ErrQuota) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
