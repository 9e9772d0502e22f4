package sqlite

import (
	"context"
	"database/sql"
	"errors"
)

// statements are those that read, on connections beside the writer's.
type statements struct {
	get, load, inputs, expired, list, listFirst, due, nextDue, orphans *sql.Stmt
}

func (r *statements) all() map[**sql.Stmt]string {
	return map[**sql.Stmt]string{
		&r.get:     `SELECT ` + stateColumns + ` FROM tasks WHERE principal = ? AND id = ?`,
		&r.load:    `SELECT ` + wholeColumns + ` FROM tasks WHERE principal = ? AND id = ?`,
		&r.inputs:  `SELECT key, method, params, answer, body FROM inputs WHERE principal = ? AND id = ? ORDER BY n`,
		&r.expired: `SELECT 1 FROM expired WHERE principal = ? AND id = ?`,
		&r.list: `SELECT ` + stateColumns + ` FROM tasks WHERE principal = ? AND (created_at, id) < (?, ?)
			ORDER BY created_at DESC, id DESC LIMIT ?`,
		&r.listFirst: `SELECT ` + stateColumns + ` FROM tasks WHERE principal = ? ORDER BY created_at DESC, id DESC LIMIT ?`,
		&r.due: `SELECT ` + stateColumns + ` FROM tasks WHERE expires_at <= ?1 AND (owner IN ('', ?2) OR ` + dead + `)
			ORDER BY expires_at LIMIT ?3`,
		&r.nextDue: `SELECT min(expires_at) FROM tasks WHERE expires_at > ?`,
		&r.orphans: `SELECT ` + wholeColumns + ` FROM tasks WHERE owner <> '' AND ` + dead + ` LIMIT ?2`,
	}
}

func (r *statements) prepare(ctx context.Context, db *sql.DB) error {
	for to, query := range r.all() {
		stmt, err := db.PrepareContext(ctx, query) //nolint:sqlclosecheck // close closes it
		if err != nil {
			return errors.Join(err, r.close())
		}
		*to = stmt
	}
	return nil
}

func (r *statements) close() error {
	var errs []error
	for to := range r.all() {
		if *to != nil {
			errs = append(errs, (*to).Close())
		}
	}
	return errors.Join(errs...)
}
