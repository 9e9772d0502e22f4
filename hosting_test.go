package coatcheck_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coatcheck/coatcheck/protocol"
)

// hosting is what a client declares that runs sampling as tasks.
const hosting = `{"sampling":{},"elicitation":{},"tasks":{"cancel":{},"list":{},"requests":{"sampling":{"createMessage":{}}}}}`

// A client's task, as it says.
func hostedTask(id, status string) string {
	return fmt.Sprintf(`{"taskId":%q,"status":%q,"createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z","ttl":60000,"pollInterval":100}`, id, status)
}

const because = `{"role":"assistant","content":{"type":"text","text":"because"},"model":"m1"}`

// called is a tools/call of a script in the background, as a task or plainly.
type called struct {
	task string // "" if it runs plainly
	*waiting
}

func (p *peer) callScript(words string, asTask bool) called {
	if asTask {
		task := p.create(script(words))
		return called{task.TaskID, p.wait(task.TaskID)}
	}
	return called{"", p.begin("tools/call", fmt.Sprintf(`{"name":"asking","arguments":{"script":%q}}`, words))}
}

// onHosts runs a test over each face, with calls that are tasks and calls that are none.
func onHosts(t *testing.T, s settings, test func(t *testing.T, p *peer, asTask bool)) {
	s.Capabilities = hosting
	onEveryFace(t, s, func(t *testing.T, connect func(string) *peer) {
		for name, asTask := range map[string]bool{"task": true, "plain": false} {
			t.Run(name, func(t *testing.T) { test(t, connect("alice"), asTask) })
		}
	})
}

// A question as a task of the client's, message by message (FLOW-3).
func TestQuestionAsTask(t *testing.T) {
	onHosts(t, settings{}, func(t *testing.T, p *peer, asTask bool) {
		c := p.callScript("hosted", asTask)
		create := p.await(t, 1, method(protocol.MethodCreateMessage))[0]
		if augmentation := protocol.Get(create.Params, "task"); string(augmentation) != `{"ttl":60000}` { // CRE-2
			t.Errorf("asked %s", create.Params)
		}
		if related(create.Params) != c.task { // REL-1, REL-4
			t.Errorf("asked %s, by task %q", create.Params, c.task)
		}
		if err := p.answer(create, `{"task":`+hostedTask("h1", "working")+`}`); err != nil { // CRE-1
			t.Fatal(err)
		}
		result := p.await(t, 1, method(protocol.MethodTasksResult))[0] // RES-2
		for n := range 3 {                                             // GET-2, GET-3
			get := p.await(t, n+1, method(protocol.MethodTasksGet))[n]
			if string(get.Params) != `{"taskId":"h1"}` || string(result.Params) != `{"taskId":"h1"}` { // REL-2
				t.Errorf("asked %s and %s", get.Params, result.Params)
			}
			if want := map[bool]string{true: "tasks/result", false: "tools/call"}[asTask]; get.stream != want && get.stream != "connection" { // INP-5
				t.Errorf("asked on %s", get.stream)
			}
			if err := p.answer(get, hostedTask("h1", "working")); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.answer(result, because); err != nil {
			t.Fatal(err)
		}
		wantText(t, c.result(t), "because by m1")
		if again := p.seen(method(protocol.MethodTasksCancel)); len(again) > 0 {
			t.Errorf("cancelled: %s", again[0].raw)
		}
	})
}

// A client that answers with nonsense ends the question, and no more (ERR-1, ERR-2).
func TestQuestionAsTaskOfABadClient(t *testing.T) {
	created := `{"task":` + hostedTask("h1", "working") + `}`
	cases := []struct {
		name, created string
		gets          int    // how often it is asked for the task's state
		got           string // what it answers to that
		result        string // what it answers to tasks/result
		want          string
	}{
		{"runs it plainly", because, 0, "", "", "because by m1"}, // CAP-5
		{"creates nothing", `{"task":{}}`, 0, "", "", "malformed task"},
		{"knows no status", `{"task":` + hostedTask("h1", "asleep") + `}`, 0, "", "", "malformed task"},
		{"tells of another", created, 5, hostedTask("h2", "working"), "", "make no sense"},
		{"tells nothing", created, 5, `{}`, "", "make no sense"},
		{"has forgotten", created, 1, "", "", "-32602 as said"},
		{"returns no result", created, 0, "", `{"role":7}`, "malformed answer"},
	}
	s := settings{Capabilities: hosting}
	onEveryFace(t, s, func(t *testing.T, connect func(string) *peer) {
		for _, c := range cases {
			for _, asTask := range []bool{true, false} {
				p := connect("alice")
				call := p.callScript("hosted", asTask)
				must := func(err error) {
					if err != nil {
						t.Fatal(c.name, err)
					}
				}
				create := p.await(t, 1, method(protocol.MethodCreateMessage))[0]
				if asTask && c.created == `{"task":{}}` { // refused, and asked again
					_ = p.answer(create, c.created) // over HTTP it says so
					create = p.await(t, 2, method(protocol.MethodCreateMessage))[1]
					must(p.answer(create, because))
					wantText(t, call.result(t), "because by m1")
					continue
				}
				must(p.answer(create, c.created))
				for n := range c.gets {
					get := p.await(t, n+1, method(protocol.MethodTasksGet))[n]
					if c.got == "" {
						must(p.refuse(get, `{"code":-32602,"message":"as said"}`))
					} else {
						must(p.answer(get, c.got))
					}
				}
				if c.result != "" {
					must(p.answer(p.await(t, 1, method(protocol.MethodTasksResult))[0], c.result))
				}
				if r := call.result(t); !strings.Contains(string(r.Result), c.want) {
					t.Errorf("%s: %s %+v, want %q", c.name, r.Result, r.Error, c.want)
				}
			}
		}
	})
}

// CAN-2: the client's task is cancelled with the call that asked for it, also if it is only
// created then.
func TestQuestionAsTaskIsCancelled(t *testing.T) {
	onHosts(t, settings{Listen: true}, func(t *testing.T, p *peer, asTask bool) {
		for i, late := range []bool{false, true} {
			id := fmt.Sprint("h", i)
			call := p.callScript("hosted", asTask)
			create := p.await(t, i+1, method(protocol.MethodCreateMessage))[i]
			created := func() error { return p.answer(create, `{"task":`+hostedTask(id, "working")+`}`) }
			if !late {
				if err := created(); err != nil {
					t.Fatal(err)
				}
				p.await(t, 1, method(protocol.MethodTasksGet))
			}
			if asTask {
				if r := p.call("tasks/cancel", idParams(call.task)); r.Error != nil {
					t.Fatal(r.Error)
				}
			} else {
				p.notify(protocol.MethodCancelled, fmt.Sprintf(`{"requestId":%d}`, call.id))
			}
			if late {
				if p.http && !asTask {
					<-call.ended // and the stream of the question with it
				} else {
					p.await(t, 1, func(m heard) bool { // the question is withdrawn
						return m.Method == protocol.MethodCancelled && string(protocol.Get(m.Params, "requestId")) == string(create.ID)
					})
				}
				_ = created() // over HTTP it is refused
			}
			cancel := p.await(t, i+1, method(protocol.MethodTasksCancel))[i]
			if string(cancel.Params) != `{"taskId":"`+id+`"}` {
				t.Errorf("cancelled %s", cancel.raw)
			}
		}
	})
}

// CAN-2, X-7: of a question that was given up, or is answered twice, no task is left, though
// the one that asked goes on.
func TestQuestionAsTaskIsGivenUp(t *testing.T) {
	s := settings{Capabilities: hosting, Listen: true}
	onEveryFace(t, s, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		cancelled := func(n int, id string) {
			t.Helper()
			if cancel := p.await(t, n, method(protocol.MethodTasksCancel))[n-1]; string(cancel.Params) != idParams(id) {
				t.Errorf("cancelled %s", cancel.raw)
			}
		}
		created := func(question heard, id string) {
			t.Helper()
			if err := p.answer(question, `{"task":`+hostedTask(id, "working")+`}`); err != nil {
				t.Fatal(err)
			}
		}
		call := p.callScript("hasty hosted", true)
		hasty := p.await(t, 1, method(protocol.MethodCreateMessage))[0]
		hosted := p.await(t, 2, method(protocol.MethodCreateMessage))[1] // by then the first is withdrawn
		created(hasty, "late")
		cancelled(1, "late")
		created(hosted, "h1")
		result := p.await(t, 1, method(protocol.MethodTasksResult))[0]
		created(hosted, "h1") // the same again is fine
		created(hosted, "h2")
		cancelled(2, "h2")
		if err := p.answer(result, because); err != nil {
			t.Fatal(err)
		}
		wantText(t, call.result(t), "gave up; because by m1")
		if all := p.seen(method(protocol.MethodTasksCancel)); len(all) != 2 {
			t.Errorf("cancelled %d tasks", len(all))
		}
	})
}

// Whether what a handler asks by the SDK's session becomes a task is a setting.
func TestSessionQuestionsAsTasks(t *testing.T) {
	for _, upgraded := range []bool{false, true} {
		onHosts(t, settings{AskAsTasks: upgraded}, func(t *testing.T, p *peer, asTask bool) {
			c := p.callScript("sample", asTask)
			create := p.await(t, 1, method(protocol.MethodCreateMessage))[0]
			if got := protocol.Get(create.Params, "task") != nil; got != upgraded {
				t.Errorf("asked %s", create.raw)
			}
			if err := p.answer(create, because); err != nil {
				t.Fatal(err)
			}
			wantText(t, c.result(t), "because by m1")
			// What the client does not run as a task is asked plainly (CAP-4).
			c = p.callScript("ask", asTask)
			elicit := p.await(t, 1, method(protocol.MethodElicit))[0]
			if protocol.Get(elicit.Params, "task") != nil {
				t.Errorf("asked %s", elicit.raw)
			}
			if err := p.answer(elicit, `{"action":"decline"}`); err != nil {
				t.Fatal(err)
			}
			wantText(t, c.result(t), "decline <nil>")
		})
	}
}
