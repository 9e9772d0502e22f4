package coatcheck_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck/protocol"
)

func wantError(t *testing.T, r reply, code int64, message string) {
	t.Helper()
	if r.Error == nil || r.Error.Code != code || !strings.Contains(r.Error.Message, message) {
		t.Errorf("got result %s, error %+v; want error %d with %q", r.Result, r.Error, code, message)
	}
}

func TestNegotiation(t *testing.T) {
	onEveryFace(t, settings{}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		tasks := protocol.Get(protocol.Get(p.initialized.Result, "capabilities"), "tasks")
		if want := `{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}`; string(tasks) != want { // CAP-1, CAP-2
			t.Errorf("capabilities.tasks = %s, want %s", tasks, want)
		}
		var list struct {
			Tools []struct {
				Name      string
				Execution json.RawMessage
			}
		}
		if err := json.Unmarshal(p.call("tools/list", `{}`).Result, &list); err != nil {
			t.Fatal(err)
		}
		for _, tool := range list.Tools {
			want := ""
			if s := toolSupport[tool.Name].Support; s != "" && s != "forbidden" {
				want = `{"taskSupport":"` + string(s) + `"}`
			}
			if string(tool.Execution) != want {
				t.Errorf("tool %s: execution %s, want %s", tool.Name, tool.Execution, want)
			}
		}

		// CAP-5: a request of another type runs as it is, and its params.task is ignored.
		if r := p.call("prompts/list", `{"task":{"ttl":1000}}`); r.Error != nil && r.Error.Code != -32601 || protocol.Get(r.Result, "task") != nil {
			t.Errorf("prompts/list with task: %s %v", r.Result, r.Error)
		}
		wantError(t, p.call("tools/call", `{"name":"never","task":{}}`), -32601, "never")       // TOOL-2
		wantError(t, p.call("tools/call", `{"name":"unlisted","task":{}}`), -32601, "unlisted") // TOOL-2
		wantError(t, p.call("tools/call", `{"name":"must"}`), -32601, "must")                   // TOOL-4, C.1
		if r := p.tool("echo", "x"); protocol.Get(r.Result, "structuredContent") == nil {       // TOOL-3
			t.Errorf("plain call: %s", r.Result)
		}
		p.create(`{"name":"echo","task":{}}`) // TOOL-3
		p.create(`{"name":"must","task":{}}`) // TOOL-4
	})
}

func TestNothingDeclared(t *testing.T) {
	onEveryFace(t, settings{NoTools: true}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		if tasks := protocol.Get(protocol.Get(p.initialized.Result, "capabilities"), "tasks"); tasks != nil {
			t.Errorf("tasks declared: %s", tasks)
		}
		// CAP-5: not declared, so the call runs normally and params.task is ignored.
		r := p.call("tools/call", `{"name":"echo","task":{"ttl":1000}}`)
		if protocol.Get(r.Result, "content") == nil {
			t.Errorf("got %s %v", r.Result, r.Error)
		}
	})
}

// A session of an older revision has no tasks: none are declared (CAP-1), params.task means
// nothing (CAP-5), and tasks/* do not exist.
func TestOlderRevision(t *testing.T) {
	onEveryFace(t, settings{Version: "2025-06-18"}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		if tasks := protocol.Get(protocol.Get(p.initialized.Result, "capabilities"), "tasks"); tasks != nil {
			t.Errorf("tasks declared: %s", tasks)
		}
		if list := p.call("tools/list", `{}`).Result; strings.Contains(string(list), "taskSupport") {
			t.Errorf("taskSupport declared: %s", list)
		}
		r := p.call("tools/call", `{"name":"echo","task":{"ttl":1000}}`)
		if protocol.Get(r.Result, "content") == nil {
			t.Errorf("got %s %v", r.Result, r.Error)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if r, err := p.callContext(ctx, p.nextID(), "tasks/get", idParams("x")); err == nil && (r.Error == nil || r.Error.Code == -32602) {
			t.Errorf("tasks/get: %s %v", r.Result, r.Error) // over HTTP the SDK answers 400 to a method it does not know
		}
	})
}

var timestamp = regexp.MustCompile(`^"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"$`)

func TestCreateAndGet(t *testing.T) {
	onEveryFace(t, settings{}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		r := p.call("tools/call", `{"name":"gate","arguments":{"key":"a"},"task":{"ttl":60000.9}}`)
		created := protocol.Get(r.Result, "task")
		if created == nil || protocol.Get(r.Result, "content") != nil { // CRE-1
			t.Fatalf("got %s %v", r.Result, r.Error)
		}
		task := p.task(reply{Result: created})
		if task.Status != "working" { // CRE-3
			t.Errorf("status %s", task.Status)
		}
		if len(task.TaskID) < 22 { // ID-1, SEC-3: at least 128 bits
			t.Errorf("id %q", task.TaskID)
		}
		if string(protocol.Get(created, "ttl")) != "60000" { // CRE-2, TTL-2
			t.Errorf("ttl %s", protocol.Get(created, "ttl"))
		}
		if string(protocol.Get(created, "pollInterval")) != "1000" { // TTL-4
			t.Errorf("pollInterval %s", protocol.Get(created, "pollInterval"))
		}
		got := p.call("tasks/get", idParams(task.TaskID)).Result // GET-1: flat
		for _, raw := range []json.RawMessage{created, got} {
			for _, field := range []string{"createdAt", "lastUpdatedAt"} { // TTL-1
				if !timestamp.Match(protocol.Get(raw, field)) {
					t.Errorf("%s is %s", field, protocol.Get(raw, field))
				}
			}
		}
		if string(got) != string(created) {
			t.Errorf("get %s, created %s", got, created)
		}
		if protocol.Get(got, "_meta") != nil { // REL-3
			t.Errorf("get carries _meta: %s", got)
		}
		// REL-2: taskId rules, related-task metadata in the request is ignored.
		other := p.create(gate("b"))
		withMeta := fmt.Sprintf(`{"taskId":%q,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":%q}}}`, task.TaskID, other.TaskID)
		if got := p.task(p.call("tasks/get", withMeta)); got.TaskID != task.TaskID {
			t.Errorf("got %s", got.TaskID)
		}
		if other.TaskID == task.TaskID { // ID-1
			t.Error("two tasks have one id")
		}
		p.tool("open", "a")
		p.tool("open", "b")
	})
}

func TestTTLAsked(t *testing.T) {
	onEveryFace(t, settings{DefaultTTL: time.Minute, MaxTTL: time.Hour}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		for _, tc := range []struct{ task, ttl string }{ // TTL-2, RSC-2, C.3
			{`{}`, "60000"},
			{`{"ttl":null}`, "3600000"},
			{`{"ttl":1}`, "1"},
			{`{"ttl":1500.7}`, "1500"},
			{`{"ttl":1e3}`, "1000"},
			{`{"ttl":3600001}`, "3600000"},
			{`{"ttl":9007199254740992}`, "3600000"},
			{`{"ttl":1e400}`, "3600000"},
			{`{"ttl":5000,"other":[1]}`, "5000"},
		} {
			r := p.call("tools/call", `{"name":"gate","task":`+tc.task+`}`)
			if got := protocol.Get(protocol.Get(r.Result, "task"), "ttl"); string(got) != tc.ttl {
				t.Errorf("task %s: ttl %s, want %s (%v)", tc.task, got, tc.ttl, r.Error)
			}
		}
		for _, task := range []string{
			`{"ttl":0}`, `{"ttl":-1}`, `{"ttl":0.5}`, `{"ttl":"NaN"}`, `{"ttl":"60000"}`, `{"ttl":true}`, `{"ttl":{}}`, `{"ttl":[1]}`,
			`{"ttl":-1e400}`, `{"ttl":1e-400}`, `null`, `[]`, `7`, `"x"`, `true`,
		} {
			wantError(t, p.call("tools/call", `{"name":"gate","task":`+task+`}`), -32602, "task")
		}
		wantError(t, p.call("tools/call", `{"name":7,"task":{}}`), -32602, "name")
		wantError(t, p.call("tools/call", `{"task":{}}`), -32602, "name")
	})
}

func TestResults(t *testing.T) {
	onEveryFace(t, settings{}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		// RES-1: the result is what the plain call returns, byte for byte, and RES-3: with
		// the related-task metadata added to what _meta it had.
		plain := p.tool("echo", "x").Result
		id := p.create(`{"name":"echo","arguments":{"key":"x"},"task":{}}`).TaskID
		want, err := protocol.SetMeta(plain, protocol.MetaRelatedTask, protocol.RelatedTask(id))
		if err != nil {
			t.Fatal(err)
		}
		got := p.call("tasks/result", idParams(id)).Result
		if string(got) != string(want) {
			t.Errorf("tasks/result %s\nplain        %s", got, want)
		}
		if !strings.Contains(string(got), fidelity) {
			t.Errorf("structured content was altered: %s", got)
		}
		if task := p.get(id); task.Status != "completed" {
			t.Errorf("status %s", task.Status)
		}

		// RES-1 for a JSON-RPC error: code, message and data. EXE-1, EXE-3.
		plainError := p.call("tools/call", `{"name":"error"}`).Error
		id = p.create(`{"name":"error","task":{}}`).TaskID
		r := p.call("tasks/result", idParams(id))
		if r.Error == nil || r.Error.Code != -32050 || r.Error.Message != plainError.Message || string(r.Error.Data) != errorData {
			t.Errorf("tasks/result %+v, plain %+v", r.Error, plainError)
		}
		if task := p.get(id); task.Status != "failed" || !strings.Contains(task.StatusMessage, "quota <exceeded> für heute") {
			t.Errorf("task %+v", task)
		}

		// EXE-2, EXE-3: isError is failed, and the result is a result.
		id = p.create(`{"name":"isError","task":{}}`).TaskID
		r = p.call("tasks/result", idParams(id))
		if r.Error != nil || string(protocol.Get(r.Result, "isError")) != "true" {
			t.Errorf("tasks/result %s %v", r.Result, r.Error)
		}
		if task := p.get(id); task.Status != "failed" || task.StatusMessage != "API rate limit exceeded" {
			t.Errorf("task %+v", task)
		}

		// ERR-2: a panic fails its task, leaks nothing, and the server goes on.
		id = p.create(`{"name":"panic","task":{}}`).TaskID
		r = p.call("tasks/result", idParams(id))
		wantError(t, r, -32603, "Internal error")
		if task := p.get(id); task.Status != "failed" || strings.Contains(fmt.Sprint(r.Error, task), "secret") {
			t.Errorf("task %+v, error %v", task, r.Error)
		}

		// 5 MiB
		id = p.create(`{"name":"big","task":{}}`).TaskID
		big := p.call("tasks/result", idParams(id)).Result
		if want := p.tool("big", "").Result; len(big) < 5<<20 || string(protocol.Get(big, "content")) != string(protocol.Get(want, "content")) {
			t.Errorf("a result of %d bytes came as one of %d", len(want), len(big))
		}
	})
}

func TestWaiting(t *testing.T) {
	onEveryFace(t, settings{}, func(t *testing.T, connect func(string) *peer) {
		p, q := connect("alice"), connect("alice")
		id := p.create(gate("a")).TaskID
		answers := make(chan reply)
		const waiters = 20
		for i := range waiters { // RES-4: on two sessions (over stdio, of two processes)
			peer := []*peer{p, q}[i%2]
			n := peer.nextID()
			go func() {
				r, err := peer.callContext(context.Background(), n, "tasks/result", idParams(id))
				if err != nil {
					t.Error(err)
				}
				answers <- r
			}()
		}
		// GET-3: polling goes on beside; RES-2: nobody is answered while it works.
		for range 5 {
			if task := p.get(id); task.Status != "working" {
				t.Errorf("status %s", task.Status)
			}
		}
		select {
		case r := <-answers:
			t.Fatalf("answered before the end: %s %v", r.Result, r.Error)
		default:
		}
		p.tool("open", "a")
		for range waiters {
			if r := <-answers; !strings.Contains(string(r.Result), "opened a") {
				t.Errorf("got %s %v", r.Result, r.Error)
			}
		}
	})
}

func TestCancel(t *testing.T) {
	onEveryFace(t, settings{}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		id := p.create(gate("a")).TaskID
		p.tool("started", "a")
		waiting := make(chan reply)
		n := p.nextID()
		go func() {
			r, err := p.callContext(context.Background(), n, "tasks/result", idParams(id))
			if err != nil {
				t.Error(err)
			}
			waiting <- r
		}()
		task := p.task(p.call("tasks/cancel", idParams(id)))
		if task.Status != "cancelled" || task.StatusMessage == "" { // CAN-2
			t.Errorf("cancel answered %+v", task)
		}
		if r := p.tool("stopped", "a"); !strings.Contains(string(r.Result), "yes") { // CAN-2: the work stops
			t.Errorf("got %s", r.Result)
		}
		wantError(t, <-waiting, -32800, "cancelled")                                              // C.2
		wantError(t, p.call("tasks/result", idParams(id)), -32800, task.StatusMessage)            // C.2
		wantError(t, p.call("tasks/cancel", idParams(id)), -32602, "terminal status 'cancelled'") // CAN-1
		if task := p.get(id); task.Status != "cancelled" {                                        // CAN-3: gate returned a result since
			t.Errorf("status %s", task.Status)
		}

		done := p.create(`{"name":"echo","task":{}}`).TaskID
		p.call("tasks/result", idParams(done))
		wantError(t, p.call("tasks/cancel", idParams(done)), -32602, "already in terminal status 'completed'") // CAN-1, ERR-3

		// CAN-4: notifications/cancelled of the create call, and of a tasks/result, leave the task.
		id = p.create(gate("b")).TaskID
		p.notify("notifications/cancelled", fmt.Sprintf(`{"requestId":%d}`, p.id))
		n = p.nextID()
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() {
			_, err := p.callContext(ctx, n, "tasks/result", idParams(id))
			ended <- err
		}()
		p.notify("notifications/cancelled", fmt.Sprintf(`{"requestId":%d}`, n))
		cancel()
		t.Logf("the tasks/result that was given up: %v", <-ended) // an answer or none: both are right
		if task := p.get(id); task.Status != "working" {
			t.Errorf("status %s", task.Status)
		}
		p.tool("open", "b")
		if r := p.call("tasks/result", idParams(id)); !strings.Contains(string(r.Result), "opened b") {
			t.Errorf("got %s %v", r.Result, r.Error)
		}
	})
}

// A task is cancelled from another session of its principal: over stdio and in-process that is
// another process on the same file, whose lease holder must stop the work (CAN-2, C.11).
func TestCancelFromElsewhere(t *testing.T) {
	onEveryFace(t, settings{}, func(t *testing.T, connect func(string) *peer) {
		p, q := connect("alice"), connect("alice")
		id := p.create(gate("a")).TaskID
		p.tool("started", "a")
		if task := q.task(q.call("tasks/cancel", idParams(id))); task.Status != "cancelled" {
			t.Errorf("cancel answered %+v", task)
		}
		if r := p.tool("stopped", "a"); !strings.Contains(string(r.Result), "yes") {
			t.Errorf("got %s", r.Result)
		}
		wantError(t, p.call("tasks/result", idParams(id)), -32800, "cancelled")
		if task := p.get(id); task.Status != "cancelled" {
			t.Errorf("status %s", task.Status)
		}
	})
}

func TestList(t *testing.T) {
	onEveryFace(t, settings{}, func(t *testing.T, connect func(string) *peer) {
		alice, bob := connect("alice"), connect("bob")
		made := map[string]bool{}
		for range 120 {
			made[alice.create(`{"name":"echo","task":{}}`).TaskID] = true
		}
		bobs := bob.create(`{"name":"echo","task":{}}`).TaskID
		listed := map[string]bool{}
		params, pages := `{}`, 0
		for {
			r := alice.call("tasks/list", params)
			var page protocol.ListTasksResult
			if err := json.Unmarshal(r.Result, &page); err != nil {
				t.Fatal(err, r.Error)
			}
			for _, task := range page.Tasks {
				if listed[task.TaskID] {
					t.Errorf("task %s is on two pages", task.TaskID)
				}
				listed[task.TaskID] = true
			}
			if protocol.Get(r.Result, "_meta") != nil { // REL-3
				t.Errorf("list carries _meta: %s", r.Result)
			}
			pages++
			if page.NextCursor == "" {
				break
			}
			params = fmt.Sprintf(`{"cursor":%q}`, page.NextCursor)
			wantError(t, bob.call("tasks/list", params), -32602, "cursor") // LST-3: foreign
		}
		if pages != 3 { // LST-1: 50, 50, 20; nextCursor exactly when more exist
			t.Errorf("%d pages", pages)
		}
		if len(listed) != len(made) || listed[bobs] { // LST-2, SEC-2
			t.Errorf("%d listed of %d", len(listed), len(made))
		}
		var own protocol.ListTasksResult
		if err := json.Unmarshal(bob.call("tasks/list", `{}`).Result, &own); err != nil || len(own.Tasks) != 1 || own.Tasks[0].TaskID != bobs {
			t.Errorf("bob lists %+v, %v", own, err) // SEC-2
		}
		for _, cursor := range []string{`"x"`, `""`, `"!!"`, `7`, `null`, `{}`, `"` + strings.Repeat("A", 10_000) + `"`} { // LST-3
			wantError(t, alice.call("tasks/list", `{"cursor":`+cursor+`}`), -32602, "cursor")
		}
	})
}

func TestUnknownAndForeign(t *testing.T) {
	onEveryFace(t, settings{}, func(t *testing.T, connect func(string) *peer) {
		alice, bob := connect("alice"), connect("bob")
		id := alice.create(gate("a")).TaskID
		done := alice.create(`{"name":"echo","task":{}}`).TaskID
		alice.call("tasks/result", idParams(done))
		for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel"} {
			unknown := bob.call(method, idParams(strings.Repeat("A", len(id))))
			wantError(t, unknown, -32602, "Task not found") // ERR-1, ERR-3
			for _, foreign := range []string{id, done} {    // SEC-1, C.6: the same answer
				if r := bob.call(method, idParams(foreign)); r.Error == nil || r.Error.Error() != unknown.Error.Error() || r.Error.Code != unknown.Error.Code {
					t.Errorf("%s of a foreign task: %s %v; of an unknown one: %v", method, r.Result, r.Error, unknown.Error)
				}
			}
			for _, params := range []string{`{}`, `{"taskId":7}`, `{"taskId":null}`, `{"taskId":""}`, `{"taskId":{}}`, `[]`} { // ERR-1
				wantError(t, bob.call(method, params), -32602, "taskId")
			}
			wantError(t, bob.call(method, idParams("\x00ü\n"+strings.Repeat("x", 100_000))), -32602, "Task not found")
		}
		if task := alice.get(id); task.Status != "working" {
			t.Errorf("status %s", task.Status)
		}
		// A task belongs to its principal, not to a session.
		again := connect("alice")
		if task := again.get(id); task.Status != "working" {
			t.Errorf("status %s", task.Status)
		}
		alice.tool("open", "a")
	})
}

func TestExpiry(t *testing.T) {
	onEveryFace(t, settings{Retention: -1}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		id := p.create(`{"name":"gate","arguments":{"key":"a"},"task":{"ttl":2000}}`).TaskID
		p.tool("started", "a")
		wantError(t, p.call("tasks/result", idParams(id)), -32602, "Task has expired") // C.4: the waiter is answered
		if r := p.tool("stopped", "a"); !strings.Contains(string(r.Result), "yes") {   // C.4: the work is stopped
			t.Errorf("got %s", r.Result)
		}
		for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel"} {
			wantError(t, p.call(method, idParams(id)), -32602, "Task has expired") // TTL-3, ERR-3
		}
		var page protocol.ListTasksResult
		if err := json.Unmarshal(p.call("tasks/list", `{}`).Result, &page); err != nil || len(page.Tasks) != 0 { // RSC-3
			t.Errorf("listed %+v, %v", page, err)
		}
	})
}

func TestRetention(t *testing.T) {
	onEveryFace(t, settings{MaxTTL: time.Hour}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		id := p.create(`{"name":"echo","task":{"ttl":20000}}`).TaskID
		p.call("tasks/result", idParams(id))
		task := p.get(id) // C.5: ten minutes from its end, by default
		if task.TTL == nil || *task.TTL < 600_000 || *task.TTL > 620_000 {
			t.Errorf("ttl %v", *task.TTL)
		}
	})
}

func TestIdempotencyKey(t *testing.T) {
	onEveryFace(t, settings{}, func(t *testing.T, connect func(string) *peer) {
		alice, bob := connect("alice"), connect("bob")
		params := func(key string, token int) string {
			return fmt.Sprintf(`{"name":"echo","arguments":{"key":"idem"},"_meta":{"coatcheck/idempotency-key":%q,"progressToken":%d},"task":{}}`, key, token)
		}
		first := alice.create(params("k1", 1)) // C.8
		alice.call("tasks/result", idParams(first.TaskID))
		if again := alice.create(params("k1", 2)); again.TaskID != first.TaskID {
			t.Errorf("a repeated create made task %s beside %s", again.TaskID, first.TaskID)
		}
		if r := alice.tool("runs", "echoidem"); !strings.Contains(string(r.Result), `"text":"1"`) {
			t.Errorf("the work ran more than once: %s", r.Result)
		}
		if other := alice.create(params("k2", 3)); other.TaskID == first.TaskID {
			t.Error("two keys made one task")
		}
		if other := bob.create(params("k1", 4)); other.TaskID == first.TaskID {
			t.Error("two principals share a key")
		}
		wantError(t, alice.call("tools/call", `{"name":"echo","_meta":{"coatcheck/idempotency-key":"k1"},"task":{}}`), -32602, "different request")
		for _, key := range []string{`7`, `""`, `null`, `"` + strings.Repeat("k", 257) + `"`} {
			wantError(t, alice.call("tools/call", `{"name":"echo","_meta":{"coatcheck/idempotency-key":`+key+`},"task":{}}`), -32602, "idempotency-key")
		}
	})
}

// Without authorization all requestors are one principal: nothing is listed (SEC-4, CAP-3),
// whoever has the id has the task (SEC-3), and a key leads nobody to another's task.
func TestAnonymous(t *testing.T) {
	connect := openHTTP(t, settings{NoAuth: true, Database: "memory:"})
	p, q := connect(""), connect("")
	tasks := protocol.Get(protocol.Get(p.initialized.Result, "capabilities"), "tasks")
	if want := `{"cancel":{},"requests":{"tools":{"call":{}}}}`; string(tasks) != want {
		t.Errorf("capabilities.tasks = %s, want %s", tasks, want)
	}
	wantError(t, p.call("tasks/list", `{}`), -32601, "tasks/list")
	keyed := `{"name":"echo","_meta":{"coatcheck/idempotency-key":"1"},"task":{}}`
	first := p.create(keyed)
	if again := p.create(keyed); again.TaskID != first.TaskID { // C.8
		t.Errorf("a repeated create made %s beside %s", again.TaskID, first.TaskID)
	}
	if other := q.create(keyed); other.TaskID == first.TaskID {
		t.Error("a guessed key led to another's task")
	}
	if task := q.get(first.TaskID); task.TaskID != first.TaskID {
		t.Errorf("got %+v", task)
	}
}
