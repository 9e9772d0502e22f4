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
	// 3: what each principal has stored, if anything. The triggers keep count also of what an
	// earlier program writes that has the file open still.
	`CREATE TABLE usage (
		principal TEXT PRIMARY KEY,
		tasks     INTEGER NOT NULL,
		bytes     INTEGER NOT NULL -- of params and bodies, of tasks and inputs
	) WITHOUT ROWID;
	INSERT INTO usage SELECT principal, sum(n), sum(bytes) FROM (
		SELECT principal, 1 AS n, coalesce(octet_length(params), 0) + coalesce(octet_length(body), 0) AS bytes FROM tasks
		UNION ALL SELECT principal, 0, coalesce(octet_length(params), 0) + coalesce(octet_length(body), 0) FROM inputs
	) GROUP BY principal;
	CREATE TRIGGER task_stored AFTER INSERT ON tasks BEGIN
		INSERT INTO usage
			VALUES (NEW.principal, 1, coalesce(octet_length(NEW.params), 0) + coalesce(octet_length(NEW.body), 0))
			ON CONFLICT (principal) DO UPDATE SET tasks = tasks + 1, bytes = bytes + excluded.bytes;
	END;
	CREATE TRIGGER outcome_stored AFTER UPDATE OF body ON tasks
	WHEN octet_length(NEW.body) IS NOT octet_length(OLD.body) BEGIN
		UPDATE usage SET bytes = bytes + coalesce(octet_length(NEW.body), 0) - coalesce(octet_length(OLD.body), 0)
			WHERE principal = NEW.principal;
	END;
	CREATE TRIGGER task_deleted AFTER DELETE ON tasks BEGIN
		UPDATE usage SET tasks = tasks - 1,
			bytes = bytes - coalesce(octet_length(OLD.params), 0) - coalesce(octet_length(OLD.body), 0)
			WHERE principal = OLD.principal;
		DELETE FROM usage WHERE principal = OLD.principal AND tasks = 0;
	END;
	CREATE TRIGGER input_stored AFTER INSERT ON inputs BEGIN
		UPDATE usage SET bytes = bytes + coalesce(octet_length(NEW.params), 0) + coalesce(octet_length(NEW.body), 0)
			WHERE principal = NEW.principal;
	END;
	CREATE TRIGGER answer_stored AFTER UPDATE OF body ON inputs
	WHEN octet_length(NEW.body) IS NOT octet_length(OLD.body) BEGIN
		UPDATE usage SET bytes = bytes + coalesce(octet_length(NEW.body), 0) - coalesce(octet_length(OLD.body), 0)
			WHERE principal = NEW.principal;
	END;
	CREATE TRIGGER input_deleted AFTER DELETE ON inputs BEGIN
		UPDATE usage SET bytes = bytes - coalesce(octet_length(OLD.params), 0) - coalesce(octet_length(OLD.body), 0)
			WHERE principal = OLD.principal;
	END;`,
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
