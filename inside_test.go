package coatcheck_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/coatcheck/coatcheck/protocol"
)

const ableToAll = `{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{}},"roots":{}}`

// script calls the tool asking as a task.
func script(words string) string {
	return fmt.Sprintf(`{"name":"asking","arguments":{"script":%q},"task":{},"_meta":{"progressToken":"p-1"}}`, words)
}

func wantText(t *testing.T, r reply, want string) {
	t.Helper()
	if r.Error != nil {
		t.Fatalf("error %+v, want %q", r.Error, want)
	}
	var got struct{ Content []struct{ Text string } }
	if err := json.Unmarshal(r.Result, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Content) != 1 || got.Content[0].Text != want {
		t.Errorf("got %s, want %q", r.Result, want)
	}
}

// A question, from the asking to the end (FLOW-2).
func TestQuestion(t *testing.T) {
	onAllFaces(t, settings{Capabilities: ableToAll}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		task := p.create(script("ask"))
		asking := p.status(task.TaskID, "input_required") // INP-1
		if !strings.Contains(asking.StatusMessage, "How many?") {
			t.Errorf("statusMessage %q", asking.StatusMessage)
		}
		if all := p.seen(method(protocol.MethodElicit)); len(all) != 0 {
			t.Errorf("asked before tasks/result: %s", p.dump())
		}
		w := p.wait(task.TaskID) // INP-3
		question := p.await(t, 1, method(protocol.MethodElicit))[0]
		if question.stream != "tasks/result" && question.stream != "connection" { // INP-5
			t.Errorf("asked on %s", question.stream)
		}
		if related(question.Params) != task.TaskID { // INP-2, REL-1, REL-4
			t.Errorf("asked with %s", question.Params)
		}
		if kept := protocol.Get(protocol.Get(question.Params, "_meta"), "kept"); string(kept) != "1.5" {
			t.Errorf("_meta is %s", question.Params)
		}
		if !strings.Contains(string(question.Params), `"message":"How many?"`) {
			t.Errorf("asked %s", question.Params)
		}
		// Other requests are served meanwhile (FLOW-2), polling goes on (GET-3).
		if r := p.call("ping", `{}`); r.Error != nil {
			t.Error(r.Error)
		}
		if got := p.get(task.TaskID); got.Status != "input_required" {
			t.Errorf("status %s", got.Status)
		}
		if err := p.answer(question, `{"action":"accept","content":{"n":3}}`); err != nil {
			t.Fatal(err)
		}
		r := w.result(t)
		wantText(t, r, "accept 3")
		if related(r.Result) != task.TaskID { // RES-3
			t.Errorf("result %s", r.Result)
		}
		if got := p.get(task.TaskID); got.Status != "completed" { // INP-4
			t.Errorf("status %s", got.Status)
		}
		// late and duplicate answers change nothing.
		if err := p.answer(question, `{"action":"accept","content":{"n":4}}`); err != nil {
			t.Error(err)
		}
		wantText(t, p.call("tasks/result", idParams(task.TaskID)), "accept 3")
	})
}

// Each kind of question is asked as the tool asked it, and its answer passes as it is.
func TestKindsOfQuestions(t *testing.T) {
	kinds := []struct {
		words, method, answer, want string
	}{
		{"ask", protocol.MethodElicit, `{"action":"decline"}`, "decline <nil>"},
		{"ask", protocol.MethodElicit, `{"action":"cancel"}`, "cancel <nil>"},
		{"url", protocol.MethodElicit, `{"action":"accept"}`, "accept"},
		{"sample", protocol.MethodCreateMessage, `{"role":"assistant","content":{"type":"text","text":"because"},"model":"m1"}`, "because by m1"},
		{"tools", protocol.MethodCreateMessage, `{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"tool_use","id":"1","name":"t","input":{}}],"model":"m1"}`, "2 blocks"},
		{"roots", protocol.MethodListRoots, `{"roots":[{"uri":"file:///r"}]}`, "file:///r"},
	}
	onAllFaces(t, settings{Capabilities: ableToAll}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		for _, c := range kinds {
			task := p.create(script(c.words))
			about := func(name string) func(heard) bool { // REL-1
				return func(m heard) bool { return m.Method == name && related(m.Params) == task.TaskID }
			}
			w := p.wait(task.TaskID)
			question := p.await(t, 1, about(c.method))[0]
			if c.words == "tools" && protocol.Get(question.Params, "tools") == nil {
				t.Errorf("asked %s", question.Params)
			}
			if err := p.answer(question, c.answer); err != nil {
				t.Fatal(err)
			}
			if c.words == "url" {
				p.await(t, 1, about(protocol.MethodElicitComplete))
			}
			wantText(t, w.result(t), c.want)
		}
	})
}

// An error is an answer, too, and reaches the tool with code and data.
func TestQuestionAnsweredWithError(t *testing.T) {
	onAllFaces(t, settings{Capabilities: ableToAll}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		task := p.create(script("ask"))
		w := p.wait(task.TaskID)
		question := p.await(t, 1, method(protocol.MethodElicit))[0]
		if err := p.refuse(question, `{"code":-32042,"message":"not now","data":{"until":1.50}}`); err != nil {
			t.Fatal(err)
		}
		wantText(t, w.result(t), `ask: -32042 not now {"until":1.50}`)
	})
}

// An answer that does not fit what was asked is refused and the question asked again.
func TestAnswerIsValidated(t *testing.T) {
	onAllFaces(t, settings{Capabilities: ableToAll}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		task := p.create(script("ask sample"))
		w := p.wait(task.TaskID)
		for i, bad := range []string{`{"action":"accept","content":{"n":"three"}}`, `{"action":"perhaps"}`} {
			question := p.await(t, i+1, method(protocol.MethodElicit))[i]
			err := p.answer(question, bad)
			if question.stream == "connection" { // where nothing can be said in reply
				complaint := p.await(t, i+1, method(protocol.MethodLogMessage))[i]
				err = fmt.Errorf("%s", complaint.Params)
				if related(complaint.Params) != task.TaskID {
					t.Errorf("complaint %s", complaint.Params)
				}
			}
			if err == nil || !strings.Contains(err.Error(), "Invalid answer to elicitation/create") {
				t.Errorf("%s: %v", bad, err)
			}
		}
		if got := p.get(task.TaskID); got.Status != "input_required" {
			t.Errorf("status %s", got.Status)
		}
		questions := p.await(t, 3, method(protocol.MethodElicit))
		if string(questions[0].ID) == string(questions[2].ID) {
			t.Error("asked again under the same id")
		}
		if err := p.answer(questions[2], `{"action":"accept","content":{"n":2}}`); err != nil {
			t.Fatal(err)
		}
		sample := p.await(t, 1, method(protocol.MethodCreateMessage))[0]
		_ = p.answer(sample, `{"role":"assistant","content":"because"}`)
		sample = p.await(t, 2, method(protocol.MethodCreateMessage))[1]
		if err := p.answer(sample, `{"role":"assistant","model":"m","content":{"type":"text","text":"so"}}`); err != nil {
			t.Fatal(err)
		}
		wantText(t, w.result(t), "accept 2; so by m")
	})
}

// Several questions may be open at once; the task works again when the last is answered.
func TestTwoQuestionsAtOnce(t *testing.T) {
	onAllFaces(t, settings{Capabilities: ableToAll}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		task := p.create(script("both"))
		w := p.wait(task.TaskID)
		questions := p.await(t, 2, method(protocol.MethodElicit))
		answers := map[string]string{"One?": `{"action":"accept","content":{"n":1}}`, "Two?": `{"action":"accept","content":{"n":2}}`}
		text := func(q heard) string {
			message, _ := protocol.Unquote(protocol.Get(q.Params, "message"))
			return message
		}
		// The second first.
		if err := p.answer(questions[1], answers[text(questions[1])]); err != nil {
			t.Fatal(err)
		}
		got := p.until(task.TaskID, func(at protocol.Task) bool { return !strings.Contains(at.StatusMessage, text(questions[1])) })
		if got.Status != "input_required" || !strings.Contains(got.StatusMessage, text(questions[0])) { // INP-4
			t.Errorf("status %s, %q", got.Status, got.StatusMessage)
		}
		if err := p.answer(questions[0], answers[text(questions[0])]); err != nil {
			t.Fatal(err)
		}
		wantText(t, w.result(t), "accept 1, accept 2")
	})
}

// A client that cannot answer is not asked; the tool gets the SDK's error.
func TestClientWithoutCapability(t *testing.T) {
	for capabilities, want := range map[string]string{
		`{}`:                         "ask: client does not support elicitation; url: client does not support elicitation",
		`{"elicitation":{}}`:         `accept 1; url: client does not support "url" elicitation`,
		`{"elicitation":{"url":{}}}`: `ask: client does not support "form" elicitation; accept`,
	} {
		t.Run(capabilities, func(t *testing.T) {
			onAllFaces(t, settings{Capabilities: capabilities}, func(t *testing.T, connect func(string) *peer) {
				p := connect("alice")
				task := p.create(script("ask url"))
				w := p.wait(task.TaskID)
				if strings.Contains(want, "accept") {
					question := p.await(t, 1, method(protocol.MethodElicit))[0]
					if err := p.answer(question, `{"action":"accept","content":{"n":1}}`); err != nil {
						t.Fatal(err)
					}
				}
				wantText(t, w.result(t), want)
			})
		})
	}
	onAllFaces(t, settings{}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		task := p.create(script("sample roots"))
		r := p.wait(task.TaskID).result(t)
		if !strings.Contains(string(r.Result), "sample: -31001 client does not support CreateMessage") || !strings.Contains(string(r.Result), "roots: -32601") {
			t.Errorf("got %s", r.Result)
		}
		if asked := p.seen(func(m heard) bool { return m.ID != nil }); len(asked) != 0 {
			t.Errorf("asked %s", p.dump())
		}
	})
}

// A tool that gives up takes its question back.
func TestWithdrawnQuestion(t *testing.T) {
	onAllFaces(t, settings{Capabilities: ableToAll}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		task := p.create(script("brief ask"))
		w := p.wait(task.TaskID)
		quick := p.await(t, 1, method(protocol.MethodElicit))[0]
		taken := p.await(t, 1, method(protocol.MethodCancelled))[0]
		if string(protocol.Get(taken.Params, "requestId")) != string(quick.ID) || related(taken.Params) != task.TaskID {
			t.Errorf("taken back: %s", taken.Params)
		}
		question := p.await(t, 2, method(protocol.MethodElicit))[1]
		if err := p.answer(quick, `{"action":"accept","content":{"n":9}}`); err != nil { // too late
			t.Error(err)
		}
		if err := p.answer(question, `{"action":"accept","content":{"n":1}}`); err != nil {
			t.Fatal(err)
		}
		wantText(t, w.result(t), "gave up; accept 1")
	})
}

// REL-1: a tool's own attempt to speak for another task is overruled.
func TestForeignMarkIsOverruled(t *testing.T) {
	onAllFaces(t, settings{Capabilities: ableToAll}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		task := p.create(script("evil"))
		w := p.wait(task.TaskID)
		question := p.await(t, 1, method(protocol.MethodElicit))[0]
		if related(question.Params) != task.TaskID || strings.Contains(string(question.raw), "another's") {
			t.Errorf("asked %s", question.raw)
		}
		if err := p.answer(question, `{"action":"decline"}`); err != nil {
			t.Fatal(err)
		}
		wantText(t, w.result(t), "decline <nil>")
	})
}

// A task that is over needs no answer: its questions are taken back, and who answers late is
// told plainly, where that can be told.
func TestQuestionOfCancelledTask(t *testing.T) {
	onAllFaces(t, settings{Capabilities: ableToAll}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		task := p.create(script("ask"))
		w := p.wait(task.TaskID)
		question := p.await(t, 1, method(protocol.MethodElicit))[0]
		if r := p.call("tasks/cancel", idParams(task.TaskID)); r.Error != nil { // LIFE-2
			t.Fatal(r.Error)
		}
		wantError(t, w.result(t), -32800, "cancelled")
		taken := p.await(t, 1, method(protocol.MethodCancelled))[0]
		if string(protocol.Get(taken.Params, "requestId")) != string(question.ID) {
			t.Errorf("taken back: %s", taken.Params)
		}
		err := p.answer(question, `{"action":"decline"}`)
		if question.stream == "connection" {
			err = fmt.Errorf("%s", p.await(t, 1, method(protocol.MethodLogMessage))[0].Params)
		}
		if err == nil || !strings.Contains(err.Error(), "too late: the task is in terminal status 'cancelled'") {
			t.Errorf("late answer: %v", err)
		}
	})
}
