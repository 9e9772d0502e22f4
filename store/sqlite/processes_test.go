package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/store/sqlite"
	"github.com/coatcheck/coatcheck/task"
)

// childRole and childFile, in the environment, make this test binary another process on a file.
const (
	childRole = "COATCHECK_TEST_ROLE"
	childFile = "COATCHECK_TEST_FILE"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		if err := child(role, os.Getenv(childFile)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func command(role, file string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childRole+"="+role, childFile+"="+file)
	cmd.Stderr = os.Stderr
	return cmd
}

func working(id string) *task.Task {
	now := task.Instant(time.Now())
	return &task.Task{
		Ref: task.Ref{Principal: "p", ID: id}, Revision: 1, Status: task.Working, CreatedAt: now, UpdatedAt: now,
		TTL: time.Hour, Owner: "child", Request: task.Request{Method: "tools/call", Params: []byte(`{}`)},
	}
}

func child(role, file string) error {
	ctx := context.Background()
	s, err := sqlite.Open(ctx, file, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	switch role {
	case "open":
		return s.Renew(ctx, fmt.Sprint(os.Getpid()), time.Now())
	case "create":
		_, err := s.Create(ctx, working("from-child"))
		return err
	case "load":
		var out sync.Mutex
		say := func(format string, args ...any) {
			out.Lock()
			defer out.Unlock()
			fmt.Fprintf(os.Stdout, format, args...)
		}
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := 0; ; i++ {
					t := working(fmt.Sprintf("%d-%d-%d", os.Getpid(), w, i))
					if _, err := s.Create(ctx, t); err != nil {
						return
					}
					say("%s 1\n", t.ID)
					next, err := t.Finish(task.Outcome{Result: []byte(`{"id":"` + t.ID + `"}`)}, "", time.Now())
					if err != nil || s.Update(ctx, next) != nil {
						return
					}
					say("%s 2\n", t.ID)
				}
			})
		}
		wg.Wait()
	}
	return errors.New("unknown role " + role)
}

// What another process commits is signalled and seen; what this one commits is not signalled.
func TestChanged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tasks.db")
	s := open(t, file)
	defer s.Close()
	for i := range 20 {
		if _, err := s.Create(t.Context(), working(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-s.Changed():
		t.Error("this process's own changes were signalled")
	case <-time.After(300 * time.Millisecond): // nothing may come: there is no event to wait for
	}
	if err := command("create", file).Run(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Changed():
	case <-time.After(30 * time.Second):
		t.Fatal("another process's change was not signalled")
	}
	if got, err := s.Get(t.Context(), task.Ref{Principal: "p", ID: "from-child"}); err != nil || got.Status != task.Working {
		t.Errorf("got %+v, %v", got, err)
	}
}

// Many processes open a new file at the same moment: one makes the schema, all succeed.
func TestOpenAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tasks.db")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := command("open", file).Run(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s := open(t, file)
	defer s.Close()
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// A process is killed at random points while it writes: what it said was stored is there.
func TestKill(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tasks.db")
	said := map[string]bool{}
	for range 20 {
		cmd := command("load", file)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, stop := bufio.NewScanner(out), rand.IntN(300)
		for n := 0; lines.Scan(); n++ {
			if n == stop {
				_ = cmd.Process.Kill()
			}
			if line := lines.Text(); strings.Count(line, " ") == 1 { // the last one may be cut off
				said[line] = true
			}
		}
		_ = cmd.Wait()
	}
	s := open(t, file)
	defer s.Close()
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	for line := range said {
		id, revision, _ := strings.Cut(line, " ")
		got, err := s.Load(t.Context(), task.Ref{Principal: "p", ID: id})
		switch {
		case errors.Is(err, store.ErrNotFound) && revision != "1" && revision != "2":
		case err != nil:
			t.Errorf("task %s: %v", id, err)
		case revision == "2" && (got.Status != task.Completed || string(got.Outcome.Result) != `{"id":"`+id+`"}`):
			t.Errorf("task %s: %+v", id, got)
		}
	}
	t.Logf("%d changes acknowledged in 20 rounds", len(said))
}
