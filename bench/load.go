package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// target is one server under one kind of load.
type target struct {
	name    string
	process *process
	session string                // of its requests, if the server assigns none
	setup   func(c *client) error // in the target's session, before the load
	op      func(c *client, worker, i int) error
	clients []*client

	rates     []float64       // operations a second, a round each
	latencies []time.Duration // of all rounds
	cpu       time.Duration   // of the server
	ops       int
}

// connect opens the connections, in one session.
func (t *target) connect(n int) error {
	first, err := dial(t.process.address, 1)
	if err != nil {
		return err
	}
	if _, err := first.post(initialize); err != nil {
		return fmt.Errorf("%s: initialize: %w", t.name, err)
	}
	session := cmp.Or(first.session, t.session)
	first.use(session)
	if _, err := first.post(initialized); err != nil {
		return fmt.Errorf("%s: initialized: %w", t.name, err)
	}
	t.clients = append(t.clients, first)
	for len(t.clients) < n {
		c, err := dial(t.process.address, len(t.clients)+1)
		if err != nil {
			return err
		}
		c.use(session)
		t.clients = append(t.clients, c)
	}
	if t.setup != nil {
		return t.setup(first)
	}
	return nil
}

// round loads the target for d.
func (t *target) round(d time.Duration) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	ops := 0
	before := t.process.cpu()
	begin := time.Now()
	for worker, c := range t.clients {
		wg.Go(func() {
			latencies := make([]time.Duration, 0, 1<<14)
			var err error
			for i := 0; err == nil; i++ {
				at := time.Now()
				if at.Sub(begin) >= d {
					break
				}
				err = t.op(c, worker, i)
				latencies = append(latencies, time.Since(at))
			}
			mu.Lock()
			defer mu.Unlock()
			ops += len(latencies)
			t.latencies = append(t.latencies, latencies...)
			if err != nil {
				failed = fmt.Errorf("%s: %w", t.name, err)
			}
		})
	}
	wg.Wait()
	t.rates = append(t.rates, float64(ops)/time.Since(begin).Seconds())
	t.cpu += t.process.cpu() - before
	t.ops += ops
	return failed
}

// alternate loads the targets in turn, after a round each that does not count.
func alternate(s settings, targets ...*target) error {
	for _, t := range targets {
		if err := t.connect(s.connections); err != nil {
			return err
		}
		if err := t.round(s.round / 4); err != nil {
			return err
		}
		t.rates, t.latencies, t.cpu, t.ops = nil, nil, 0, 0
	}
	for i := range s.rounds {
		for j := range targets { // each begins a round now and then
			if err := targets[(i+j)%len(targets)].round(s.round); err != nil {
				return err
			}
		}
	}
	for _, t := range targets {
		for _, c := range t.clients {
			_ = c.conn.Close()
		}
		t.clients = nil
		slices.Sort(t.latencies)
	}
	return nil
}

// ratio returns the median of t's rate by other's, and its lowest and highest, round by round.
func (t *target) ratio(other *target) (median, low, high float64) {
	all := make([]float64, len(t.rates))
	for i := range all {
		all[i] = t.rates[i] / other.rates[i]
	}
	slices.Sort(all)
	return all[len(all)/2], all[0], all[len(all)-1]
}

func (t *target) rate() float64 {
	all := slices.Sorted(slices.Values(t.rates))
	return all[len(all)/2]
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// cpu returns the processor time the process has used.
func (p *process) cpu() time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}
