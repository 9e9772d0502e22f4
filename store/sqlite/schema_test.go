package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coatcheck/coatcheck/store/sqlite"
	"github.com/coatcheck/coatcheck/task"
)

// currentSchema is the schema this program writes. A new migration adds one to it, and a
// dump of what the new schema writes to testdata, to stay there for ever.
const currentSchema = 1

func rawDB(t *testing.T, file string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// A database written with each earlier schema opens, passes the check, and has its tasks.
func TestEarlierSchemas(t *testing.T) {
	for version := 1; version <= currentSchema; version++ {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			dump, err := os.ReadFile(fmt.Sprintf("testdata/schema-%d.sql", version))
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "old.db")
			db := rawDB(t, file)
			if _, err := db.Exec(string(dump)); err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			s := open(t, file)
			defer s.Close()
			if err := s.Check(t.Context()); err != nil {
				t.Error(err)
			}
			for id, want := range map[string]struct {
				status  task.Status
				outcome string
				isError bool
			}{
				"working":        {task.Working, "", false},
				"input_required": {task.InputRequired, "", false},
				"completed":      {task.Completed, `{"content":[],"ü":1.0}`, false},
				"is-error":       {task.Failed, `{"content":[],"isError":true}`, true},
				"error":          {task.Failed, `{"code":-32050,"message":"m"}`, false},
				"cancelled":      {task.Cancelled, "", false},
			} {
				got, err := s.Load(t.Context(), task.Ref{Principal: "alice", ID: id})
				if err != nil {
					t.Errorf("%s: %v", id, err)
					continue
				}
				outcome := ""
				if o := got.Outcome; o != nil {
					outcome = string(o.Result) + string(o.Error)
					if o.IsError != want.isError {
						t.Errorf("%s: isError %v", id, o.IsError)
					}
				}
				if got.Status != want.status || outcome != want.outcome || string(got.Request.Params) != `{"name":"x"}` {
					t.Errorf("%s: %+v with outcome %s", id, got, outcome)
				}
			}
			var now int
			if err := rawDB(t, file).QueryRow("PRAGMA user_version").Scan(&now); err != nil || now != currentSchema {
				t.Errorf("schema %d, %v", now, err)
			}
		})
	}
}

func TestNewerSchema(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new.db")
	if _, err := rawDB(t, file).Exec(fmt.Sprintf("PRAGMA user_version = %d", currentSchema+1)); err != nil {
		t.Fatal(err)
	}
	s, err := sqlite.Open(t.Context(), file, nil)
	if err == nil {
		s.Close()
		t.Fatal("a newer schema was opened")
	}
	if !strings.Contains(err.Error(), "schema") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %q", err)
	}
}

// What cannot be opened is said in one line.
func TestCannotOpen(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage.db")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("this is no database\n", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{garbage, dir, filepath.Join(dir, "missing", "x.db")} {
		s, err := sqlite.Open(t.Context(), file, nil)
		if err == nil {
			s.Close()
			t.Errorf("%s was opened", file)
			continue
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("error %q", err)
		}
	}
}

func TestFileMode(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a b?#%.db") // a name with what URLs take for something else
	open(t, file).Close()
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info, err)
	}
}

func TestOpenDB(t *testing.T) {
	db := rawDB(t, filepath.Join(t.TempDir(), "theirs.db"))
	s, err := sqlite.OpenDB(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), task.Ref{ID: "x"}); err == nil {
		t.Error("found what is not there")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := db.PingContext(context.Background()); err != nil {
		t.Errorf("Close closed the caller's database: %v", err)
	}
}
