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

// Every scenario runs. What it measures here means nothing.
func TestScenarios(t *testing.T) {
	s := settings{round: 50 * time.Millisecond, rounds: 1, connections: 4, stored: 100, heap: 100, wakes: 32}
	if err := run(s, os.Stdout); err != nil {
		t.Fatal(err)
	}
}
