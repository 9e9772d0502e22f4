package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/coatcheck/coatcheck/task"
)

const putInputSQL = `INSERT INTO inputs (principal, id, key, method, params, answer, body) VALUES (?, ?, ?, ?, ?, ?, ?)
	ON CONFLICT (principal, id, key) DO UPDATE SET answer = excluded.answer, body = excluded.body`

// putInputs stores the inputs that an update names.
func (w *writer) putInputs(ctx context.Context, t *task.Task) error {
	for _, input := range t.Inputs {
		kind, body := kindOf(input.Answer)
		_, err := w.putInput.ExecContext(ctx, string(t.Principal), t.ID, input.Key, input.Method, []byte(input.Params), kind, body)
		if err != nil {
			return err
		}
	}
	return nil
}

// withInputs returns a task and its inputs as they were at one moment.
func (s *Store) withInputs(ctx context.Context, ref task.Ref) (*task.Task, error) {
	ctx = context.WithoutCancel(ctx) // as in one
	t, err := s.snapshot(ctx, ref)
	if err != nil {
		return nil, s.absent(ctx, ref, err)
	}
	return t, nil
}

// snapshot reads both in one transaction: an answer is never newer than the status.
func (s *Store) snapshot(ctx context.Context, ref task.Ref) (*task.Task, error) {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }()
	load, inputs := tx.StmtContext(ctx, s.read.load), tx.StmtContext(ctx, s.read.inputs) //nolint:sqlclosecheck // tx closes them
	t, err := scanWhole(load.QueryRowContext(ctx, string(ref.Principal), ref.ID))
	if err != nil {
		return nil, err
	}
	rows, err := inputs.QueryContext(ctx, string(ref.Principal), ref.ID)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var input task.InputRequest
		var kind int64
		var body []byte
		if err := rows.Scan(&input.Key, &input.Method, (*[]byte)(&input.Params), &kind, &body); err != nil {
			return nil, err
		}
		if input.Answer, err = outcomeOf(kind, body); err != nil {
			return nil, fmt.Errorf("input request %s of task %s: %w", input.Key, t.ID, err)
		}
		t.Inputs = append(t.Inputs, input)
	}
	return t, rows.Err()
}
