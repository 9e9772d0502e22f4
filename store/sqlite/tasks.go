package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

const (
	stateColumns = `principal, id, revision, status, status_message, created_at, updated_at, ttl, poll_interval,
		coalesce(key, ''), asked, owner, remote, outcome`
	wholeColumns = stateColumns + `, method, params, body`

	createSQL = `INSERT INTO tasks (principal, id, revision, status, status_message, created_at, updated_at, ttl, expires_at,
		poll_interval, key, owner, remote, outcome, method, params, body)
		SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
		WHERE (?18 <= 0 OR 1 + coalesce((SELECT tasks FROM usage WHERE principal = ?1), 0) <= ?18)
			AND (?19 <= 0 OR ?20 + coalesce((SELECT bytes FROM usage WHERE principal = ?1), 0) <= ?19)`
	usageSQL  = `SELECT tasks, bytes FROM usage WHERE principal = ?`
	byKeySQL  = `SELECT ` + wholeColumns + ` FROM tasks WHERE principal = ? AND key = ?`
	updateSQL = `UPDATE tasks SET revision = ?, status = ?, status_message = ?, updated_at = ?, ttl = ?, expires_at = ?,
		poll_interval = ?, asked = ?, owner = ?, remote = ?, outcome = ?, body = ?
		WHERE principal = ? AND id = ? AND revision = ? AND status IN ('working', 'input_required')`
	existsSQL = `SELECT 1 FROM tasks WHERE principal = ?1 AND id = ?2
		UNION ALL SELECT 2 FROM expired WHERE principal = ?1 AND id = ?2`

	dead = `NOT EXISTS (SELECT 1 FROM owners WHERE owners.owner = tasks.owner AND alive_until > ?1)`
)

// Create implements store.Store.
func (s *Store) Create(ctx context.Context, t *task.Task, q store.Quota) (*task.Task, error) {
	kind, body := kindOf(t.Outcome)
	size := int64(len(t.Request.Params) + len(body))
	var existing *task.Task
	err := s.submit(ctx, func(ctx context.Context, w *writer) error {
		var err error
		if existing = nil; t.Key != "" {
			existing, err = scanWhole(w.byKey.QueryRowContext(ctx, string(t.Principal), t.Key))
			if !errors.Is(err, sql.ErrNoRows) {
				return err
			}
			existing = nil
		}
		res, err := w.create.ExecContext(ctx, string(t.Principal), t.ID, t.Revision, string(t.Status), t.StatusMessage,
			t.CreatedAt.UnixMilli(), t.UpdatedAt.UnixMilli(), t.TTL.Milliseconds(), expiresAt(t), t.PollInterval.Milliseconds(),
			orNull(t.Key), t.Owner, t.Remote, kind, t.Request.Method, []byte(t.Request.Params), body, q.Tasks, q.Bytes, size)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 1 {
			return err
		}
		return w.exceeded(ctx, t.Principal, q, size)
	})
	if err != nil {
		return nil, err
	}
	return existing, nil
}

// exceeded says which bound of a quota a task of a size exceeds.
func (w *writer) exceeded(ctx context.Context, p task.Principal, q store.Quota, size int64) error {
	var tasks int
	var bytes int64
	if err := w.usage.QueryRowContext(ctx, string(p)).Scan(&tasks, &bytes); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	return q.Exceeded(tasks+1, bytes+size)
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, t *task.Task) error {
	kind, body := kindOf(t.Outcome)
	return s.submit(ctx, func(ctx context.Context, w *writer) error {
		res, err := w.update.ExecContext(ctx, t.Revision, string(t.Status), t.StatusMessage, t.UpdatedAt.UnixMilli(),
			t.TTL.Milliseconds(), expiresAt(t), t.PollInterval.Milliseconds(), t.Asked, t.Owner, t.Remote, kind, body,
			string(t.Principal), t.ID, t.Revision-1)
		if err != nil {
			return err
		}
		switch n, err := res.RowsAffected(); {
		case err != nil:
			return err
		case n == 0:
			return w.whyNot(ctx, t.Ref)
		}
		return w.putInputs(ctx, t)
	})
}

// Rekey implements store.Store.
func (s *Store) Rekey(ctx context.Context, ref task.Ref, key string) error {
	return s.submit(ctx, func(ctx context.Context, w *writer) error {
		res, err := w.rekey.ExecContext(ctx, orNull(key), string(ref.Principal), ref.ID)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 1 {
			return err
		}
		return w.whyNot(ctx, ref)
	})
}

// whyNot says why a task could not be updated.
func (w *writer) whyNot(ctx context.Context, ref task.Ref) error {
	var where int
	switch err := w.exists.QueryRowContext(ctx, string(ref.Principal), ref.ID).Scan(&where); {
	case errors.Is(err, sql.ErrNoRows):
		return store.ErrNotFound
	case err != nil:
		return err
	case where == 1:
		return store.ErrConflict
	}
	return store.ErrExpired
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, ref task.Ref) (*task.Task, error) {
	return s.one(ctx, scanState, s.read.get, ref)
}

// Load implements store.Store.
func (s *Store) Load(ctx context.Context, ref task.Ref) (*task.Task, error) {
	t, err := s.one(ctx, scanWhole, s.read.load, ref)
	if err != nil || t.Asked == 0 {
		return t, err
	}
	return s.withInputs(ctx, ref)
}

// one returns the task that a query selects by its ref.
func (s *Store) one(ctx context.Context, scan func(scanner) (*task.Task, error), stmt *sql.Stmt, ref task.Ref) (*task.Task, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// For a ctx that can end, database/sql and the driver each start a goroutine per query,
	// which costs more than finding a row.
	ctx = context.WithoutCancel(ctx)
	t, err := scan(stmt.QueryRowContext(ctx, string(ref.Principal), ref.ID))
	if err != nil {
		return nil, s.absent(ctx, ref, err)
	}
	return t, nil
}

// absent says why a task was not found, if err says that it was not.
func (s *Store) absent(ctx context.Context, ref task.Ref, err error) error {
	if !errors.Is(err, sql.ErrNoRows) {
		return s.closed(err)
	}
	var one int
	switch err := s.read.expired.QueryRowContext(ctx, string(ref.Principal), ref.ID).Scan(&one); {
	case err == nil:
		return store.ErrExpired
	case errors.Is(err, sql.ErrNoRows):
		return store.ErrNotFound
	default:
		return s.closed(err)
	}
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, p task.Principal, after store.Position, limit int) ([]*task.Task, error) {
	if after == (store.Position{}) {
		return s.many(ctx, scanState, s.read.listFirst, string(p), limit)
	}
	return s.many(ctx, scanState, s.read.list, string(p), after.CreatedAt.UnixMilli(), after.ID, limit)
}

// many returns the tasks that a query selects.
func (s *Store) many(ctx context.Context, scan func(scanner) (*task.Task, error), stmt *sql.Stmt, args ...any) ([]*task.Task, error) {
	rows, err := stmt.QueryContext(ctx, args...)
	if err != nil {
		return nil, s.closed(err)
	}
	defer rows.Close()
	var tasks []*task.Task
	for rows.Next() {
		t, err := scan(rows)
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, t)
	}
	return tasks, s.closed(rows.Err())
}

type scanner interface{ Scan(to ...any) error }

func scanState(row scanner) (*task.Task, error) { return scan(row, false) }

func scanWhole(row scanner) (*task.Task, error) { return scan(row, true) }

func scan(row scanner, whole bool) (*task.Task, error) {
	t := &task.Task{}
	var created, updated, ttl, poll, asked, kind int64
	var body []byte
	to := []any{
		(*string)(&t.Principal), &t.ID, &t.Revision, (*string)(&t.Status), &t.StatusMessage, &created, &updated, &ttl, &poll,
		&t.Key, &asked, &t.Owner, &t.Remote, &kind,
	}
	if whole {
		to = append(to, &t.Request.Method, (*[]byte)(&t.Request.Params), &body)
	}
	if err := row.Scan(to...); err != nil {
		return nil, err
	}
	t.CreatedAt, t.UpdatedAt = time.UnixMilli(created).UTC(), time.UnixMilli(updated).UTC()
	t.TTL, t.PollInterval = time.Duration(ttl)*time.Millisecond, time.Duration(poll)*time.Millisecond
	t.Asked = int(asked)
	var err error
	if t.Outcome, err = outcomeOf(kind, body); err != nil {
		return nil, fmt.Errorf("task %s: %w", t.ID, err)
	}
	return t, nil
}

func expiresAt(t *task.Task) any {
	if at, ok := t.ExpiresAt(); ok {
		return at.UnixMilli()
	}
	return nil
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
