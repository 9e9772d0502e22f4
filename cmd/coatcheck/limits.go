package main

import (
	"fmt"
	"os"

	"github.com/coatcheck/coatcheck/internal/limit"
)

// limitFlags say how much requestors may have and do.
type limitFlags struct {
	Limits     string `placeholder:"FILE" help:"Limits of requestors and tools, in YAML: see docs/limits.md."`
	MaxRunning string `placeholder:"64" help:"Tasks of one requestor that work at once; none for no limit. Goes before the default of --limits, as do the next two."`
	MaxQueued  string `placeholder:"256" help:"Tasks of one requestor that wait for their turn beyond that; with 0 they are refused at once."`
	MaxTasks   string `placeholder:"10000" help:"Tasks of one requestor that are kept."`
}

// policy returns what the flags say; nil is all defaults.
func (f *limitFlags) policy() (*limit.Policy, error) {
	if *f == (limitFlags{}) {
		return nil, nil
	}
	p := &limit.Policy{}
	if f.Limits != "" {
		text, err := os.ReadFile(f.Limits)
		if err != nil {
			return nil, fmt.Errorf("--limits: %w", err)
		}
		if p, err = limit.Parse(text); err != nil {
			return nil, fmt.Errorf("--limits %s: %w", f.Limits, err)
		}
	}
	var err error
	if f.MaxQueued != "" {
		if p.Queued, p.NoQueue, err = limit.Queue(f.MaxQueued); err != nil {
			return nil, fmt.Errorf("--max-queued: %w", err)
		}
	}
	for _, flag := range []struct {
		name, value string
		to          *int
	}{{"--max-running", f.MaxRunning, &p.Running}, {"--max-tasks", f.MaxTasks, &p.Tasks}} {
		if flag.value == "" {
			continue
		}
		if *flag.to, err = limit.Count(flag.value); err != nil {
			return nil, fmt.Errorf("%s: %w, or none", flag.name, err)
		}
	}
	return p, nil
}
