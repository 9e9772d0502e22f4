package coatcheck_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/coatcheck/coatcheck/protocol"
)

// C.7: first asked first, and again on each new tasks/result until answered.
func TestQuestionsAreAskedAgain(t *testing.T) {
	onAllFaces(t, settings{Capabilities: ableToAll}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		task := p.create(script("both"))
		p.until(task.TaskID, func(at protocol.Task) bool {
			return strings.Contains(at.StatusMessage, "Two?") || strings.Contains(at.StatusMessage, "One?")
		})
		var questions []heard
		for i := range 3 {
			w := p.wait(task.TaskID)
			questions = p.await(t, 2*i+2, method(protocol.MethodElicit))[2*i:]
			if i < 2 {
				p.drop(w)
			}
		}
		first := p.seen(method(protocol.MethodElicit))[0]
		if string(protocol.Get(first.Params, "message")) != string(protocol.Get(questions[0].Params, "message")) {
			t.Errorf("the order changed: %s", p.dump())
		}
		ids := map[string]bool{}
		for _, m := range p.seen(method(protocol.MethodElicit)) {
			if ids[string(m.ID)] {
				t.Errorf("id %s came twice", m.ID)
			}
			ids[string(m.ID)] = true
		}
		for _, q := range questions {
			if err := p.answer(q, `{"action":"decline"}`); err != nil {
				t.Fatal(err)
			}
		}
		p.status(task.TaskID, "completed")
	})
}

// drop ends a tasks/result call as a client does: over HTTP by ending the request, elsewhere
// with notifications/cancelled. The task goes on (GET-5, CAN-4).
func (p *peer) drop(w *waiting) {
	p.t.Helper()
	w.cut()
	<-w.ended
	if !p.http {
		p.notify("notifications/cancelled", fmt.Sprintf(`{"requestId":%d}`, w.id))
	}
}

// With two streams open each question goes to one of them, and to the other if the first
// drops unanswered.
func TestTwoStreams(t *testing.T) {
	onEveryFace(t, settings{Capabilities: ableToAll}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		task := p.create(script("ask ask"))
		// Both wait before the second question is asked.
		a := p.wait(task.TaskID)
		first := p.await(t, 1, method(protocol.MethodElicit))[0]
		b := p.wait(task.TaskID)
		again := p.await(t, 2, method(protocol.MethodElicit))[1] // b is new
		if err := p.answer(again, `{"action":"accept","content":{"n":1}}`); err != nil {
			t.Fatal(err)
		}
		taken := p.await(t, 1, method(protocol.MethodCancelled))[0]
		if string(protocol.Get(taken.Params, "requestId")) != string(first.ID) {
			t.Errorf("taken back %s", taken.raw)
		}
		p.await(t, 3, method(protocol.MethodElicit))
		p.status(task.TaskID, "input_required")
		if all := p.seen(method(protocol.MethodElicit)); len(all) != 3 {
			t.Errorf("the second question was asked on both: %s", p.dump())
		}
		p.drop(b) // where it was asked, being the latest
		question := p.await(t, 4, method(protocol.MethodElicit))[3]
		if err := p.answer(question, `{"action":"accept","content":{"n":2}}`); err != nil {
			t.Fatal(err)
		}
		wantText(t, a.result(t), "accept 1; accept 2")
	})
}

// A stream whose client cannot answer is not asked; another's is.
func TestStreamOfAnotherClient(t *testing.T) {
	s := settings{Capabilities: ableToAll}
	s.Database = "sqlite:" + t.TempDir() + "/tasks.db"
	able := openHTTP(t, s)("alice")
	s.Capabilities = ""
	unable := openHTTP(t, s)("alice") // of another process's runtime, on the same file
	task := able.create(script("ask"))
	able.status(task.TaskID, "input_required")
	deaf := unable.wait(task.TaskID)
	w := able.wait(task.TaskID)
	question := able.await(t, 1, method(protocol.MethodElicit))[0]
	if err := able.answer(question, `{"action":"decline"}`); err != nil {
		t.Fatal(err)
	}
	wantText(t, w.result(t), "decline <nil>")
	wantText(t, deaf.result(t), "decline <nil>")
	if heard := unable.seen(func(m heard) bool { return m.ID != nil }); len(heard) != 0 {
		t.Errorf("asked %s", unable.dump())
	}
}

// C.11: a question of a task that another process runs is asked, and answered, all the same.
func TestQuestionOfAnotherProcess(t *testing.T) {
	s := settings{Capabilities: ableToAll, Database: "sqlite:" + t.TempDir() + "/tasks.db"}
	for name, connect := range map[string]func(string) *peer{"http": openHTTP(t, s), "stdio": openStdio(t, s)} {
		t.Run(name, func(t *testing.T) {
			runs := openStdio(t, s)("alice")
			task := runs.create(script("both ask"))
			p := connect("alice")
			w := p.wait(task.TaskID)
			for i := range 3 {
				question := p.await(t, i+1, method(protocol.MethodElicit))[i]
				if err := p.answer(question, fmt.Sprintf(`{"action":"accept","content":{"n":%d}}`, i+1)); err != nil {
					t.Fatal(err)
				}
			}
			if r := w.result(t); !strings.Contains(string(r.Result), "accept 3") {
				t.Errorf("got %s %v", r.Result, r.Error)
			}
		})
	}
}

// The drop test: the exchange is cut at every possible point, with reconnects from a new
// session. The question arrives until it is answered, the tool sees exactly one answer.
func TestDrop(t *testing.T) {
	for _, cut := range []string{"before the question", "after the question", "after the answer was sent", "after it was stored"} {
		t.Run(cut, func(t *testing.T) {
			onEveryFace(t, settings{Capabilities: ableToAll}, func(t *testing.T, connect func(string) *peer) {
				p := connect("alice")
				task := p.create(script("ask"))
				w := p.wait(task.TaskID)
				if cut != "before the question" {
					question := p.await(t, 1, method(protocol.MethodElicit))[0]
					switch cut {
					case "after the answer was sent":
						sent := make(chan error, 1)
						go func() { sent <- p.answer(question, `{"action":"accept","content":{"n":1}}`) }()
						p.drop(w)
						if err := <-sent; err != nil {
							t.Fatal(err)
						}
					case "after it was stored":
						if err := p.answer(question, `{"action":"accept","content":{"n":1}}`); err != nil {
							t.Fatal(err)
						}
						p.until(task.TaskID, func(at protocol.Task) bool { return at.Status != "input_required" })
					}
				}
				p.drop(w)
				if p.http {
					p = connect("alice")
				}
				asked := len(p.seen(method(protocol.MethodElicit)))
				w = p.wait(task.TaskID)
				if strings.HasSuffix(cut, "the question") {
					question := p.await(t, asked+1, method(protocol.MethodElicit))[asked]
					if err := p.answer(question, `{"action":"accept","content":{"n":1}}`); err != nil {
						t.Fatal(err)
					}
				}
				wantText(t, w.result(t), "accept 1")
			})
		})
	}
}

// The same at random points, many times over: questions are answered by whoever is there,
// wrongly, twice and late, while streams come and go.
func TestDropAtRandom(t *testing.T) {
	onEveryFace(t, settings{Capabilities: ableToAll, NoLimits: true}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		for round := range 100 {
			task := p.create(script("ask both"))
			for answered := 0; p.get(task.TaskID).Status != "completed"; {
				if p.http && rand.N(4) == 0 {
					p = connect("alice")
				}
				w := p.wait(task.TaskID)
				mine := func(m heard) bool { return m.Method == protocol.MethodElicit && related(m.Params) == task.TaskID }
				for range rand.N(3) {
					for _, q := range p.seen(mine) {
						switch rand.N(4) {
						case 0:
							_ = p.answer(q, `{"action":"accept","content":{"n":0}}`) // wrong
						default: // the answer is one of its question, so that each can be told
							answered++
							_ = p.answer(q, `{"action":"accept","content":{"n":1}}`)
						}
					}
				}
				if rand.N(2) == 0 {
					p.drop(w)
				}
				if answered > 10_000 {
					t.Fatalf("round %d does not end: %s", round, p.dump())
				}
			}
			w := p.wait(task.TaskID)
			wantText(t, w.result(t), "accept 1; accept 1, accept 1")
		}
	})
}

// Two principals and two sessions: nobody sees another's questions, progress, logs or pushes.
func TestNobodyHearsAnother(t *testing.T) {
	for _, push := range []bool{false, true} {
		onEveryFace(t, settings{Capabilities: ableToAll, Listen: true, PushInput: push}, func(t *testing.T, connect func(string) *peer) {
			alice, bob := connect("alice"), connect("bob")
			for _, p := range []*peer{alice, bob} {
				if r := p.call("logging/setLevel", `{"level":"debug"}`); r.Error != nil {
					t.Fatal(r.Error)
				}
			}
			ids := map[*peer]string{}
			for _, p := range []*peer{alice, bob} {
				ids[p] = p.create(script("report 1 log ask report 2 log")).TaskID
			}
			// A foreign id is unknown (SEC-1, C.6), also as the one to wait for, and to answer.
			wantError(t, alice.call("tasks/result", idParams(ids[bob])), -32602, "Task not found")
			for _, p := range []*peer{alice, bob} {
				w := p.wait(ids[p])
				question := p.await(t, 1, method(protocol.MethodElicit))[0]
				thief := map[*peer]*peer{alice: bob, bob: alice}[p]
				err := thief.answer(question, `{"action":"accept","content":{"n":666}}`)
				if thief.http && (err == nil || !strings.Contains(err.Error(), "Task not found")) {
					t.Errorf("a foreign answer: %v", err)
				}
				if err := p.answer(question, `{"action":"accept","content":{"n":1}}`); err != nil {
					t.Fatal(err)
				}
				wantText(t, w.result(t), "accept 1")
			}
			for p, id := range ids {
				for _, m := range p.seen(func(heard) bool { return true }) {
					about := related(m.Params)
					if m.Method == protocol.MethodTasksStatus {
						about, _ = protocol.Unquote(protocol.Get(m.Params, "taskId"))
					}
					told := m.Method == protocol.MethodLogMessage && strings.Contains(string(m.Params), "Task not found")
					if about != id && !told {
						t.Errorf("heard %s", m.raw)
					}
				}
			}
		})
	}
}

// SEC-3: without authorization all requestors are one, but a session's own stream carries
// what its own tasks say alone.
func TestSessionsWithoutIdentity(t *testing.T) {
	s := settings{Capabilities: ableToAll, Listen: true, PushInput: true, NoAuth: true}
	onFaces(t, []face{faces[0], allFaces[3], allFaces[4]}, s, func(t *testing.T, connect func(string) *peer) {
		a, b := connect(""), connect("")
		task := a.create(script("report 1 ask"))
		question := a.await(t, 1, method(protocol.MethodElicit))[0]
		if err := a.answer(question, `{"action":"decline"}`); err != nil {
			t.Fatal(err)
		}
		a.status(task.TaskID, "completed")
		a.await(t, 3, method(protocol.MethodTasksStatus))
		if heard := b.seen(func(heard) bool { return true }); len(heard) != 0 {
			t.Errorf("another session heard %s", b.dump())
		}
	})
}

// Answers that are none, or to nothing, are refused plainly, and change nothing (ERR-1).
func TestMalformedAnswers(t *testing.T) {
	s := settings{Capabilities: ableToAll, Database: "sqlite:" + t.TempDir() + "/tasks.db"}
	p := openHTTP(t, s)("alice")
	task := p.create(script("ask"))
	w := p.wait(task.TaskID)
	question := p.await(t, 1, method(protocol.MethodElicit))[0]
	for _, c := range []struct{ message, want string }{
		{`{"jsonrpc":"2.0","id":"coatcheck/nothing/1/ABCDEFGH","result":{"action":"decline"}}`, "Task not found"},
		{fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":7}`, question.ID), "must be an object"},
		{fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":null}`, question.ID), "must be an object"},
		{fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"n":1e999}}}`, question.ID), "content"},
		{fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":[]}}`, question.ID), "content must be an object"},
	} {
		_, err := p.round(context.Background(), []byte(c.message))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "-32602") {
			t.Errorf("%s: %v", c.message, err)
		}
	}
	// an unknown key of a known task is ignored.
	unknown := strings.Replace(string(question.ID), "/1/", "/7/", 1)
	if _, err := p.round(context.Background(), []byte(`{"jsonrpc":"2.0","id":`+unknown+`,"result":{"action":"decline"}}`)); err != nil {
		t.Error(err)
	}
	p.drop(w)
	asked := p.seen(method(protocol.MethodElicit))
	w = p.wait(task.TaskID) // after so many wrong answers it is asked on a new stream only
	question = p.await(t, len(asked)+1, method(protocol.MethodElicit))[len(asked)]
	if err := p.answer(question, `{"action":"accept","content":{"n":5,"more":[1.50]}}`); err != nil {
		t.Fatal(err)
	}
	wantText(t, w.result(t), "accept 5")
}
