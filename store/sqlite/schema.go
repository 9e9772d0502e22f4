package sqlite

import (
	"context"
	"database/sql"
	"fmt"
)

// migrations bring a database from each version to the next; PRAGMA user_version says which
// it has. A migration that was ever released does not change: add another.
var migrations = []string{
	// 1: tasks, the lease holders that run them, and the ids of expired ones.
	`CREATE TABLE tasks (
		principal      TEXT NOT NULL,
		id             TEXT NOT NULL,
		revision       INTEGER NOT NULL,
		status         TEXT NOT NULL,
		status_message TEXT NOT NULL,
		created_at     INTEGER NOT NULL, -- Unix ms
		updated_at     INTEGER NOT NULL, -- Unix ms
		ttl            INTEGER NOT NULL, -- ms; 0 is unlimited
		expires_at     INTEGER,          -- Unix ms; NULL is never
		poll_interval  INTEGER NOT NULL, -- ms
		key            TEXT,             -- idempotency key; NULL is none
		owner          TEXT NOT NULL,    -- '' once terminal
		remote         TEXT NOT NULL,
		outcome        INTEGER NOT NULL, -- 0 none, 1 result, 2 result with isError, 3 error
		method         TEXT NOT NULL,
		params         BLOB,
		body           BLOB,             -- of the outcome
		UNIQUE (principal, id)
	);
	CREATE UNIQUE INDEX tasks_keyed ON tasks (principal, key) WHERE key IS NOT NULL;
	CREATE INDEX tasks_listed ON tasks (principal, created_at DESC, id DESC);
	CREATE INDEX tasks_due ON tasks (expires_at) WHERE expires_at IS NOT NULL;
	CREATE INDEX tasks_running ON tasks (owner) WHERE owner <> '';
	CREATE TABLE owners (
		owner       TEXT PRIMARY KEY,
		alive_until INTEGER NOT NULL -- Unix ms
	) WITHOUT ROWID;
	CREATE TABLE expired (
		principal      TEXT NOT NULL,
		id             TEXT NOT NULL,
		remember_until INTEGER NOT NULL, -- Unix ms
		PRIMARY KEY (principal, id)
	) WITHOUT ROWID;
	CREATE INDEX expired_forgotten ON expired (remember_until);`,
	// 2: the input requests of tasks. Their order is that of n.
	`ALTER TABLE tasks ADD COLUMN asked INTEGER NOT NULL DEFAULT 0;
	CREATE TABLE inputs (
		n         INTEGER PRIMARY KEY,
		principal TEXT NOT NULL,
		id        TEXT NOT NULL,
		key       TEXT NOT NULL,
		method    TEXT NOT NULL,
		params    BLOB,
		answer    INTEGER NOT NULL, -- as tasks.outcome; 0 is open
		body      BLOB,             -- of the answer
		UNIQUE (principal, id, key)
	);`,
}

// migrate brings the database to the current schema. Of several processes that open it at
// once one does the work while the others wait.
func migrate(ctx context.Context, conn *sql.Conn) error {
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	version, err := migrateLocked(ctx, conn)
	if err != nil {
		_, _ = conn.ExecContext(ctx, "ROLLBACK")
		return err
	}
	if version == len(migrations) {
		_, err = conn.ExecContext(ctx, "ROLLBACK") // nothing to do
		return err
	}
	_, err = conn.ExecContext(ctx, "COMMIT")
	return err
}

func migrateLocked(ctx context.Context, conn *sql.Conn) (from int, err error) {
	if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&from); err != nil {
		return 0, err
	}
	if from > len(migrations) {
		return from, fmt.Errorf("its schema has version %d, this program knows up to %d: use a newer one", from, len(migrations))
	}
	for version := from; version < len(migrations); version++ {
		if _, err := conn.ExecContext(ctx, migrations[version]); err != nil {
			return from, fmt.Errorf("migrating to schema %d: %w", version+1, err)
		}
	}
	_, err = conn.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", len(migrations)))
	return from, err
}
