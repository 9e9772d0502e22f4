package sqlite_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/store/sqlite"
	"github.com/coatcheck/coatcheck/task"
)

// What cannot be opened is said in one line.
func TestCannotOpen(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage.db")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("this is no database\n", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		garbage:                               "the file is not a SQLite database",
		dir:                                   "is a directory",
		filepath.Join(dir, "missing", "x.db"): "no such file or directory",
		"":                                    "no such file or directory",
	} {
		s, err := sqlite.Open(t.Context(), file, nil)
		if err == nil {
			s.Close()
			t.Errorf("%q was opened", file)
			continue
		}
		if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %q, want one line with %q", file, err, want)
		}
	}
}

// A file that another process never unlocks is said in one line.
func TestCannotOpenLocked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tasks.db")
	s, unlock := locked(t, file)
	defer unlock()
	defer s.Close()
	other, err := sqlite.Open(t.Context(), file, &sqlite.Options{BusyTimeout: time.Millisecond})
	if err == nil {
		other.Close()
		t.Fatal("a locked file was opened")
	}
	if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "another process") {
		t.Errorf("error %q", err)
	}
}

// Names are files, whatever they look like; tasks are the owner's to read only (mode 0600).
func TestFileNames(t *testing.T) {
	for _, name := range []string{"a b?#%.db", ":memory:", "file:x?mode=memory"} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			s := open(t, name)
			if _, err := s.Create(t.Context(), working("x"), store.Quota{}); err != nil {
				t.Fatal(err)
			}
			entries, err := os.ReadDir(".")
			if err != nil || len(entries) == 0 || entries[0].Name() != name {
				t.Errorf("files %v, %v", entries, err)
			}
			for _, e := range entries { // the log and the shared memory as well
				if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("%s: mode %v, %v", e.Name(), info.Mode(), err)
				}
			}
			// All readers find the file though the working directory is another now.
			t.Chdir(t.TempDir())
			var wg sync.WaitGroup
			for range 16 {
				wg.Go(func() {
					if _, err := s.Get(t.Context(), task.Ref{Principal: "p", ID: "x"}); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A file that others may read is kept as it is, and complained of, once.
func TestFileMode(t *testing.T) {
	for mode, complaints := range map[os.FileMode]int{0o600: 0, 0o640: 1, 0o666: 1} {
		file := filepath.Join(t.TempDir(), "tasks.db")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil { // whatever the umask
			t.Fatal(err)
		}
		var log bytes.Buffer
		s, err := sqlite.Open(t.Context(), file, &sqlite.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != complaints || n > 0 && !strings.Contains(log.String(), fmt.Sprintf("mode=%04o", mode)) {
			t.Errorf("mode %v: %s", mode, log.String())
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != mode {
			t.Errorf("mode %v became %v, %v", mode, info.Mode(), err)
		}
	}
}

// When the disk is full changes fail in one line, what was acknowledged stays, and the
// store works again once there is room.
func TestDiskFull(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tasks.db")
	open(t, file).Close() // in WAL mode, with its schema
	s, err := sqlite.OpenDB(t.Context(), rawDB(t, file+"?_pragma=max_page_count(100)"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var mu sync.Mutex
	var made []task.Ref
	var failure error
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 1000 {
				tk := working(fmt.Sprintf("%d-%d", w, i))
				tk.Request.Params = []byte(`"` + strings.Repeat("x", 5000) + `"`)
				_, err := s.Create(t.Context(), tk, store.Quota{})
				mu.Lock()
				if err == nil {
					made = append(made, tk.Ref)
				} else {
					failure = err
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if failure == nil || strings.Contains(failure.Error(), "\n") || !strings.Contains(failure.Error(), "full") {
		t.Errorf("error %v", failure)
	}
	if len(made) == 0 {
		t.Fatal("nothing was acknowledged")
	}
	for _, ref := range made {
		if got, err := s.Load(t.Context(), ref); err != nil || len(got.Request.Params) != 5002 {
			t.Errorf("acknowledged task %s: %v", ref.ID, err)
		}
	}
	late := time.Now().Add(2 * time.Hour)
	if err := s.Expire(t.Context(), late, made[:len(made)/2], late); err != nil {
		t.Errorf("making room: %v", err)
	}
	if _, err := s.Create(t.Context(), working("new"), store.Quota{}); err != nil {
		t.Errorf("create when there is room: %v", err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
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
	again, err := sqlite.OpenDB(t.Context(), db, nil) // with the connections of the first
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Create(t.Context(), working("x"), store.Quota{}); err != nil {
		t.Error(err)
	}
	if err := errors.Join(again.Check(t.Context()), again.Close()); err != nil {
		t.Error(err)
	}
}
