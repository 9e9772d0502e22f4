package client_test

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/protocol"
)

// CAP-1, CAP-2, TOOL-3
func ruleDeclares(s *stage) {
	r, _ := s.connect("s")
	if string(r.declared) != s.from.declares {
		s.Errorf("declared %s", r.declared)
	}
	if result := r.must(r.method, r.params("plain", "")); !strings.Contains(string(result), "plain!") || related(result) != "" {
		s.Errorf("plain: %s", result)
	}
}

// CAP-2, CAP-5: what is not declared is run plainly.
func ruleUndeclared(s *stage) {
	r, _ := s.connect("s")
	if want := `{"sampling":{"createMessage":{}}}`; string(protocol.Get(r.declared, "requests")) != want {
		s.Errorf("declared %s", r.declared)
	}
	if result := r.must(protocol.MethodElicit, `{`+asking+`,"task":{}}`); protocol.Get(result, "action") == nil || protocol.Get(result, "task") != nil {
		s.Errorf("got %s", result)
	}
}

// CRE-1, CRE-2, RES-1: an elicitation is a task like any other.
func ruleElicitation(s *stage) {
	r, _ := s.connect("s")
	if result := r.must(protocol.MethodElicit, "{"+asking+"}"); !strings.Contains(string(result), `"action":"accept"`) {
		s.Errorf("plain: %s", result)
	}
	question := r.created(r.must(protocol.MethodElicit, `{`+asking+`,"task":{"ttl":60000}}`))
	if result := r.must("tasks/result", ref(question.TaskID)); !strings.Contains(string(result), `"action":"accept"`) {
		s.Errorf("result %s", result)
	}
}

// CAP-6, TOOL-4: who insists on tasks refuses a plain request.
func ruleRequired(s *stage) {
	r, _ := s.connect("s")
	r.wantError(s.from.insists, "as a task", r.method, r.params("x", ""))
	if n := s.asked.Load(); n != 0 {
		s.Errorf("the handler was called %d times", n)
	}
	r.create("x", "")
}

// CRE-1, CRE-2, CRE-3, TTL-1, TTL-2, TTL-4
func ruleCreation(s *stage) {
	r, _ := s.connect("s")
	ttl := func(t protocol.Task) time.Duration { return time.Duration(*t.TTL) * time.Millisecond }
	if task := r.create("wait", `,"task":{"ttl":60000}`); ttl(task) != time.Minute || *task.PollInterval != 700 { // while the handler waits
		s.Errorf("created %s", task.AppendJSON(nil))
	}
	for asked, want := range map[string]time.Duration{`{"ttl":999999999}`: time.Hour, `{"ttl":null}`: time.Hour, `{}`: time.Hour} {
		if task := r.create("wait", `,"task":`+asked); ttl(task) != want {
			s.Errorf("%s: created %s", asked, task.AppendJSON(nil))
		}
	}
	for _, bad := range []string{`{"ttl":-1}`, `{"ttl":0}`, `{"ttl":"1"}`, `[]`} { // requirements C.3
		r.wantError(-32602, "task", r.method, r.params("x", `,"task":`+bad))
	}
	close(s.release)
}

// RES-1, RES-2, RES-3, RES-4, GET-1, GET-3, REL-3
func ruleResult(s *stage) {
	r, _ := s.connect("s")
	plain := r.must(r.method, r.params("hello", ""))
	quick := r.create("hello", "")
	for range 2 {
		s.sameResult(r.must("tasks/result", ref(quick.TaskID)), plain, quick.TaskID)
	}
	if got := r.until(quick.TaskID, "completed"); protocol.Get(got, "_meta") != nil {
		s.Errorf("got %s", got)
	}

	slow := r.create("wait", "")
	var waiting []<-chan *protocol.Message
	for range 3 {
		_, answer := r.begin("tasks/result", ref(slow.TaskID))
		waiting = append(waiting, answer)
	}
	r.until(slow.TaskID, "working")
	for _, answer := range waiting {
		select {
		case m := <-answer:
			s.Errorf("tasks/result was answered before the handler: %s %s", m.Result, m.Error)
		default:
		}
	}
	close(s.release)
	want := r.must(r.method, r.params("wait", ""))
	for _, answer := range waiting {
		result, err := r.answered(answer)
		if err != nil {
			s.Fatal(err)
		}
		s.sameResult(result, want, slow.TaskID)
	}
	if n := s.asked.Load(); n != 4 {
		s.Errorf("the handler was called %d times", n)
	}
}

// sameResult checks that a task's result is the plain request's, byte for byte, with the
// related-task metadata added.
func (s *stage) sameResult(got, plain json.RawMessage, id string) {
	s.Helper()
	if related(got) != id {
		s.Errorf("the result is about %q: %s", related(got), got)
	}
	if bare, err := protocol.Delete(got, "_meta"); err != nil || string(bare) != string(plain) {
		s.Errorf("got %s, %v; the plain request has %s", got, err, plain)
	}
}

// EXE-1, EXE-3, RES-1: an error comes back as it was.
func ruleError(s *stage) {
	r, _ := s.connect("s")
	_, plain := r.call(r.method, r.params("error", ""))
	task := r.create("error", "")
	_, err := r.call("tasks/result", ref(task.TaskID))
	want, _ := errors.AsType[*jsonrpc.Error](plain)
	wire, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok || want == nil || wire.Code != -32050 || wire.Code != want.Code || wire.Message != want.Message ||
		string(wire.Data) != `{"n":1.50}` || string(wire.Data) != string(want.Data) {
		s.Errorf("got %v, the plain request has %v", err, plain)
	}
	if got := r.until(task.TaskID, "failed"); string(protocol.Get(got, "statusMessage")) != `"no model"` {
		s.Errorf("got %s", got)
	}
}

// CAN-1, CAN-2, CAN-3, CAN-4, REL-3, requirements C.2
func ruleCancel(s *stage) {
	r, _ := s.connect("s")
	create, answer := r.begin(r.method, r.params("wait", `,"task":{},"_meta":{"progressToken":"p"}`))
	created, err := r.answered(answer)
	if err != nil {
		s.Fatal(err)
	}
	id := r.created(created).TaskID
	<-s.meta
	given, _ := r.begin("tasks/result", ref(id))
	_, waiting := r.begin("tasks/result", ref(id))
	for _, request := range []string{create, given} { // cancels neither the task nor another's wait
		if err := r.say("", protocol.MethodCancelled, protocol.Marshal(map[string]string{"requestId": request})); err != nil {
			s.Fatal(err)
		}
	}
	r.until(id, "working")
	got := r.must("tasks/cancel", ref(id))
	if string(protocol.Get(got, "status")) != `"cancelled"` || protocol.Get(got, "_meta") != nil {
		s.Errorf("cancelled %s", got)
	}
	<-s.stopped
	result, err := r.answered(waiting)
	r.checkError(-32800, "cancelled", "the open tasks/result", result, err)
	r.wantError(-32800, "cancelled", "tasks/result", ref(id))
	r.wantError(-32602, "already in terminal status 'cancelled'", "tasks/cancel", ref(id))
	(<-s.speak)(1) // PROG-1: too late
	close(s.release)
	done := r.create("hello", "")
	r.until(done.TaskID, "completed")
	r.wantError(-32602, "already in terminal status 'completed'", "tasks/cancel", ref(done.TaskID))
	r.until(id, "cancelled")
	for len(r.told) > 0 {
		if m := <-r.told; m.Method == protocol.MethodProgress {
			s.Errorf("progress after the end: %s", m.Params)
		}
	}
}

// TTL-3: a task whose lifetime is over ends its handler and all waiting.
func ruleExpiry(s *stage) {
	r, _ := s.connect("s")
	done := r.create("hello", `,"task":{"ttl":1000}`)
	running := r.create("wait", `,"task":{"ttl":1000}`)
	_, waiting := r.begin("tasks/result", ref(running.TaskID))
	result, err := r.answered(waiting)
	r.checkError(-32602, "expired", "the open tasks/result", result, err)
	<-s.stopped
	close(s.release)
	for _, id := range []string{running.TaskID, done.TaskID} {
		for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel"} {
			deadline := time.Now().Add(patience)
			for {
				if _, err := r.call(method, ref(id)); err != nil && strings.Contains(err.Error(), "expired") {
					break
				}
				if time.Now().After(deadline) {
					s.Fatalf("%s: the task does not expire", method)
				}
			}
		}
	}
	if list := r.must("tasks/list", `{}`); string(protocol.Get(list, "tasks")) != "[]" {
		s.Errorf("list %s", list)
	}
}

// PROG-1, REL-1, REL-4
func ruleProgress(s *stage) {
	r, _ := s.connect("s")
	task := r.create("wait", `,"_meta":{"progressToken":"p"}`)
	if meta := protocol.Marshal(<-s.meta); s.from == toClient && string(protocol.Get(meta, protocol.MetaRelatedTask)) != ref(task.TaskID) {
		s.Errorf("the handler was asked with %s", meta)
	}
	speak := <-s.speak
	for _, progress := range []string{"1", "2"} {
		speak(float64(progress[0] - '0'))
		m := r.hear(protocol.MethodProgress)
		if string(protocol.Get(m.Params, "progressToken")) != `"p"` || string(protocol.Get(m.Params, "progress")) != progress || related(m.Params) != task.TaskID {
			s.Errorf("told %s", m.Params)
		}
	}
	close(s.release)
	r.until(task.TaskID, "completed")
}

// NOT-1, NOT-3
func ruleStatus(s *stage) {
	r, _ := s.connect("s")
	task := r.create("wait", "")
	close(s.release)
	for {
		m := r.hear(protocol.MethodTasksStatus)
		told := r.task(m.Params)
		if told.TaskID != task.TaskID || protocol.Get(m.Params, "_meta") != nil {
			s.Errorf("told %s", m.Params)
		}
		if told.Status == "completed" {
			break
		}
	}
	r.until(task.TaskID, "completed") // what a server does not know does not end the session
}

// NOT-1: it may, and here does not.
func ruleNoStatus(s *stage) {
	r, _ := s.connect("s")
	r.until(r.create("hello", "").TaskID, "completed")
	r.create("wait", `,"_meta":{"progressToken":"p"}`)
	(<-s.speak)(1)
	for {
		m := <-r.told
		if m.Method == protocol.MethodTasksStatus {
			s.Errorf("told %s", m.Params)
		}
		if m.Method == protocol.MethodProgress {
			break
		}
	}
	close(s.release)
}

// LST-1, LST-2, LST-3, REL-3
func ruleList(s *stage) {
	r, _ := s.connect("s")
	want := map[string]bool{}
	for range 110 { // more than two pages
		want[r.create("hello", "").TaskID] = true
	}
	pages := 0
	for cursor := ""; ; pages++ {
		params := `{}`
		if cursor != "" {
			params = string(protocol.Marshal(map[string]string{"cursor": cursor}))
		}
		page := r.must("tasks/list", params)
		tasks, err := protocol.Elements(protocol.Get(page, "tasks"))
		if err != nil || len(tasks) == 0 || protocol.Get(page, "_meta") != nil {
			s.Fatalf("page %s, %v", page, err)
		}
		for _, raw := range tasks {
			if id := r.task(raw.Value).TaskID; !want[id] {
				s.Errorf("task %s is foreign, or listed twice", id)
			} else {
				delete(want, id)
			}
		}
		var more bool
		if cursor, more = protocol.Unquote(protocol.Get(page, "nextCursor")); !more {
			break
		}
	}
	if len(want) != 0 || pages != 2 {
		s.Errorf("%d tasks are not listed on %d pages", len(want), pages+1)
	}
	r.wantError(-32602, "cursor", "tasks/list", `{"cursor":"x"}`)
}

// ERR-1
func ruleUnknown(s *stage) {
	r, _ := s.connect("s")
	for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel"} {
		r.wantError(-32602, "Task not found", method, ref("nothing"))
		r.wantError(-32602, "taskId", method, `{}`)
	}
}

// SEC-1, SEC-2, NOT-1: of several servers none sees another's tasks.
func ruleForeign(s *stage) {
	one, _ := s.connect("one")
	other, _ := s.connect("other")
	task := one.create("wait", `,"_meta":{"progressToken":"p"}`)
	for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel"} {
		other.wantError(-32602, "Task not found", method, ref(task.TaskID))
	}
	if list := other.must("tasks/list", `{}`); string(protocol.Get(list, "tasks")) != "[]" {
		s.Errorf("list %s", list)
	}
	(<-s.speak)(1)
	one.hear(protocol.MethodProgress)
	close(s.release)
	one.hear(protocol.MethodTasksStatus)
	one.until(task.TaskID, "completed")
	other.must("ping", `{}`)
	for len(other.told) > 0 {
		if m := <-other.told; m.Method != protocol.MethodInitialized {
			s.Errorf("the other server is told %s %s", m.Method, m.Params)
		}
	}
}

// The tasks belong to the server, not to the session; but a handler that is still at work
// ends with the session it was asked in.
func ruleSessionEnds(s *stage) {
	first, leave := s.connect("s")
	plain := first.must(first.method, first.params("hello", ""))
	done := first.create("hello", "")
	first.until(done.TaskID, "completed")
	running := first.create("wait", "")
	<-s.meta
	go func() {
		<-s.stopped
		close(s.release)
	}()
	leave()
	second, _ := s.connect("s")
	s.sameResult(second.must("tasks/result", ref(done.TaskID)), plain, done.TaskID)
	second.wantError(-32603, "session ended", "tasks/result", ref(running.TaskID))
	got := second.until(running.TaskID, "failed")
	if message, _ := protocol.Unquote(protocol.Get(got, "statusMessage")); !strings.Contains(message, "session ended") {
		s.Errorf("got %s", got)
	}
}

// ID-1, SEC-3, REL-2, REL-3, GET-1
func ruleID(s *stage) {
	r, _ := s.connect("s")
	one, other := r.create("hello", ""), r.create("hello", "")
	if one.TaskID == other.TaskID || len(one.TaskID) < 22 { // 128 bits in the densest usual alphabet
		s.Errorf("ids %q and %q", one.TaskID, other.TaskID)
	}
	got := r.must("tasks/get", `{"taskId":"`+one.TaskID+`","_meta":{"`+protocol.MetaRelatedTask+`":`+ref(other.TaskID)+`}}`)
	if id := r.task(got).TaskID; id != one.TaskID || protocol.Get(got, "_meta") != nil {
		s.Errorf("got %s", got)
	}
}

// EXE-2, EXE-3, RES-1
func ruleIsError(s *stage) {
	r, _ := s.connect("s")
	plain := r.must(r.method, r.params("isError", ""))
	task := r.create("isError", "")
	s.sameResult(r.must("tasks/result", ref(task.TaskID)), plain, task.TaskID)
	if got := r.until(task.TaskID, "failed"); string(protocol.Get(got, "statusMessage")) != `"out of luck"` {
		s.Errorf("got %s", got)
	}
}

// ERR-2, EXE-1: nothing of a panic is told, and the receiver goes on.
func rulePanic(s *stage) {
	r, _ := s.connect("s")
	task := r.create("panic", "")
	r.wantError(-32603, "Internal error", "tasks/result", ref(task.TaskID))
	if got := r.until(task.TaskID, "failed"); strings.Contains(string(got), "secret") {
		s.Errorf("got %s", got)
	}
	r.create("hello", "")
}

// CRE-4
func ruleNow(s *stage) {
	r, _ := s.connect("s")
	created := r.must(r.method, r.params("now", `,"task":{}`))
	if now := protocol.Get(protocol.Get(created, "_meta"), protocol.MetaImmediateResponse); string(now) != `"Working on it."` {
		s.Errorf("created %s", created)
	}
	r.created(created)
	close(s.release)
}

// INP-1, INP-2, INP-3, INP-4, INP-5, REL-4, FLOW-2
func ruleInput(s *stage) {
	r, _ := s.connect("s")
	id := r.create("ask", "").TaskID
	r.until(id, "input_required")
	_, waiting := r.begin("tasks/result", ref(id))
	question := r.question()
	if related(question.Params) != id {
		s.Errorf("asked %s", question.Params)
	}
	r.must(r.method, r.params("meanwhile", ""))
	r.until(id, "input_required")
	answer := protocol.AppendResult(nil, question.ID, json.RawMessage(`{"action":"accept","content":{"n":7}}`))
	if err := r.reply(string(answer) + "\n"); err != nil {
		s.Fatal(err)
	}
	result, err := r.answered(waiting)
	if err != nil || related(result) != id || !strings.Contains(string(result), "accept 7") {
		s.Errorf("result %s, %v", result, err)
	}
	r.until(id, "completed")
}
