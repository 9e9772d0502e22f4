package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/coatcheck/coatcheck/task"
)

// Due implements store.Store.
func (s *Store) Due(ctx context.Context, now time.Time, owner string, limit int) ([]*task.Task, error) {
	return s.many(ctx, scanState, s.read.due, now.UnixMilli(), owner, limit)
}

// NextDue implements store.Store.
func (s *Store) NextDue(ctx context.Context, after time.Time) (time.Time, bool, error) {
	var at sql.NullInt64
	err := s.read.nextDue.QueryRowContext(ctx, after.UnixMilli()).Scan(&at)
	if err != nil || !at.Valid { // min of no rows is NULL
		return time.Time{}, false, s.closed(err)
	}
	return time.UnixMilli(at.Int64).UTC(), true, nil
}

// Expire implements store.Store.
func (s *Store) Expire(ctx context.Context, now time.Time, refs []task.Ref, remember time.Time) error {
	return s.submit(ctx, func(ctx context.Context, w *writer) error {
		if _, err := w.forget.ExecContext(ctx, now.UnixMilli()); err != nil {
			return err
		}
		if _, err := w.bury.ExecContext(ctx, now.UnixMilli()); err != nil {
			return err
		}
		for _, ref := range refs {
			var asked int
			err := w.expire.QueryRowContext(ctx, string(ref.Principal), ref.ID, now.UnixMilli()).Scan(&asked)
			if errors.Is(err, sql.ErrNoRows) {
				continue
			}
			if err != nil {
				return err
			}
			if asked > 0 {
				if _, err := w.expireInputs.ExecContext(ctx, string(ref.Principal), ref.ID); err != nil {
					return err
				}
			}
			if _, err := w.remember.ExecContext(ctx, string(ref.Principal), ref.ID, remember.UnixMilli()); err != nil {
				return err
			}
		}
		return nil
	})
}

// Renew implements store.Store.
func (s *Store) Renew(ctx context.Context, owner string, until time.Time) error {
	return s.submit(ctx, func(ctx context.Context, w *writer) error {
		_, err := w.renew.ExecContext(ctx, owner, until.UnixMilli())
		return err
	})
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, owner string) error {
	return s.submit(ctx, func(ctx context.Context, w *writer) error {
		_, err := w.release.ExecContext(ctx, owner)
		return err
	})
}

// Orphans implements store.Store.
func (s *Store) Orphans(ctx context.Context, now time.Time, limit int) ([]*task.Task, error) {
	return s.many(ctx, scanWhole, s.read.orphans, now.UnixMilli(), limit)
}
