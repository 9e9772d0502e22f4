package sqlite_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/store/sqlite"
	"github.com/coatcheck/coatcheck/task"
)

// currentSchema is the schema this program writes. A new migration adds one to it, and a
// dump of what the new schema writes to testdata, to stay there for ever.
const currentSchema = 3

func rawDB(t *testing.T, file string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// schemaOf returns the schema of a database, without the white space and comments in it.
func schemaOf(t *testing.T, file string) string {
	t.Helper()
	rows, err := rawDB(t, file).QueryContext(t.Context(), "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var statement string
		if err := rows.Scan(&statement); err != nil {
			t.Fatal(err)
		}
		statement = regexp.MustCompile(`--.*`).ReplaceAllString(statement, "")
		all = append(all, strings.Join(strings.Fields(statement), " "))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, ";\n")
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
			bytes := 0
			for id, want := range map[string]struct {
				status  task.Status
				outcome string
				isError bool
				inputs  []string // since schema 2
			}{
				"working": {status: task.Working},
				"input_required": {status: task.InputRequired, inputs: []string{
					`1 elicitation/create {"message":"ü",  "x":1.0}: {"action":"accept","content":{"ü":1.0}} false`,
					`2 sampling/createMessage {"messages":[]}: {"code":-1,"message":"m"} false`,
					`3 tools/call {}: {"isError":true} true`,
					`4 roots/list : open`,
				}},
				"completed": {status: task.Completed, outcome: `{"content":[],"ü":1.0}`, inputs: []string{
					`1 elicitation/create {}: {"action":"decline"} false`,
				}},
				"is-error":  {status: task.Failed, outcome: `{"content":[],"isError":true}`, isError: true},
				"error":     {status: task.Failed, outcome: `{"code":-32050,"message":"m"}`},
				"cancelled": {status: task.Cancelled, inputs: []string{`1 elicitation/create {}: open`}},
			} {
				got, err := s.Load(t.Context(), task.Ref{Principal: "alice", ID: id})
				if err != nil {
					t.Errorf("%s: %v", id, err)
					continue
				}
				bytes += len(got.Request.Params)
				outcome := ""
				if o := got.Outcome; o != nil {
					outcome = string(o.Result) + string(o.Error)
					if o.IsError != want.isError {
						t.Errorf("%s: isError %v", id, o.IsError)
					}
				}
				bytes += len(outcome)
				if got.Status != want.status || outcome != want.outcome || string(got.Request.Params) != `{"name":"x"}` {
					t.Errorf("%s: %+v with outcome %s", id, got, outcome)
				}
				var inputs []string
				for _, in := range got.Inputs {
					bytes += len(in.Params)
					answer := "open"
					if in.Answer != nil {
						bytes += len(in.Answer.Result) + len(in.Answer.Error)
						answer = fmt.Sprintf("%s%s %v", in.Answer.Result, in.Answer.Error, in.Answer.IsError)
					}
					inputs = append(inputs, fmt.Sprintf("%s %s %s: %s", in.Key, in.Method, in.Params, answer))
				}
				if version < 2 {
					want.inputs = nil
				}
				if !slices.Equal(inputs, want.inputs) || got.Asked != len(want.inputs) {
					t.Errorf("%s: asked %d, input requests %q", id, got.Asked, inputs)
				}
			}
			// The other tables: an expired task, an idempotency key, and a lease.
			if _, err := s.Get(t.Context(), task.Ref{Principal: "alice", ID: "gone"}); !errors.Is(err, store.ErrExpired) {
				t.Errorf("an expired task: %v", err)
			}
			again := working("again")
			again.Principal, again.Key = "alice", "k1"
			if existing, err := s.Create(t.Context(), again, store.Quota{}); err != nil || existing == nil || existing.ID != "completed" {
				t.Errorf("a key: %+v, %v", existing, err)
			}
			more := working("more")
			more.Principal = "alice"
			if _, err := s.Create(t.Context(), more, store.Quota{Tasks: 6}); !errors.Is(err, store.ErrQuota) {
				t.Errorf("a seventh task within a quota of 6: %v", err)
			}
			var counted [2]int // since schema 3
			err = rawDB(t, file).QueryRow("SELECT tasks, bytes FROM usage WHERE principal = 'alice'").Scan(&counted[0], &counted[1])
			if err != nil || counted != [2]int{6, bytes} {
				t.Errorf("usage %d, %v; want 6 tasks, %d bytes", counted, err, bytes)
			}
			lease := time.UnixMilli(1767322810000)
			for at, want := range map[time.Time]int{lease.Add(-time.Millisecond): 0, lease: 2} {
				if orphans, err := s.Orphans(t.Context(), at, 9); err != nil || len(orphans) != want {
					t.Errorf("orphans at %v: %v, %v", at, orphans, err)
				}
			}
			fresh := filepath.Join(t.TempDir(), "new.db")
			open(t, fresh).Close()
			if got, want := schemaOf(t, file), schemaOf(t, fresh); got != want {
				t.Errorf("migrated:\n%s\nnew:\n%s", got, want)
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
