package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/coatcheck/coatcheck/store"
)

const ofTask = `inputs.principal = tasks.principal AND inputs.id = tasks.id`

// invariants select what must not be.
var invariants = []struct{ name, query string }{
	{"1: a task is owned exactly while it is not terminal",
		`SELECT id FROM tasks WHERE (owner <> '') <> (status IN ('working', 'input_required'))`},
	{"2: a completed or failed task has an outcome, and no other has",
		`SELECT id FROM tasks WHERE (outcome <> 0) <> (status IN ('completed', 'failed'))`},
	{"3: a completed task has a result",
		`SELECT id FROM tasks WHERE status = 'completed' AND outcome <> 1`},
	{"4: an outcome has a body, and nothing else has",
		`SELECT id FROM tasks WHERE (outcome <> 0) <> (body IS NOT NULL)`},
	{"5: statuses are known and revisions start at 1",
		`SELECT id FROM tasks WHERE status NOT IN ('working', 'input_required', 'completed', 'failed', 'cancelled') OR revision < 1`},
	{"6: expires_at is created_at plus ttl",
		`SELECT id FROM tasks WHERE expires_at IS NOT CASE ttl WHEN 0 THEN NULL ELSE created_at + ttl END`},
	{"7: a task is stored or expired, not both",
		`SELECT id FROM tasks JOIN expired USING (principal, id)`},
	{"8: times go forward",
		`SELECT id FROM tasks WHERE updated_at < created_at OR ttl < 0 OR poll_interval < 0`},
	{"9: an input request has its task",
		`SELECT DISTINCT id FROM inputs WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE ` + ofTask + `)`},
	{"10: as many input requests are stored as were asked",
		`SELECT id FROM tasks WHERE asked <> (SELECT count(*) FROM inputs WHERE ` + ofTask + `)`},
	{"11: a running task that has asked waits for input exactly while an input request is open",
		`SELECT id FROM tasks WHERE status IN ('working', 'input_required') AND asked > 0
			AND (status = 'input_required') <> EXISTS (SELECT 1 FROM inputs WHERE ` + ofTask + ` AND answer = 0)`},
	{"12: answers are of a known kind and have a body, and nothing else has",
		`SELECT DISTINCT id FROM inputs WHERE answer NOT IN (0, 1, 2, 3) OR (answer <> 0) <> (body IS NOT NULL)`},
	{"13: usage is what is stored, of each principal (a task of his is named)",
		`WITH stored AS (SELECT principal, sum(n), sum(bytes) FROM (
				SELECT principal, 1 AS n, coalesce(octet_length(params), 0) + coalesce(octet_length(body), 0) AS bytes FROM tasks
				UNION ALL SELECT principal, 0, coalesce(octet_length(params), 0) + coalesce(octet_length(body), 0) FROM inputs
			) GROUP BY principal),
			wrong AS (SELECT principal FROM (SELECT * FROM stored EXCEPT SELECT * FROM usage)
				UNION SELECT principal FROM (SELECT * FROM usage EXCEPT SELECT * FROM stored))
		SELECT coalesce((SELECT min(id) FROM tasks WHERE tasks.principal = wrong.principal), 'none') FROM wrong`},
}

// Check implements store.Store.
func (s *Store) Check(ctx context.Context) error {
	if s.isClosing() {
		return store.ErrClosed
	}
	var verdict string
	if err := s.db.QueryRowContext(ctx, "PRAGMA integrity_check").Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return fmt.Errorf("integrity check: %s", verdict)
	}
	var faults []error
	for _, inv := range invariants {
		ids, err := s.violators(ctx, inv.query)
		if err != nil {
			return err
		}
		for _, id := range ids {
			faults = append(faults, fmt.Errorf("invariant %s: task %s", inv.name, id))
		}
	}
	return errors.Join(faults...)
}

func (s *Store) violators(ctx context.Context, query string) (ids []string, err error) {
	rows, err := s.db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}
