package coatcheck_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/protocol"
)

// wantLimit checks a refusal for a limit: the code, the limit's name, and, where it helps to
// wait, when to come back; over HTTP in the status and a header, too.
func wantLimit(t *testing.T, p *peer, r reply, name string, again bool) {
	t.Helper()
	if r.Error == nil || r.Error.Code != protocol.CodeLimitExceeded {
		t.Fatalf("got result %s, error %+v; want limit %q", r.Result, r.Error, name)
	}
	if got, _ := protocol.Unquote(protocol.Get(r.Error.Data, "limit")); got != name {
		t.Errorf("limit %q in %s, want %q", got, r.Error.Data, name)
	}
	ms, _ := strconv.Atoi(string(protocol.Get(r.Error.Data, "retryAfterMs")))
	if (ms > 0) != again {
		t.Errorf("retryAfterMs in %s", r.Error.Data)
	}
	if !p.http || !again {
		return
	}
	resp := p.web.refused.Load() //nolint:bodyclose // it was read and closed
	if seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")); resp.StatusCode != http.StatusTooManyRequests || seconds != (ms+999)/1000 {
		t.Errorf("HTTP %d, Retry-After %q for %d ms", resp.StatusCode, resp.Header.Get("Retry-After"), ms)
	}
}

// RSC-1: of one requestor's tasks some work at a time, some wait for their turn, in order, and
// any more are refused. It does not touch another's.
func TestTasksWaitTheirTurn(t *testing.T) {
	s := settings{Limits: &coatcheck.Limits{Running: 2, Queued: 3}}
	onEveryFace(t, s, func(t *testing.T, connect func(string) *peer) {
		p, other := connect("alice"), connect("bob")
		var tasks []protocol.Task
		for i := range 5 {
			tasks = append(tasks, p.create(gate(fmt.Sprint(i))))
		}
		for i, created := range tasks {
			waits := strings.Contains(created.StatusMessage, "waits for its turn")
			if created.Status != "working" || waits != (i >= 2) { // CRE-3
				t.Errorf("task %d: %+v", i, created)
			}
			if got := p.get(created.TaskID); got.StatusMessage != created.StatusMessage {
				t.Errorf("task %d, polled: %q", i, got.StatusMessage)
			}
		}
		wantLimit(t, p, p.call("tools/call", gate("5")), "queued", true)
		other.create(`{"name":"echo","task":{}}`)

		p.call("tasks/cancel", idParams(tasks[2].TaskID)) // it waited, and never runs
		p.tool("open", "1")
		p.tool("started", "3")
		if got := p.get(tasks[4].TaskID); !strings.Contains(got.StatusMessage, "waits for its turn") {
			t.Error("out of its turn:", got)
		}
		p.tool("open", "0")
		p.tool("started", "4")
		p.tool("open", "3")
		p.tool("open", "4")
		for i, want := range []string{"opened 0", "opened 1", "", "opened 3", "opened 4"} {
			r := p.call("tasks/result", idParams(tasks[i].TaskID))
			if want == "" {
				wantError(t, r, protocol.CodeRequestCancelled, "")
			} else {
				wantText(t, r, want)
			}
		}
		if r := p.tool("runs", "gate2"); !strings.Contains(string(r.Result), `"0"`) {
			t.Errorf("the cancelled one ran: %s", r.Result)
		}
		p.create(gate("6"))
	})
}

// RSC-1: without a queue a create beyond what may run is refused.
func TestNoQueue(t *testing.T) {
	s := settings{Limits: &coatcheck.Limits{Running: 1, NoQueue: true}}
	onEveryFace(t, s, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		p.create(gate("0"))
		wantLimit(t, p, p.call("tools/call", gate("1")), "running", true)
		p.tool("open", "0")
	})
}

// A task that waits for input does not keep others from their turn, and goes on at once when
// it has it.
func TestATaskThatWaitsForInputStepsAside(t *testing.T) {
	s := settings{Limits: &coatcheck.Limits{Running: 1}, Capabilities: ableToAll, PushInput: true, Listen: true}
	onEveryFace(t, s, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		asks := p.create(script("ask"))
		question := p.await(t, 1, method(protocol.MethodElicit))[0]
		blocks := p.create(gate("0"))
		p.tool("started", "0")
		if err := p.answer(question, `{"action":"accept","content":{"n":1}}`); err != nil {
			t.Fatal(err)
		}
		wantText(t, p.call("tasks/result", idParams(asks.TaskID)), "accept 1")
		p.tool("open", "0")
		wantText(t, p.call("tasks/result", idParams(blocks.TaskID)), "opened 0")
	})
}

// RSC-1, RSC-2: what is said of a tool holds for its tasks alone.
func TestLimitsOfATool(t *testing.T) {
	s := settings{
		Limits: &coatcheck.Limits{},
		ToolLimits: map[string]coatcheck.ToolLimits{
			"gate": {Running: 1, MaxTTL: time.Minute, Creates: coatcheck.Rate{PerSecond: 0.01, Burst: 2}},
			"big":  {Result: 1 << 20},
			"echo": {Request: 100},
		},
	}
	onEveryFace(t, s, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		first, second := p.create(gate("0")), p.create(gate("1"))
		if first.TTL == nil || *first.TTL != 60_000 {
			t.Errorf("ttl %v", first.TTL)
		}
		if !strings.Contains(second.StatusMessage, "waits for its turn") {
			t.Error("both run")
		}
		wantLimit(t, p, p.call("tools/call", gate("2")), "creates", true)
		p.tool("open", "0")
		p.tool("open", "1")
		p.create(`{"name":"echo","task":{}}`)
		r := p.call("tools/call", `{"name":"echo","arguments":{"key":"`+strings.Repeat("x", 100)+`"},"task":{}}`)
		wantLimit(t, p, r, "request", false)
		big := p.create(`{"name":"big","task":{}}`)
		wantError(t, p.call("tasks/result", idParams(big.TaskID)), protocol.CodeInternalError, "too large")
		if got := p.get(big.TaskID); got.Status != "failed" || !strings.Contains(got.StatusMessage, "too large") { // EXE-3
			t.Errorf("%+v", got)
		}
	})
}

// RSC-1: what is stored is bounded, too, of each requestor; what has expired makes room.
func TestStoredTasksAreBounded(t *testing.T) {
	s := settings{Limits: &coatcheck.Limits{Tasks: 3, Creates: coatcheck.Rate{PerSecond: coatcheck.NoLimit}}, Retention: -1}
	onEveryFace(t, s, func(t *testing.T, connect func(string) *peer) {
		p, other := connect("alice"), connect("bob")
		p.create(`{"name":"echo","task":{"ttl":1000}}`)
		keyed := p.create(`{"name":"echo","task":{},"_meta":{"coatcheck/idempotency-key":"k"}}`)
		p.create(`{"name":"echo","task":{}}`)
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			r := p.call("tools/call", `{"name":"echo","task":{}}`)
			if r.Error == nil {
				break // the first has expired
			}
			if wantLimit(t, p, r, "tasks", false); time.Now().After(deadline) {
				t.Fatal("no room, though one has expired")
			}
			if again := p.create(`{"name":"echo","task":{},"_meta":{"coatcheck/idempotency-key":"k"}}`); again.TaskID != keyed.TaskID { // C.8
				t.Error("a repeat is another task")
			}
		}
		other.create(`{"name":"echo","task":{}}`)
	})
}

func TestStoredBytesAreBounded(t *testing.T) {
	onEveryFace(t, settings{Limits: &coatcheck.Limits{Bytes: 6 << 20}}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		for range 2 { // the second begins below the bound, and ends above it
			created := p.create(`{"name":"big","task":{}}`)
			if r := p.call("tasks/result", idParams(created.TaskID)); len(r.Result) < 5<<20 { // RES-1
				t.Fatalf("%d bytes, %v", len(r.Result), r.Error)
			}
		}
		wantLimit(t, p, p.call("tools/call", `{"name":"echo","task":{}}`), "bytes", false)
	})
}

// RSC-2
func TestMaxTTLOfAPrincipal(t *testing.T) {
	onEveryFace(t, settings{Limits: &coatcheck.Limits{MaxTTL: 2 * time.Hour}}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		for asked, want := range map[string]int64{`{}`: 3600_000, `{"ttl":7300000}`: 7200_000, `{"ttl":null}`: 7200_000, `{"ttl":5000}`: 5000} {
			if got := p.create(`{"name":"echo","task":` + asked + `}`); got.TTL == nil || *got.TTL != want {
				t.Errorf("%s: ttl %v, want %d", asked, got.TTL, want)
			}
		}
	})
}

// SEC-5: each kind of operation has its rate, of each principal.
func TestRates(t *testing.T) {
	rate := coatcheck.Rate{PerSecond: 0.01, Burst: 5}
	s := settings{Limits: &coatcheck.Limits{Creates: rate, Gets: rate, Lists: rate}}
	onEveryFace(t, s, func(t *testing.T, connect func(string) *peer) {
		p, other := connect("alice"), connect("bob")
		var id string
		for range 5 {
			id = p.create(`{"name":"echo","task":{}}`).TaskID
			if r := p.call("tasks/list", `{}`); r.Error != nil {
				t.Fatal(r.Error)
			}
		}
		wantLimit(t, p, p.call("tools/call", `{"name":"echo","task":{}}`), "creates", true)
		wantLimit(t, p, p.call("tasks/list", `{}`), "lists", true)
		p.tool("echo", "plain calls are not counted")
		p.get(id)
		p.get(id)
		p.call("tasks/result", idParams(id))
		p.call("tasks/result", idParams(id))
		wantError(t, p.call("tasks/cancel", idParams(id)), protocol.CodeInvalidParams, "terminal")
		for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel"} {
			wantLimit(t, p, p.call(method, idParams(id)), "gets", true)
		}
		other.get(other.create(`{"name":"echo","task":{}}`).TaskID)
		if p.http { // a new session is no new requestor
			again := connect("alice")
			wantLimit(t, again, again.call("tasks/list", `{}`), "lists", true)
		}
	})
}

// SEC-5: who asks too often for what is not there gets no more answers for a while, whatever
// it asks for.
func TestFailedLookUps(t *testing.T) {
	s := settings{Limits: &coatcheck.Limits{Misses: coatcheck.Rate{PerSecond: 0.01, Burst: 6}}}
	onEveryFace(t, s, func(t *testing.T, connect func(string) *peer) {
		p, other := connect("alice"), connect("bob")
		own, foreign := p.create(`{"name":"echo","task":{}}`).TaskID, other.create(`{"name":"echo","task":{}}`).TaskID
		for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel"} {
			wantError(t, p.call(method, idParams("guess")), protocol.CodeInvalidParams, "Task not found")
			wantError(t, p.call(method, idParams(foreign)), protocol.CodeInvalidParams, "Task not found")
		}
		for _, id := range []string{"guess", foreign, own} {
			wantLimit(t, p, p.call("tasks/get", idParams(id)), "misses", true)
		}
		other.get(foreign)
	})
}

// An answer to a question is never refused for a rate: nobody could be told to send it again.
func TestAnswersAreHeldNotRefused(t *testing.T) {
	s := settings{Limits: &coatcheck.Limits{Gets: coatcheck.Rate{PerSecond: 5, Burst: 1}}, Capabilities: ableToAll, PushInput: true, Listen: true}
	onEveryFace(t, s, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		task := p.create(script("ask"))
		question := p.await(t, 1, method(protocol.MethodElicit))[0]
		p.get(task.TaskID)
		if err := p.answer(question, `{"action":"accept","content":{"n":1}}`); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(200 * time.Millisecond) {
			r := p.call("tasks/get", idParams(task.TaskID))
			if status, _ := protocol.Unquote(protocol.Get(r.Result, "status")); status == "completed" {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s %v", r.Result, r.Error)
			}
		}
	})
}

// C.8: a create is repeated also when there is no place for another.
func TestARepeatNeedsNoPlace(t *testing.T) {
	onEveryFace(t, settings{Limits: &coatcheck.Limits{Running: 1, NoQueue: true}}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		const keyed = `{"name":"gate","arguments":{"key":"x"},"task":{},"_meta":{"coatcheck/idempotency-key":"k"}}`
		first := p.create(keyed)
		p.tool("started", "x")
		if again := p.create(keyed); again.TaskID != first.TaskID {
			t.Errorf("%s, then %s", first.TaskID, again.TaskID)
		}
		wantLimit(t, p, p.call("tools/call", `{"name":"echo","arguments":{},"task":{},"_meta":{"coatcheck/idempotency-key":"other"}}`), "running", true)
		if list := p.call("tasks/list", `{}`); strings.Count(string(list.Result), "taskId") != 1 {
			t.Errorf("%s", list.Result)
		}
		p.tool("open", "x")
	})
}

// RSC-1: open tasks/result calls are bounded; those that are there go on.
func TestWaitsAreBounded(t *testing.T) {
	onEveryFace(t, settings{Limits: &coatcheck.Limits{Waits: 2}}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		task := p.create(gate("0"))
		p.tool("started", "0")
		waits := []*waiting{p.wait(task.TaskID), p.wait(task.TaskID)}
		// Until both have begun to wait one more may take their place.
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			r, err := p.callContext(ctx, p.nextID(), "tasks/result", idParams(task.TaskID))
			cancel()
			if err == nil {
				wantLimit(t, p, r, "waits", true)
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("three calls wait")
			}
			for i, w := range waits { // one whose place that call had
				select {
				case <-w.ended:
					waits[i] = p.wait(task.TaskID)
				default:
				}
			}
		}
		p.tool("open", "0")
		for _, w := range waits {
			r := w.result(t)
			if r.Error != nil && r.Error.Code == protocol.CodeLimitExceeded { // a call that was given up has its place
				continue
			}
			wantText(t, r, "opened 0")
		}
	})
}

// TTL-4, SEC-5: polling much faster than the pollInterval says is slowed down to it, and
// nothing is lost.
func TestFastPollsAreSlowed(t *testing.T) {
	s := settings{Limits: &coatcheck.Limits{Polls: 1, Gets: coatcheck.Rate{PerSecond: coatcheck.NoLimit}}}
	onEveryFace(t, s, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		task := p.create(gate("0"))
		p.tool("started", "0")
		slowed := false
		for begin := time.Now(); !slowed; {
			asked := time.Now()
			p.get(task.TaskID)
			slowed = time.Since(asked) >= time.Second
			if time.Since(begin) > 30*time.Second {
				t.Fatal("a flood of polls was answered at once")
			}
		}
		polled := make(chan reply)
		go func() {
			r, _ := p.callContext(t.Context(), p.nextID(), "tasks/get", idParams(task.TaskID))
			polled <- r
		}()
		p.tool("open", "0")
		if r := <-polled; r.Error != nil {
			t.Error(r.Error)
		}
		if got := p.get(task.TaskID); got.Status != "completed" { // an ended task is told at once
			wantText(t, p.call("tasks/result", idParams(task.TaskID)), "opened 0")
		}
	})
}
