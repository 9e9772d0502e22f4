package limit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// Validate returns what in the policy makes no sense, each fault in an error of its own
// (errors.Join); nil if nothing. What Of returns is not looked at. A nil Policy is valid.
func (p *Policy) Validate() error {
	if p == nil {
		return nil
	}
	errs := p.faults("")
	for _, who := range slices.Sorted(maps.Keys(p.Principals)) {
		errs = append(errs, p.Principals[who].faults(fmt.Sprintf("Principals[%q].", who))...)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Tools)) {
		errs = append(errs, p.Tools[name].faults(fmt.Sprintf("Tools[%q].", name))...)
	}
	return errors.Join(errs...)
}

// faults returns what makes no sense in limits, each with the name of its field.
func (l Limits) faults(prefix string) (errs []error) {
	if l.NoQueue && l.Queued > 0 {
		errs = append(errs, fmt.Errorf("%sQueued: no task waits with NoQueue", prefix))
	}
	for name, err := range map[string]error{
		"MaxTTL": checkTTL(l.MaxTTL), "Polls": checkPolls(l.Polls),
		"Creates": l.Creates.check(), "Gets": l.Gets.check(), "Lists": l.Lists.check(), "Misses": l.Misses.check(),
	} {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s%s %w", prefix, name, err))
		}
	}
	sortByText(errs)
	return errs
}

// faults is that of Limits.
func (t Tool) faults(prefix string) (errs []error) {
	if err := cmp.Or(checkTTL(t.MaxTTL), checkToolTTL(t.MaxTTL)); err != nil {
		errs = append(errs, fmt.Errorf("%sMaxTTL %w", prefix, err))
	}
	if err := t.Creates.check(); err != nil {
		errs = append(errs, fmt.Errorf("%sCreates %w", prefix, err))
	}
	return errs
}

func sortByText(errs []error) {
	slices.SortFunc(errs, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
}

// check says what is wrong with a rate: the zero one and those below zero stand for something.
func (r Rate) check() error {
	switch {
	case math.IsNaN(r.PerSecond) || math.IsInf(r.PerSecond, 0):
		return fmt.Errorf("is %v per second, which is no rate", r.PerSecond)
	case r.PerSecond == 0 && r.Burst != 0:
		return errors.New("is 0 per second: after the burst nothing would be allowed ever again")
	case r.PerSecond > 0 && r.Burst < 1:
		return errors.New("allows nothing: the burst must be at least 1")
	}
	return nil
}

// checkTTL says what is wrong with a lifetime: tasks have whole milliseconds, and 0 of them is no limit.
func checkTTL(d time.Duration) error {
	if d > 0 && d < time.Millisecond {
		return fmt.Errorf("is %v, and must be at least 1ms", d)
	}
	return nil
}

func checkToolTTL(d time.Duration) error {
	if d < 0 {
		return errors.New("of a tool can only shorten: leave it out")
	}
	return nil
}

// checkPolls says what is wrong with a factor: below 1 it would slow those down who do as asked.
func checkPolls(factor float64) error {
	if math.IsNaN(factor) || math.IsInf(factor, 0) || factor > 0 && factor < 1 {
		return fmt.Errorf("is %v, and must be at least 1", factor)
	}
	return nil
}
