package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// bench has what all measurements share.
type bench struct {
	settings
	dir      string
	self     string // this binary
	measured string // internal/benchserver of the root module
	running  []*process
	verdicts [][4]string // aim, measured, verdict, note
}

func prepare(s settings) (*bench, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "coatcheck-bench")
	if err != nil {
		return nil, err
	}
	b := &bench{settings: s, dir: dir, self: self, measured: filepath.Join(dir, "benchserver")}
	build := exec.Command("go", "build", "-o", b.measured, "./internal/benchserver")
	build.Dir = ".."
	build.Env = append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the server: %w: %s", err, out)
	}
	return b, nil
}

func (b *bench) close() {
	for _, p := range b.running {
		p.stop()
	}
	_ = os.RemoveAll(b.dir)
}

func (b *bench) db(name string) string { return filepath.Join(b.dir, name+".db") }

// coatcheck starts a Coatcheck server on a database, running tasks natively or with the SDK, with
// more flags and arguments.
func (b *bench) coatcheck(db string, args ...string) (*process, error) {
	return b.started(start(b.measured, append([]string{"-db", b.db(db)}, args...)...))
}

func (b *bench) other(name string) (*process, error) { return b.started(start(b.self, "serve", name)) }

func (b *bench) started(p *process, err error) (*process, error) {
	if err == nil {
		b.running = append(b.running, p)
	}
	return p, err
}

// finished returns a target that gets one finished task.
func finished(name string, p *process) *target {
	var id string
	return &target{
		name: name, process: p,
		setup: func(c *client) (err error) {
			if id, err = c.create(); err != nil {
				return err
			}
			_, err = c.about("tasks/result", id)
			return err
		},
		op: func(c *client, _, _ int) error { return c.get(id) },
	}
}

func (b *bench) throughput(out io.Writer) error {
	fmt.Fprintf(out, "%-44s %10s %8s %8s %10s\n", "", "op/s", "p50", "p99", "server CPU")
	for _, scenario := range []struct {
		name string
		run  func(io.Writer) error
	}{{"get", b.get}, {"create", b.create}, {"sdk", b.sdk}, {"plain", b.plain}, {"stored", b.stored}} {
		if b.only != "" && b.only != scenario.name {
			continue
		}
		if err := scenario.run(out); err != nil {
			return err
		}
		for _, p := range b.running {
			p.stop()
		}
		b.running = nil
	}
	return nil
}

func show(out io.Writer, title string, targets ...*target) {
	fmt.Fprintln(out, title)
	for _, t := range targets {
		fmt.Fprintf(out, "  %-42s %10.0f %8s %8s %7.0f µs\n", t.name, t.rate(), short(quantile(t.latencies, 0.5)), short(quantile(t.latencies, 0.99)),
			float64(t.cpu.Microseconds())/float64(max(1, t.ops)))
	}
	fmt.Fprintln(out)
}

func short(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }

// aim notes whether a ratio of rates reaches what was aimed at.
func (b *bench) aim(what string, least float64, t, other *target) {
	median, low, high := t.ratio(other)
	b.verdict(fmt.Sprintf("%s: at least %.2f", what, least), fmt.Sprintf("%.2f (%.2f to %.2f)", median, low, high), median >= least)
}

func (b *bench) verdict(aim, measured string, ok bool) {
	verdict := "MISS"
	if ok {
		verdict = "OK"
	}
	b.verdicts = append(b.verdicts, [4]string{aim, measured, verdict})
}

// get compares tasks/get of a finished task.
func (b *bench) get(out io.Writer) error {
	bare, err1 := b.other("bare")
	ours, err2 := b.coatcheck("get", "native")
	theirs, err3 := b.other("mcp-go")
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	t := []*target{
		finished("coatcheck, SQLite", ours),
		{
			name: "bare net/http, fixed body", process: bare, session: bareSession,
			op: func(c *client, _, _ int) error { return c.get(bareID) },
		},
		finished("mcp-go, in memory", theirs),
	}
	if err := alternate(b.settings, t...); err != nil {
		return err
	}
	show(out, "tasks/get of a finished task", t...)
	b.aim("tasks/get, by bare net/http", 0.85, t[0], t[1])
	b.aim("tasks/get, by mcp-go", 1.6, t[0], t[2])
	return nil
}

func completed(c *client, _, _ int) error { return c.completed() }

// create compares the whole life of a task whose work is nothing.
func (b *bench) create(out io.Writer) error {
	ours, err1 := b.coatcheck("create", "native")
	theirs, err2 := b.other("mcp-go")
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	t := []*target{
		{name: "coatcheck, SQLite with full sync", process: ours, op: completed},
		{name: "mcp-go, in memory", process: theirs, op: completed},
	}
	if err := alternate(b.settings, t...); err != nil {
		return err
	}
	show(out, "create until completed, no-op (tools/call with task, tasks/result)", t...)
	b.aim("create until completed, native no-op, by mcp-go in memory", 1.0, t[0], t[1])
	return nil
}

// sdk compares a task of an SDK tool with the SDK's plain call of the same tool.
func (b *bench) sdk(out io.Writer) error {
	ours, err1 := b.coatcheck("sdk", "sdk")
	plain, err2 := b.other("sdk")
	plainJSON, err3 := b.other("sdk-json")
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	call := func(c *client, _, _ int) error { return c.plain() }
	t := []*target{
		{name: "coatcheck, SQLite with full sync, as a task", process: ours, op: completed},
		{name: "SDK's handler, plain call, event stream", process: plain, op: call},
		{name: "SDK's handler, plain call, JSON", process: plainJSON, op: call},
	}
	if err := alternate(b.settings, t...); err != nil {
		return err
	}
	show(out, "an SDK tool", t...)
	b.aim("create until completed of an SDK tool, by the SDK's plain tools/call", 1.5, t[0], t[1])
	return nil
}

// stored compares an empty store with one that has many finished tasks.
func (b *bench) stored(out io.Writer) error {
	if data, err := exec.Command(b.measured, "-db", b.db("full"), "-n", strconv.Itoa(b.settings.stored), "fill").CombinedOutput(); err != nil {
		return fmt.Errorf("filling the store: %w: %s", err, data)
	}
	empty, err1 := b.coatcheck("empty", "native")
	full, err2 := b.coatcheck("full", "native")
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	n := b.settings.stored
	seeds := make([]string, n) // as benchserver names them
	for i := range seeds {
		seeds[i] = "seed-" + strconv.Itoa(i)
	}
	among := func(name string, n int) *target {
		return &target{name: name, process: full, op: func(c *client, _, _ int) error { return c.get(seeds[rand.IntN(n)]) }}
	}
	t := []*target{
		finished("get, empty store", empty),
		among(fmt.Sprintf("get, any of %d, not read before", n), n),
		among(fmt.Sprintf("get, any of 1,000 of %d", n), min(1000, n)),
	}
	if err := alternate(b.settings, t...); err != nil {
		return err
	}
	show(out, fmt.Sprintf("with %d finished tasks in the store", n), t...)
	b.aim(fmt.Sprintf("get of any of %d stored, first reads in it, by empty", n), 0.8, t[1], t[0])
	b.aim(fmt.Sprintf("get of 1,000 of %d stored, by empty", n), 0.8, t[2], t[0])
	t = []*target{
		finished("get, empty store", empty),
		among(fmt.Sprintf("get, any of %d, each read before", n), n),
	}
	t[1].setup = func(c *client) error {
		for _, id := range seeds {
			if err := c.get(id); err != nil {
				return err
			}
		}
		return nil
	}
	if err := alternate(b.settings, t...); err != nil {
		return err
	}
	show(out, "the same, once each was read", t...)
	b.aim(fmt.Sprintf("get of any of %d stored, each read before, by empty", n), 0.8, t[1], t[0])
	t = []*target{
		{name: "create until completed, empty store", process: empty, op: completed},
		{name: fmt.Sprintf("create until completed, %d stored", n), process: full, op: completed},
	}
	if err := alternate(b.settings, t...); err != nil {
		return err
	}
	show(out, "create until completed, no-op", t...)
	b.aim(fmt.Sprintf("create until completed with %d stored, by empty", n), 0.8, t[1], t[0])
	return nil
}

// figures measures what is no throughput.
func (b *bench) figures() error {
	for _, waiters := range []int{1, 32} {
		n := b.wakes * min(waiters, 4) // a single one takes longer
		data, err := exec.Command(b.measured, "-db", b.db(fmt.Sprintf("wake%d", waiters)), "-n", strconv.Itoa(n), "-waiters", strconv.Itoa(waiters), "wake").Output()
		if err != nil {
			return fmt.Errorf("wake: %w", err)
		}
		var all []time.Duration
		for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
			ns, err := strconv.ParseInt(lines.Text(), 10, 64)
			if err != nil {
				return err
			}
			all = append(all, time.Duration(ns))
		}
		slices.Sort(all)
		p50 := quantile(all, 0.5)
		b.verdict(fmt.Sprintf("wake-up of a blocked tasks/result, %d at a time: p50 under 1 ms", waiters),
			fmt.Sprintf("p50 %s, p99 %s", short(p50), short(quantile(all, 0.99))), p50 < time.Millisecond)
	}
	return errors.Join(
		b.weigh("heap", b.heap, "heap of a finished task", 1<<10),
		b.weigh("waiting", b.waiting, "memory of a task that waits for input, with its handler", 20<<10))
}

// weigh has the server say what each of n tasks weighs.
func (b *bench) weigh(name string, n int, what string, limit int) error {
	data, err := exec.Command(b.measured, "-db", b.db(name), "-n", strconv.Itoa(n), name).Output()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	weight, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return err
	}
	b.verdict(fmt.Sprintf("%s: under %d bytes", what, limit), fmt.Sprintf("%d bytes", weight), weight < limit)
	return nil
}

// table prints the aims.
func (b *bench) table(out io.Writer) {
	fmt.Fprintf(out, "%-76s %-26s\n", "aim", "measured")
	for _, v := range b.verdicts {
		fmt.Fprintf(out, "%-76s %-26s %s\n", v[0], v[1], v[2])
	}
}

// machine prints where this was measured, with the time of a sync to disk.
func machine(out io.Writer) {
	model := "unknown processor"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				model = strings.TrimSpace(strings.TrimLeft(name, "\t :"))
				break
			}
		}
	}
	fmt.Fprintf(out, "%s, %d cores, %s, a sync takes %v, after a pause %v\n", model, runtime.NumCPU(), runtime.Version(),
		syncTime(0).Round(time.Microsecond), syncTime(5*time.Millisecond).Round(time.Microsecond))
}

// syncTime returns the median time of writing a page and syncing it, each after a pause: a
// disk and processors that were idle take longer.
func syncTime(pause time.Duration) time.Duration {
	f, err := os.CreateTemp("", "coatcheck-bench-sync")
	if err != nil {
		return 0
	}
	defer os.Remove(f.Name())
	defer f.Close()
	block := make([]byte, 4096)
	took := make([]time.Duration, 100)
	for i := range took {
		time.Sleep(pause) //nolint:forbidigo // the pause is what is measured
		begin := time.Now()
		if _, err := f.WriteAt(block, int64(i%8)*4096); err != nil {
			return 0
		}
		if err := f.Sync(); err != nil {
			return 0
		}
		took[i] = time.Since(begin)
	}
	slices.Sort(took)
	return quantile(took, 0.5)
}
