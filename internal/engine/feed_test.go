package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func said(id, method, what string) Event {
	return Event{Task: id, Method: method, Params: []byte(`"` + what + `"`)}
}

// drain takes all there is at a moment.
func drain(f *Feed, now time.Time) (all []string) {
	for {
		ev, ok, _ := f.take(now)
		if !ok {
			return all
		}
		all = append(all, ev.Task+string(ev.Params))
	}
}

func wantDrained(t *testing.T, f *Feed, now time.Time, want ...string) {
	t.Helper()
	if got := drain(f, now); !slices.Equal(got, want) {
		t.Errorf("took %q, want %q", got, want)
	}
}

// A flood of progress is coalesced, its last value is told, and order is kept.
func TestFeedCoalescesProgress(t *testing.T) {
	f := newFeed(Listener{})
	for i := range 100 {
		f.push(said("a", protocol.MethodProgress, fmt.Sprint(i)))
		f.push(said("b", protocol.MethodProgress, fmt.Sprint(i)))
	}
	wantDrained(t, f, epoch, `a"99"`, `b"99"`)

	f.push(said("a", protocol.MethodProgress, "100"))
	ev, ok, wait := f.take(epoch.Add(10 * time.Millisecond))
	if ok || wait != 40*time.Millisecond {
		t.Errorf("took %v, wait %v", ev, wait)
	}
	f.push(said("b", protocol.MethodProgress, "100"))
	f.push(said("b", protocol.MethodLogMessage, "log")) // before which progress comes
	wantDrained(t, f, epoch.Add(10*time.Millisecond), `b"100"`, `b"log"`)
	wantDrained(t, f, epoch.Add(progressEvery), `a"100"`)
}

// PROG-1: what waits when a task ends is not told; lastWord waits for what is on its way.
func TestFeedAtTheEnd(t *testing.T) {
	f := newFeed(Listener{})
	f.push(said("a", protocol.MethodProgress, "1"))
	idle := f.hurry("a")
	if _, ok, _ := f.take(epoch); !ok {
		t.Fatal("nothing to take")
	}
	f.push(said("a", protocol.MethodProgress, "2"))
	f.push(said("a", protocol.MethodLogMessage, "log"))
	select {
	case <-idle:
		t.Fatal("idle, with progress waiting")
	default:
	}
	f.over("a")
	select {
	case <-idle:
		t.Fatal("idle, with progress on its way")
	default:
	}
	wantDrained(t, f, epoch, `a"log"`)
	select {
	case <-idle:
	default:
		t.Fatal("not idle")
	}
}

// A stream that does not read costs bounded memory, and loses notifications, not questions.
func TestFeedIsBounded(t *testing.T) {
	f := newFeed(Listener{})
	q := &openQuestion{name: question{"a", "1"}, input: task.InputRequest{Params: []byte(`"q"`)}}
	f.ask(q)
	for i := range 3 * maxQueue {
		f.push(said("a", protocol.MethodLogMessage, fmt.Sprint(i)))
	}
	got := drain(f, epoch)
	if len(got) != maxQueue || got[0] != `a"q"` || got[len(got)-1] != fmt.Sprintf(`a"%d"`, 3*maxQueue-1) {
		t.Errorf("%d events, first %s, last %s", len(got), got[0], got[len(got)-1])
	}
}

// A question is asked once on a stream, again if the answer was no good, three times at most,
// and taken back only where it is out.
func TestFeedAsks(t *testing.T) {
	f := newFeed(Listener{})
	q := &openQuestion{name: question{"a", "1"}, input: task.InputRequest{Method: protocol.MethodElicit}}
	ids := map[string]bool{}
	for range maxTries {
		for range 2 { // the second time it is out already
			if !f.ask(q) {
				t.Fatal("not asked")
			}
		}
		ev, ok, _ := f.take(epoch)
		if !ok || ids[ev.Ask] || !IsAsk(ev.Ask) || AskedBy(ev.Ask) != "a" {
			t.Fatalf("asked under %q", ev.Ask)
		}
		ids[ev.Ask] = true
		if f.refused(q.name, "another id") || !f.refused(q.name, ev.Ask) {
			t.Fatal("not known here")
		}
	}
	if f.ask(q) || len(drain(f, epoch)) != 0 {
		t.Error("asked once more")
	}
	if f.closed(q.name, "") {
		t.Error("taken back after the answer")
	}

	f.ask(q)
	if f.closed(q.name, "") || len(drain(f, epoch)) != 0 {
		t.Error("what was not sent yet was taken back")
	}
	f.ask(q)
	ev, _, _ := f.take(epoch)
	if !f.closed(q.name, "elsewhere") {
		t.Error("not taken back")
	}
	back, ok, _ := f.take(epoch)
	if id, _ := protocol.Unquote(protocol.Get(back.Params, "requestId")); !ok || back.Method != protocol.MethodCancelled || id != ev.Ask {
		t.Errorf("taken back: %+v", back)
	}
	f.ask(q)
	ev, _, _ = f.take(epoch)
	if f.closed(q.name, ev.Ask) {
		t.Error("taken back where it was answered")
	}
}

// Whatever is pushed and whenever it is taken: each task's events keep their order, only
// progress is lost, and only to later progress.
func TestFeedOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFeed(Listener{})
		now := epoch
		pushed, taken := map[string][]Event{}, map[string][]Event{}
		take := func() {
			if ev, ok, _ := f.take(now); ok {
				taken[ev.Task] = append(taken[ev.Task], ev)
			}
		}
		n := 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				n++
				ev := said(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "task"),
					rapid.SampledFrom([]string{protocol.MethodProgress, protocol.MethodLogMessage}).Draw(t, "method"), fmt.Sprint(n))
				pushed[ev.Task] = append(pushed[ev.Task], ev)
				f.push(ev)
			},
			"take": func(*rapid.T) { take() },
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 60).Draw(t, "ms")) * time.Millisecond)
			},
		})
		now = now.Add(time.Hour)
		for range n {
			take()
		}
		for id, all := range pushed {
			var want []Event // the last of each run of progress must be there
			for i, ev := range all {
				if ev.Method != protocol.MethodProgress || i+1 == len(all) || all[i+1].Method != protocol.MethodProgress {
					want = append(want, ev)
				}
			}
			next := 0
			for _, ev := range taken[id] {
				i := slices.IndexFunc(all[next:], func(other Event) bool { return string(other.Params) == string(ev.Params) })
				if i < 0 {
					t.Fatalf("task %s: %s is out of order", id, ev.Params)
				}
				next += i + 1
				if len(want) > 0 && string(want[0].Params) == string(ev.Params) {
					want = want[1:]
				}
			}
			if len(want) != 0 {
				t.Fatalf("task %s: lost %s", id, want[0].Params)
			}
		}
	})
}

func FuzzAskID(f *testing.F) {
	f.Add("coatcheck/T/1/ABCDEFGH")
	f.Add("coatcheck///")
	f.Add("coatcheck/a/b/c/d")
	f.Fuzz(func(t *testing.T, id string) {
		q, ok := parseAskID(id)
		if ok != IsAsk(id) || ok && (q.task == "" || AskedBy(id) != q.task && !strings.HasPrefix(q.task, plainPrefix)) {
			t.Fatalf("%q is %v, %t", id, q, ok)
		}
		if again, ok := parseAskID(newAskID(question{"T" + id, "1"})); !ok || again.task != "T"+id || again.key != "1" {
			t.Fatalf("%q became %v", id, again)
		}
	})
}

// Whatever a client answers to whatever a server asked is refused or not, and no more.
func FuzzAnswer(f *testing.F) {
	schema := `{"message":"?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}}`
	f.Add(protocol.MethodElicit, []byte(schema), []byte(`{"action":"accept","content":{"n":1}}`))
	f.Add(protocol.MethodElicit, []byte(`{"requestedSchema":{"$ref":"#/x","pattern":"("}}`), []byte(`{"action":"accept"}`))
	f.Add(protocol.MethodElicit, []byte(`{"mode":"url"}`), []byte(`{"action":7}`))
	f.Add(protocol.MethodCreateMessage, []byte(`{}`), []byte(`{"role":"assistant","model":"m","content":{}}`))
	f.Add(protocol.MethodListRoots, []byte(nil), []byte(`{"roots":[{"uri":"x"},7]}`))
	f.Fuzz(func(t *testing.T, method string, params, result []byte) {
		if protocol.Valid(result) != nil || len(params) > 0 && protocol.Valid(params) != nil {
			return // what is no JSON does not get here
		}
		input := task.InputRequest{Method: method, Params: params}
		if misshapen(input, task.Outcome{Error: result}) != nil {
			t.Fatal("an error is an answer")
		}
		_ = misshapen(input, task.Outcome{Result: result})
		if waitingFor(input) == "" {
			t.Fatal("nothing to wait for")
		}
		_ = refusal(result, method, params)
		_ = (&Caller{Initialize: result}).Capabilities()
	})
}
