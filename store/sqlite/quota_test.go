package sqlite_test

import (
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/coatcheck/coatcheck/store"
)

// SEC-5: of 200 creates at once by four processes on one file, exactly as many are stored as
// the quota allows, and each process knows which.
func TestQuotaOfProcesses(t *testing.T) {
	const processes, quota = 4, 50
	file := filepath.Join(t.TempDir(), "tasks.db")
	s := open(t, file)
	defer s.Close()
	var cmds []*exec.Cmd
	var starts []io.Closer
	var outs [processes]strings.Builder
	for i := range processes {
		cmd := command("quota", file)
		cmd.Stdout = &outs[i]
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds, starts = append(cmds, cmd), append(starts, stdin)
	}
	for _, start := range starts {
		_ = start.Close()
	}
	made := 0
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(outs[i].String()))
		if err != nil {
			t.Error(err)
		}
		made += n
	}
	list, err := s.List(t.Context(), "p", store.Position{}, processes*quota)
	if err != nil || made != quota || len(list) != quota {
		t.Errorf("%d creates succeeded, %d tasks are stored, %v; want %d", made, len(list), err, quota)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// A program that knows no quotas, and has had the file open since before they were added,
// writes on: what it writes is counted. These are statements of schema 2.
func TestUsageOfEarlierProgram(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tasks.db")
	s := open(t, file)
	defer s.Close()
	db := rawDB(t, file)
	for i, step := range []struct {
		statement string
		want      string
		whole     bool // the change
	}{
		{`INSERT INTO tasks (principal, id, revision, status, status_message, created_at, updated_at, ttl, poll_interval, owner,
			remote, outcome, method, params) VALUES ('p', 'x', 1, 'working', '', 1, 1, 0, 0, 'o', '', 0, 'm', 'é')`, "1 task, 2 bytes", true},
		{`UPDATE tasks SET revision = 2, status = 'input_required', asked = 1 WHERE id = 'x'`, "1 task, 2 bytes", false},
		{`INSERT INTO inputs (principal, id, key, method, params, answer, body) VALUES ('p', 'x', '1', 'm', X'00', 0, NULL)
			ON CONFLICT (principal, id, key) DO UPDATE SET answer = excluded.answer, body = excluded.body`, "1 task, 3 bytes", true},
		{`INSERT INTO inputs (principal, id, key, method, params, answer, body) VALUES ('p', 'x', '1', 'm', X'00', 1, X'0000')
			ON CONFLICT (principal, id, key) DO UPDATE SET answer = excluded.answer, body = excluded.body`, "1 task, 5 bytes", false},
		{`UPDATE tasks SET revision = 3, status = 'completed', owner = '', outcome = 1, body = X'00000000' WHERE id = 'x'`, "1 task, 9 bytes", true},
		{`DELETE FROM tasks WHERE id = 'x'; DELETE FROM inputs WHERE id = 'x'`, "", true},
	} {
		if _, err := db.Exec(step.statement); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		var got string
		err := db.QueryRow(`SELECT coalesce((SELECT format('%d task, %d bytes', tasks, bytes) FROM usage), '')`).Scan(&got)
		if err != nil || got != step.want {
			t.Errorf("step %d: usage %q, %v, want %q", i, got, err, step.want)
		}
		// Between the halves of a change the task's status is not that of its inputs.
		if err := s.Check(t.Context()); err != nil && step.whole {
			t.Errorf("step %d: %v", i, err)
		}
	}
}

// The check finds usage that is not what is stored.
func TestCheckOfUsage(t *testing.T) {
	for i, wrong := range []string{
		`UPDATE usage SET bytes = bytes + 1`, `UPDATE usage SET tasks = 2`, `DELETE FROM usage`,
		`INSERT INTO usage VALUES ('nobody', 0, 0)`, `UPDATE usage SET principal = 'q'`,
	} {
		file := filepath.Join(t.TempDir(), fmt.Sprint(i))
		s := open(t, file)
		if _, err := s.Create(t.Context(), working("x"), store.Quota{}); err != nil {
			t.Fatal(err)
		}
		if err := s.Check(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := rawDB(t, file).Exec(wrong); err != nil {
			t.Fatal(err)
		}
		if err := s.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "13: usage") {
			t.Errorf("after %s: %v", wrong, err)
		}
		_ = s.Close()
	}
}
