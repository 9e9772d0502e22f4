package requestor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// other is the other side of a line, which answers as it is told.
type other struct {
	created string                // to the request itself
	get     func(n int) string    // to the nth tasks/get; "" for an error of the line
	result  func(o *other) string // to tasks/result, when it returns; nil for never

	mu        sync.Mutex
	asked     []string
	polls     []time.Time
	hosted    int
	withdrawn int
}

func (o *other) Ask(method string, params json.RawMessage, reply func(task.Outcome)) (func(), error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = append(o.asked, method+" "+string(params))
	switch {
	case method != protocol.MethodTasksResult:
		reply(outcome(o.created))
	case o.result != nil:
		go func() { reply(outcome(o.result(o))) }()
	}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.withdrawn++
	}, nil
}

func (o *other) Call(_ context.Context, method string, params json.RawMessage) (task.Outcome, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = append(o.asked, method+" "+string(params))
	if method != protocol.MethodTasksGet {
		return task.Outcome{Result: json.RawMessage(`{}`)}, nil
	}
	o.polls = append(o.polls, time.Now())
	if answer := o.get(len(o.polls)); answer != "" {
		return outcome(answer), nil
	}
	return task.Outcome{}, errors.New("nobody listens")
}

func (o *other) Host(string) func() {
	o.hosted++
	return func() { o.hosted-- }
}

// outcome reads an answer: an error if it has a code.
func outcome(raw string) task.Outcome {
	if protocol.Get(json.RawMessage(raw), "code") != nil {
		return task.Outcome{Error: json.RawMessage(raw)}
	}
	return task.Outcome{Result: json.RawMessage(raw)}
}

func state(status, interval string) string {
	return fmt.Sprintf(`{"taskId":"h1","status":%q,"createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z","ttl":null,"pollInterval":%s}`, status, interval)
}

func created(interval string) string { return `{"task":` + state("working", interval) + `}` }

func (o *other) do(ctx context.Context, ttl time.Duration) string {
	got, err := Do(ctx, o, protocol.MethodCreateMessage, json.RawMessage(`{"maxTokens":1}`), ttl)
	if err != nil {
		return "error: " + err.Error()
	}
	return string(got.Result) + string(got.Error)
}

// GET-2, TTL-4: the other side is polled as it suggests, within bounds.
func TestPollInterval(t *testing.T) {
	for interval, bounds := range map[string][2]time.Duration{
		"null":          {900 * time.Millisecond, 1100 * time.Millisecond},
		"0":             {900 * time.Millisecond, 1100 * time.Millisecond},
		"-1":            {900 * time.Millisecond, 1100 * time.Millisecond},
		"1":             {90 * time.Millisecond, 110 * time.Millisecond},
		"5000":          {4500 * time.Millisecond, 5500 * time.Millisecond},
		"1000000000000": {27 * time.Second, 33 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := &other{created: created(interval), get: func(int) string { return state("working", interval) }}
			o.result = func(*other) string {
				<-time.After(20 * bounds[1])
				return `{"n":1}`
			}
			began := time.Now()
			if got := o.do(t.Context(), 1500*time.Millisecond); got != `{"n":1}` {
				t.Error(got)
			}
			if want := `sampling/createMessage {"maxTokens":1,"task":{"ttl":1500},"_meta":{"coatcheck/idempotency-key":"`; !strings.HasPrefix(o.asked[0], want) { // CRE-2
				t.Errorf("asked %s", o.asked[0])
			}
			if len(o.polls) < 17 || len(o.polls) > 23 {
				t.Errorf("%s: %d polls", interval, len(o.polls))
			}
			for _, at := range o.polls {
				if gap := at.Sub(began); gap < bounds[0] || gap > bounds[1] {
					t.Errorf("%s: polled after %v", interval, gap)
				}
				began = at
			}
			if o.hosted != 0 {
				t.Errorf("%d tasks are still noted", o.hosted)
			}
		})
	}
}

// What the other side says of its task decides what becomes of the question.
func TestStates(t *testing.T) {
	for name, c := range map[string]struct {
		created string
		get     func(n int) string
		want    string
		polls   int // in all, at most
	}{
		"plain":     {`{"role":"assistant"}`, nil, `{"role":"assistant"}`, 0}, // CAP-5
		"refused":   {`{"code":-1,"message":"no"}`, nil, `{"code":-1,"message":"no"}`, 0},
		"no task":   {`{"task":7}`, nil, "malformed task", 0},
		"no id":     {`{"task":{"status":"working"}}`, nil, "without taskId", 0},
		"expired":   {created("1"), func(int) string { return `{"code":-32602,"message":"gone"}` }, `"gone"`, 1}, // ERR-1
		"foreign":   {created("1"), func(int) string { return strings.Replace(state("working", "1"), "h1", "h2", 1) }, "make no sense", maxNonsense},
		"broken":    {created("1"), func(int) string { return `{"code":-32603,"message":"broken"}` }, `"broken"`, maxNonsense},
		"no result": {created("1000"), func(int) string { return state("completed", "1000") }, "its result does not come", 40},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &other{created: c.created, get: c.get}
				if got := o.do(t.Context(), 0); !strings.Contains(got, c.want) {
					t.Errorf("got %s, want %s", got, c.want)
				}
				if len(o.polls) > c.polls {
					t.Errorf("%d polls", len(o.polls))
				}
			})
		})
	}
}

// CAN-2: a task whose creation is answered as its asker gives up is cancelled, too.
func TestCreatedTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 50 { // two channels are ready, one is picked
			o := &other{created: created("1000"), get: func(int) string { return state("working", "1000") }}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if got := o.do(ctx, 0); !strings.Contains(got, context.Canceled.Error()) {
				t.Error(got)
			}
			if last := o.asked[len(o.asked)-1]; last != `tasks/cancel {"taskId":"h1"}` {
				t.Fatal(last)
			}
		}
	})
}

// A line on which nobody listens for an hour is waited for.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &other{created: created("1000"), get: func(int) string { return "" }}
		o.result = func(*other) string {
			<-time.After(time.Hour)
			return `{"n":1}`
		}
		if got := o.do(t.Context(), 0); got != `{"n":1}` {
			t.Error(got)
		}
	})
}

// CAN-2: whoever gives up has the other side stop.
func TestGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &other{created: created("1000"), get: func(int) string { return state("working", "1000") }}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if got := o.do(ctx, 0); !strings.Contains(got, context.DeadlineExceeded.Error()) {
			t.Error(got)
		}
		if last := o.asked[len(o.asked)-1]; last != `tasks/cancel {"taskId":"h1"}` || o.withdrawn != 1 || o.hosted != 0 {
			t.Errorf("%s; %d withdrawn, %d noted", last, o.withdrawn, o.hosted)
		}
	})
}
