package main

import (
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "serve" {
		panic(serve(os.Args[2])) // the benchmark starts its own binary again
	}
	os.Exit(m.Run())
}

// Every scenario runs. What it times here means nothing; what it weighs does.
func TestScenarios(t *testing.T) {
	s := settings{round: 50 * time.Millisecond, rounds: 1, connections: 4, stored: 100, heap: 100, waiting: 1_000, wakes: 32}
	if err := run(s, os.Stdout); err != nil {
		t.Fatal(err)
	}
}

// A task that waits for its requestor, perhaps for days, costs less than 20 KiB.
func TestWaitingTasksAreSmall(t *testing.T) {
	b, err := prepare(settings{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	if err := b.weigh("waiting", 2_000, "waiting", 20<<10); err != nil {
		t.Fatal(err)
	}
	if v := b.verdicts[0]; v[2] != "OK" {
		t.Errorf("%s, but measured %s", v[0], v[1])
	}
}
