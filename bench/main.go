// Command bench measures Coatcheck against a bare net/http handler, the SDK's own handler
// and mcp-go: one run, one load generator, alternating rounds, a table of ratios.
//
//	cd bench && go run .            # some seven minutes
//	cd bench && go run . -short     # a few seconds, to see that it works
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"time"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == "serve" {
		log.Fatal(serve(os.Args[2]))
	}
	short := flag.Bool("short", false, "short rounds, for a look whether it works")
	round := flag.Duration("round", time.Second, "how long a round lasts")
	rounds := flag.Int("rounds", 11, "rounds for each target")
	only := flag.String("only", "", "one of get, create, sdk, plain, stored, figures")
	flag.Parse()
	s := settings{round: *round, rounds: *rounds, connections: 32, stored: 100_000, heap: 50_000, waiting: 10_000, wakes: 1_000}
	if *short {
		s = settings{round: 100 * time.Millisecond, rounds: 2, connections: 32, stored: 1_000, heap: 1_000, waiting: 1_000, wakes: 64}
	}
	s.only = *only
	if err := run(s, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

type settings struct {
	round       time.Duration
	rounds      int
	connections int
	stored      int // tasks, of the store that is not empty
	heap        int // finished tasks, to weigh
	waiting     int // tasks that wait for input, to weigh
	wakes       int // waits, to time, one at a time; four times as many with several
	only        string
}

func run(s settings, out *os.File) error {
	bench, err := prepare(s)
	if err != nil {
		return err
	}
	defer bench.close()
	machine(out)
	fmt.Fprintf(out, "%d connections, rounds of %v, %d rounds of each target in turn; medians\n\n", s.connections, s.round, s.rounds)
	if err := bench.throughput(out); err != nil {
		return err
	}
	if s.only == "" || s.only == "figures" {
		if err := bench.figures(); err != nil {
			return err
		}
	}
	bench.table(out)
	return nil
}
