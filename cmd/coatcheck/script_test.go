package main

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

// patience bounds every wait for another process. Nothing waits this long unless something
// is broken.
const patience = time.Minute

func TestMain(m *testing.M) {
	testscript.Main(leakTest{m}, map[string]func(){"coatcheck": main, "asking-server": askingServer, "sampling-server": samplingServerMain, "make-certificate": makeCertificate, "counted-server": countedServer})
}

// leakTest runs the tests and fails if goroutines are left.
type leakTest struct{ m *testing.M }

func (l leakTest) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		os.Stderr.WriteString(err.Error() + "\n")
		return 1
	}
	return code
}

// TestScripts runs the scripts with the binary and real servers.
func TestScripts(t *testing.T) { runScripts(t, "testdata/script") }

func runScripts(t *testing.T, dir string) {
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Values[programsKey{}] = programs{}
			env.Setenv("GORACE", race)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "start": start, "signal": sendSignal, "finish": finish,
		},
	})
}

// exits runs a program in the foreground and checks its exit code.
//
//	exits CODE PROGRAM ARG…
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG…")
	}
	checkCode(ts, args[0], ts.Exec(args[1], args[2:]...))
}

func checkCode(ts *testscript.TestScript, want string, err error) {
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(code) != want {
		ts.Fatalf("exit code %d, want %s", code, want)
	}
}

// race keeps a binary with the race detector from waiting a second before it exits.
const race = "atexit_sleep_ms=0"

// programs are those that run in the background of a script, by name.
type programs map[string]*program

type programsKey struct{} // of testscript.Env.Values

// program is a program in the background.
type program struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // of the program, once exited is closed
}

// start runs a program in the background, with its output in NAME.out and NAME.err, and
// waits until one of them matches the pattern. The match of its last group is then in $NAME.
//
//	start NAME PATTERN PROGRAM ARG…
func start(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: start NAME PATTERN PROGRAM ARG…")
	}
	name, pattern := args[0], regexp.MustCompile("(?m)"+args[1])
	path, err := exec.LookPath(args[2])
	ts.Check(err)
	p := &program{cmd: exec.Command(path, args[3:]...), exited: make(chan struct{})}
	p.cmd.Dir = ts.MkAbs(".")
	p.cmd.Env = append(os.Environ(), "HOME="+ts.Getenv("HOME"), "TMPDIR="+ts.Getenv("TMPDIR"), "GORACE="+race)
	out, err := os.Create(ts.MkAbs(name + ".out"))
	ts.Check(err)
	errs, err := os.Create(ts.MkAbs(name + ".err"))
	ts.Check(err)
	p.cmd.Stdout, p.cmd.Stderr = out, errs
	ts.Check(p.cmd.Start())
	go func() {
		p.err = p.cmd.Wait()
		out.Close()
		errs.Close()
		close(p.exited)
	}()
	ts.Value(programsKey{}).(programs)[name] = p
	ts.Defer(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may be gone
		select {
		case <-p.exited:
		case <-time.After(patience):
			_ = p.cmd.Process.Kill()
			<-p.exited
		}
	})

	said := func() bool {
		m := pattern.FindStringSubmatch(ts.ReadFile(name+".out") + "\n" + ts.ReadFile(name+".err"))
		if m != nil {
			ts.Setenv(name, m[len(m)-1])
		}
		return m != nil
	}
	tick := time.NewTicker(10 * time.Millisecond) // another process writes the files
	defer tick.Stop()
	deadline := time.After(patience)
	for !said() {
		select {
		case <-tick.C:
		case <-p.exited:
			if !said() {
				ts.Fatalf("%s ended (%v) before it said %q:\n%s", name, p.err, args[1], ts.ReadFile(name+".err"))
			}
		case <-deadline:
			ts.Fatalf("%s did not say %q:\n%s", name, args[1], ts.ReadFile(name+".err"))
		}
	}
}

func running(ts *testscript.TestScript, name string) *program {
	p := ts.Value(programsKey{}).(programs)[name]
	if p == nil {
		ts.Fatalf("there is no program %s", name)
	}
	return p
}

// sendSignal sends a signal to a program that start started.
//
//	signal NAME INT|TERM|KILL
func sendSignal(ts *testscript.TestScript, neg bool, args []string) {
	signals := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL}
	if neg || len(args) != 2 || signals[args[1]] == 0 {
		ts.Fatalf("usage: signal NAME INT|TERM|KILL")
	}
	ts.Check(running(ts, args[0]).cmd.Process.Signal(signals[args[1]]))
}

// finish waits until a program that start started has ended, and checks its exit code; -1
// is that of a killed one.
//
//	finish NAME CODE
func finish(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: finish NAME CODE")
	}
	p := running(ts, args[0])
	select {
	case <-p.exited:
	case <-time.After(patience):
		ts.Fatalf("%s does not end", args[0])
	}
	ts.Logf("[%s.err]\n%s", args[0], ts.ReadFile(args[0]+".err"))
	checkCode(ts, args[1], p.err)
}
