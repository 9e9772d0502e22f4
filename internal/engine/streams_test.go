package engine

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store/memory"
	"github.com/coatcheck/coatcheck/task"
)

// begun starts a task whose work is done by the test, on an engine that ends with it.
func begun(t *testing.T, c *Caller, opts Options) (*Engine, *Job) {
	t.Helper()
	jobs := make(lines, 1)
	opts.Runner = jobs
	if opts.Store == nil {
		opts.Store = memory.New()
	}
	e, err := New(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shutDown(t, e) })
	_, err = e.Create(t.Context(), Creation{Caller: c, Request: task.Request{
		Method: protocol.MethodToolsCall, Params: json.RawMessage(`{"name":"x","_meta":{"progressToken":"p"}}`),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return e, <-jobs
}

func shutDown(t *testing.T, e *Engine) {
	t.Helper()
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if err := e.Shutdown(over); err != nil {
		t.Error(err)
	}
}

// stream is an Attendance or an Outlet.
type stream func(context.Context) (Event, error)

func attended(a *Attendance) stream {
	return func(ctx context.Context) (Event, error) {
		ev, _, err := a.Next(ctx)
		return ev, err
	}
}

// next returns what comes on a stream, in a bubble.
func next(t *testing.T, s stream) Event {
	t.Helper()
	soon, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	ev, err := s(soon)
	if err != nil {
		t.Errorf("nothing comes: %v", err)
	}
	return ev
}

func wantNothing(t *testing.T, s stream) {
	t.Helper()
	soon, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if ev, err := s(soon); err == nil {
		t.Errorf("%s comes: %s", ev.Method, ev.Params)
	}
}

func question1(t *testing.T, job *Job) {
	t.Helper()
	if _, err := job.Ask(protocol.MethodElicit, []byte(anyNumber), func(task.Outcome) {}); err != nil {
		t.Fatal(err)
	}
}

var (
	alice   = Caller{Principal: "alice", Session: "s"}
	ofAlice = Listener{Principal: "alice", Session: "s", Identified: true}
)

// INP-5, C.7: what was pushed into a stream that may be dead is asked on the next one, be that
// of a tasks/result call or the session's own; over one connection it is asked once.
func TestPushedIntoADeadStream(t *testing.T) {
	opts := Options{NoStatusNotifications: true, PushInput: true}
	t.Run("tasks/result", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e, job := begun(t, &alice, opts)
			o := e.Outlet(ofAlice)
			defer o.Close()
			question1(t, job)
			pushed := next(t, o.Next)
			a := e.Attend(job.Ref.ID, ofAlice)
			defer a.Close()
			if ev := next(t, attended(a)); ev.Method != protocol.MethodElicit || ev.Ask == pushed.Ask {
				t.Errorf("got %+v after %+v", ev, pushed)
			}
		})
	})
	t.Run("another of the session's own", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e, job := begun(t, &alice, opts)
			dead := e.Outlet(ofAlice)
			defer dead.Close()
			question1(t, job)
			o := e.Outlet(ofAlice)
			defer o.Close()
			ev := next(t, o.Next)
			if _, err := e.Answer(t.Context(), "alice", ev.Ask, task.Outcome{Result: json.RawMessage(`{"action":"decline"}`)}); err != nil {
				t.Error(err)
			}
			wantNothing(t, dead.Next) // it would be asked what has been answered
		})
	})
	t.Run("one connection", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := ofAlice
			l.Connection = true
			e, job := begun(t, &alice, opts)
			o := e.Outlet(l)
			defer o.Close()
			question1(t, job)
			next(t, o.Next)
			a := e.Attend(job.Ref.ID, l)
			defer a.Close()
			wantNothing(t, attended(a))
		})
	})
}

// PROG-1, GET-5: the last progress arrives, whatever stream drops before it is sent; so does a
// log message, if the session has another stream.
func TestLastProgressSurvivesStreams(t *testing.T) {
	for name, ownStream := range map[string]bool{"one after another": false, "with the session's own": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, job := begun(t, &alice, Options{NoStatusNotifications: true})
				a := e.Attend(job.Ref.ID, ofAlice)
				synctest.Wait()
				wantNothing(t, attended(a))
				job.Report(1, 3, "")
				next(t, attended(a))
				job.Notify(protocol.MethodLogMessage, json.RawMessage(`{"data":"log"}`))
				job.Report(3, 3, "")
				var o *Outlet
				if ownStream {
					o = e.Outlet(ofAlice)
					defer o.Close()
				}
				a.Close()
				b := e.Attend(job.Ref.ID, ofAlice)
				defer b.Close()
				var heard []string
				for range 2 {
					heard = append(heard, string(next(t, attended(b)).Params))
					if !ownStream {
						break
					}
				}
				if last := heard[len(heard)-1]; !strings.Contains(last, `"progress":3`) {
					t.Errorf("heard %q", heard)
				}
				if ownStream && !strings.Contains(heard[0], "log") {
					t.Errorf("heard %q", heard)
				}
			})
		})
	}
}

// NOT-1, SEC-4: requestors without a session and an identity are strangers.
func TestStrangersHearNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, job := begun(t, &Caller{}, Options{})
		o := e.Outlet(Listener{})
		defer o.Close()
		question1(t, job)
		job.Notify(protocol.MethodLogMessage, json.RawMessage(`{"data":"log"}`))
		wantNothing(t, o.Next)
	})
}

// What is no number is not progress, with or without a token.
func TestProgressIsFinite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, job := begun(t, &alice, Options{NoStatusNotifications: true})
		a := e.Attend(job.Ref.ID, ofAlice)
		defer a.Close()
		job.Report(math.NaN(), 0, "")
		job.Report(math.Inf(1), 1, "")
		job.Report(1, math.NaN(), "one")
		job.Report(2, math.Inf(1), "two")
		if got := string(next(t, attended(a)).Params); got != `{"progressToken":"p","progress":2,"message":"two"}` {
			t.Errorf("got %s", got)
		}
	})
}

// A requested schema without end costs an answer its check, not the process.
func TestSchemaWithoutEnd(t *testing.T) {
	for _, schema := range []string{
		`{"$ref":"#"}`, `{"\u0024ref":"#"}`, `{"allOf":[{"$ref":"#"}]}`, `{"properties":{"a":{"$dynamicRef":"#"}}}`,
		`{"$defs":{"x":{"$ref":"#/$defs/x"}},"properties":{"a":{"$ref":"#/$defs/x"}}}`,
	} {
		input := task.InputRequest{Method: protocol.MethodElicit, Params: json.RawMessage(`{"message":"?","requestedSchema":` + schema + `}`)}
		if err := misshapen(input, task.Outcome{Result: json.RawMessage(`{"action":"accept","content":{"a":{}}}`)}); err != nil {
			t.Errorf("%s: %v", schema, err)
		}
	}
}

// A wrong answer to a question of a task that another process runs is asked again, too.
func TestWrongAnswerElsewhere(t *testing.T) {
	shared := memory.New()
	_, job := begun(t, &alice, Options{Store: shared})
	elsewhere, err := New(t.Context(), Options{Store: shared, Runner: make(lines)})
	if err != nil {
		t.Fatal(err)
	}
	defer shutDown(t, elsewhere)
	question1(t, job)
	a := elsewhere.Attend(job.Ref.ID, ofAlice)
	defer a.Close()
	asked := map[string]bool{}
	for range maxTries {
		ev, _, err := a.Next(t.Context())
		if err != nil || asked[ev.Ask] {
			t.Fatalf("asked under %q, %v", ev.Ask, err)
		}
		asked[ev.Ask] = true
		_, err = elsewhere.Answer(t.Context(), "alice", ev.Ask, task.Outcome{Result: json.RawMessage(`{"action":"accept","content":{"n":"x"}}`)})
		if err == nil {
			t.Error("a wrong answer is accepted")
		}
	}
}

// A stream that does not read costs bounded memory, however large what it is told.
func TestFeedIsBoundedInBytes(t *testing.T) {
	f := newFeed(Listener{})
	f.push(said("a", protocol.MethodProgress, "1"))
	for range 100 {
		f.push(said("a", protocol.MethodLogMessage, strings.Repeat("x", 1<<20)))
	}
	if f.bytes > maxBytes || len(f.queue) < 10 {
		t.Errorf("%d events of %d bytes wait", len(f.queue), f.bytes)
	}
	if ev, _, _ := f.take(epoch); ev.Method != protocol.MethodProgress {
		t.Errorf("progress was dropped before log messages: %s", ev.Method)
	}
	drain(f, epoch)
	if f.bytes != 0 {
		t.Errorf("%d bytes wait in an empty queue", f.bytes)
	}
	for range 3 * maxQueue { // NOT-1: a change of status can be missed
		f.push(Event{Task: "a", Method: protocol.MethodTasksStatus, State: &task.Task{}})
	}
	if len(f.queue) > maxQueue {
		t.Errorf("%d changes of status wait", len(f.queue))
	}
}

// PROG-1: a stream that another took the place of leaves it no older progress when it ends.
func TestReplacedStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, job := begun(t, &alice, Options{NoStatusNotifications: true})
		stuck := e.Outlet(ofAlice)
		job.Report(1, 0, "one")
		o := e.Outlet(ofAlice)
		defer o.Close()
		job.Report(5, 0, "five")
		if ev := next(t, o.Next); !strings.Contains(string(ev.Params), "five") {
			t.Errorf("got %s", ev.Params)
		}
		stuck.Close()
		if got := string(next(t, o.Next).Params); !strings.Contains(got, "five") { // once more, to be sure
			t.Errorf("got %s after five", got)
		}
	})
}
