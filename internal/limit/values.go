package limit

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"time"
)

// none is how no limit is written.
const none = "none"

// Count reads a limit that is a whole number: at least 1, or "none".
func Count(text string) (int, error) {
	if text == none {
		return None, nil
	}
	return atLeastOne(text)
}

// Queue reads how many tasks may wait for their turn. With 0 none does.
func Queue(text string) (queued int, noQueue bool, err error) {
	if text == "0" {
		return 0, true, nil
	}
	if queued, err = Count(text); err != nil {
		err = fmt.Errorf("%w; or 0, with which no task waits", err)
	}
	return queued, false, err
}

func atLeastOne(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || text[0] == '+' {
		return 0, fmt.Errorf("%q is not a whole number of at least 1", text)
	}
	return n, nil
}

var sizes = regexp.MustCompile(`^([0-9]+) ?(B|KiB|MiB|GiB|TiB)?$`)

var units = map[string]int64{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

// size reads "16MiB", bytes as a plain number, or "none".
func size(text string) (int64, error) {
	if text == none {
		return None, nil
	}
	m := sizes.FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("%q is no size such as 4096, 16MiB or 1GiB", text)
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil || n < 1 || n > math.MaxInt64/units[m[2]] {
		return 0, fmt.Errorf("%q is not between 1 byte and 8 EiB", text)
	}
	return n * units[m[2]], nil
}

func toolLifetime(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is no duration such as 90s, 24h or 1h30m", text)
	}
	if err := checkTTL(d); err != nil {
		return 0, err
	}
	return d, nil
}

var rates = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)/s burst ([0-9]+)$`)

// rateOf reads "20/s burst 200", or "none".
func rateOf(text string) (Rate, error) {
	if text == none {
		return Rate{PerSecond: None}, nil
	}
	m := rates.FindStringSubmatch(text)
	if m == nil {
		return Rate{}, fmt.Errorf("%q is no rate such as 20/s burst 200, or 0.5/s burst 10", text)
	}
	per, err := perSecond(m[1])
	if err != nil {
		return Rate{}, err
	}
	burst, err := atLeastOne(m[2])
	if err != nil {
		return Rate{}, fmt.Errorf("its burst %w", err)
	}
	return Rate{per, burst}, nil
}

func perSecond(text string) (float64, error) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0) || math.IsInf(n, 0) {
		return 0, fmt.Errorf("%q per second is not a number above 0", text)
	}
	return n, nil
}

// polls reads how many times as often as asked a task may be polled.
func polls(text string) (float64, error) {
	if text == none {
		return None, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no number", text)
	}
	if n < 1 {
		return 0, errors.New("must be at least 1")
	}
	return n, checkPolls(n)
}
