package requestor

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func refusal(limit string, ms int) string {
	return fmt.Sprintf(`{"code":-32029,"message":"too much","data":{"limit":%q,"retryAfterMs":%d}}`, limit, ms)
}

// SEC-5, RSC-1: what the other side refuses for a limit is waited out, as long as it says but a
// minute at most, more often than nonsense would be borne, and never taken for the outcome.
func TestLimitsAreWaitedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		results := 0
		o := &other{created: created("1000"), get: func(n int) string {
			if n <= 2*maxNonsense {
				return refusal("gets", 20_000)
			}
			return state("working", "1000")
		}}
		o.result = func(o *other) string {
			if results++; results <= 3 {
				return refusal("waits", 3_600_000)
			}
			<-time.After(5 * time.Minute)
			return `{"n":1}`
		}
		began := time.Now()
		if got := o.do(t.Context(), 0); got != `{"n":1}` {
			t.Error(got)
		}
		if took := time.Since(began); took != 8*time.Minute || results != 4 {
			t.Errorf("%d tasks/result in %v", results, took)
		}
		for i := range 2 * maxNonsense {
			if gap := o.polls[i+1].Sub(o.polls[i]); gap < 20*time.Second {
				t.Errorf("poll %d came %v after a refusal", i+1, gap)
			}
		}
		if o.hosted != 0 {
			t.Errorf("%d tasks are still noted", o.hosted)
		}
	})
}

// A refusal to make the task is the caller's answer, and one that the task met with its outcome.
func TestRefusalsOfTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		no := refusal("creates", 1000)
		o := &other{created: no}
		if got := o.do(t.Context(), 0); got != no || len(o.asked) != 1 {
			t.Errorf("got %s, asked %q", got, o.asked)
		}
		o = &other{created: created("1000"), result: func(*other) string { return no }}
		if got := o.do(t.Context(), 0); got != no {
			t.Errorf("got %s", got)
		}
	})
}
