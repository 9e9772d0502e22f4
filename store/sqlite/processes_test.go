package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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

// life is what the tasks of a process that is killed go through, from revision 1: two
// questions, an answer to the first, and the end.
var life = []func(*task.Task) (*task.Task, error){
	func(t *task.Task) (*task.Task, error) { return t.Ask("a", says(t, 2), "", time.Now()) },
	func(t *task.Task) (*task.Task, error) { return t.Ask("b", says(t, 3), "", time.Now()) },
	func(t *task.Task) (*task.Task, error) {
		return t.Answer(task.InputRequest{Key: "1"}, task.Outcome{Result: says(t, 4)}, true, "", time.Now())
	},
	func(t *task.Task) (*task.Task, error) {
		return t.Finish(task.Outcome{Result: says(t, 5)}, "", time.Now())
	},
}

// says returns what a task writes with a revision.
func says(t *task.Task, revision int64) []byte { return fmt.Appendf(nil, `{"%s":%d}`, t.ID, revision) }

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
		_, err := s.Create(ctx, working("from-child"), store.Quota{})
		return err
	case "quota":
		_, err := io.Copy(io.Discard, os.Stdin) // until all have started
		var wg sync.WaitGroup
		var made atomic.Int64
		for i := range 50 {
			wg.Go(func() {
				t := working(fmt.Sprintf("%d-%d", os.Getpid(), i))
				if _, err := s.Create(ctx, t, store.Quota{Tasks: 50}); err == nil {
					made.Add(1)
				} else if !errors.Is(err, store.ErrQuota) {
					fmt.Fprintln(os.Stderr, err)
				}
			})
		}
		wg.Wait()
		fmt.Fprintln(os.Stdout, made.Load())
		return err
	case "load":
		var out sync.Mutex
		say := func(format string, args ...any) {
			out.Lock()
			defer out.Unlock()
			fmt.Fprintf(os.Stdout, format, args...)
		}
		failed := make(chan error, 8)
		for w := range 8 {
			go func() {
				for i := 0; ; i++ {
					t := working(fmt.Sprintf("%d-%d-%d", os.Getpid(), w, i))
					if _, err := s.Create(ctx, t, store.Quota{}); err != nil {
						failed <- err
						return
					}
					say("%s 1\n", t.ID)
					for _, change := range life {
						next, err := change(t)
						if err == nil {
							err = s.Update(ctx, next)
						}
						if err != nil {
							failed <- err
							return
						}
						t = next
						say("%s %d\n", t.ID, t.Revision)
					}
				}
			}()
		}
		return <-failed // none should: this process is killed
	}
	return errors.New("unknown role " + role)
}

// What another process commits is signalled and seen; what this one commits is not signalled.
func TestChanged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tasks.db")
	s, err := sqlite.Open(t.Context(), file, &sqlite.Options{Follow: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, until := 0, time.Now().Add(200*time.Millisecond); time.Now().Before(until); i++ { // it looks many times
		if _, err := s.Create(t.Context(), working(fmt.Sprint(i)), store.Quota{}); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-s.Changed():
		t.Error("this process's own changes were signalled")
	default:
	}
	if err := command("create", file).Run(); err != nil {
		t.Fatal(err)
	}
	awaitChange(t, s)
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

// A process is killed at random points while it writes: what it said was stored is there
// (promise 1).
func TestKill(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tasks.db")
	said := map[string]int64{} // revision by id
	const rounds = 20
	for range rounds {
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
			// The last line may be cut off.
			if id, word, _ := strings.Cut(lines.Text(), " "); word != "" {
				if said[id], err = strconv.ParseInt(word, 10, 64); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("the process was not killed: %v", cmd.ProcessState)
		}
		checkSaid(t, file, said)
	}
	if len(said) < rounds {
		t.Errorf("only %d tasks were acknowledged", len(said))
	}
	t.Logf("%d tasks acknowledged in %d rounds", len(said), rounds)
}

// checkSaid opens the file after a crash and looks for what was acknowledged.
func checkSaid(t *testing.T, file string, said map[string]int64) {
	t.Helper()
	s := open(t, file)
	defer s.Close()
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	for id, revision := range said {
		got, err := s.Load(t.Context(), task.Ref{Principal: "p", ID: id})
		if err != nil {
			t.Errorf("task %s: %v", id, err)
			continue
		}
		// More may be stored than was said: it was killed before it could say so.
		if got.Revision < revision || !holds(got) {
			t.Errorf("task %s, acknowledged at revision %d: %+v", id, revision, got)
		}
	}
}

// holds reports whether a task has all that life wrote up to its revision, and no more.
func holds(t *task.Task) bool {
	var want, got []string
	for i, name := range []string{"ask a", "ask b", "answer", "end"} {
		if revision := int64(i) + 2; t.Revision >= revision {
			want = append(want, fmt.Sprintf("%s %s", name, says(t, revision)))
		}
	}
	for _, in := range t.Inputs {
		got = append(got, fmt.Sprintf("ask %s %s", in.Method, in.Params))
	}
	for _, in := range t.Inputs {
		if in.Answer != nil {
			got = append(got, fmt.Sprintf("answer %s", in.Answer.Result))
		}
	}
	if t.Outcome != nil {
		got = append(got, fmt.Sprintf("end %s", t.Outcome.Result))
	}
	return slices.Equal(got, want)
}
