package coatcheck_test

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/coatcheck/coatcheck/protocol"
)

func progressOf(t *testing.T, m heard) float64 {
	t.Helper()
	var p struct{ Progress float64 }
	if err := json.Unmarshal(m.Params, &p); err != nil {
		t.Fatal(err)
	}
	return p.Progress
}

// PROG-1: the token is valid for the task's whole life, progress never goes back, and none
// comes after the end. It comes on tasks/result, or on the session's own stream.
func TestProgress(t *testing.T) {
	for _, listen := range []bool{false, true} {
		t.Run(fmt.Sprintf("listen %t", listen), func(t *testing.T) {
			onAllFaces(t, settings{Capabilities: ableToAll, Listen: listen}, func(t *testing.T, connect func(string) *peer) {
				p := connect("alice")
				task := p.create(script("report 1 ask report 3 report 2 report 4 ask report 5"))
				p.status(task.TaskID, "input_required")
				if listen { // before any tasks/result
					if first := p.await(t, 1, method(protocol.MethodProgress))[0]; progressOf(t, first) != 1 {
						t.Errorf("first %s", first.raw)
					}
				}
				w := p.wait(task.TaskID)
				for i := range 2 {
					question := p.await(t, i+1, method(protocol.MethodElicit))[i]
					if i == 1 {
						p.await(t, 1, func(m heard) bool { return m.Method == protocol.MethodProgress && progressOf(t, m) == 4 })
					}
					if err := p.answer(question, `{"action":"decline"}`); err != nil {
						t.Fatal(err)
					}
				}
				w.result(t)
				all := p.seen(method(protocol.MethodProgress))
				last := 0.0
				for _, m := range all {
					n := progressOf(t, m)
					if n < last {
						t.Errorf("progress %g after %g", n, last)
					}
					last = n
					if string(protocol.Get(m.Params, "progressToken")) != `"p-1"` || related(m.Params) != task.TaskID { // REL-1
						t.Errorf("reported %s", m.raw)
					}
					if protocol.Get(protocol.Get(m.Params, "_meta"), "kept") == nil || !strings.Contains(string(m.Params), `"total":10`) {
						t.Errorf("reported %s", m.raw)
					}
				}
				if len(all) < 3 || progressOf(t, all[0]) != 1 || last != 5 {
					t.Errorf("reported %s", p.dump())
				}
			})
		})
	}
}

// A flood of progress is coalesced, and its last value comes before the result.
func TestFloodOfProgress(t *testing.T) {
	onAllFaces(t, settings{Listen: true}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		task := p.create(script("flood"))
		p.wait(task.TaskID).result(t)
		p.status(task.TaskID, "completed")
		all := p.seen(method(protocol.MethodProgress))
		if len(all) == 0 || progressOf(t, all[len(all)-1]) != 10 {
			t.Fatalf("of %d reports the last is not 10", len(all))
		}
		if len(all) > 2_000 {
			t.Errorf("%d reports", len(all))
		}
	})
}

// The last progress is the statusMessage of a task whose tool sets none.
func TestProgressIsTheStatusMessage(t *testing.T) {
	onAllFaces(t, settings{Capabilities: ableToAll}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		task := p.create(script("report 3 ask report 4 ask"))
		w := p.wait(task.TaskID)
		for i := range 2 {
			question := p.await(t, i+1, method(protocol.MethodElicit))[i]
			if got := p.get(task.TaskID).StatusMessage; !strings.HasPrefix(got, "Waiting for input") {
				t.Errorf("statusMessage %q", got)
			}
			if err := p.answer(question, `{"action":"decline"}`); err != nil {
				t.Fatal(err)
			}
		}
		w.result(t)
		task = p.create(`{"name":"asking","arguments":{"script":"report 3 brief"},"task":{},"_meta":{"progressToken":7}}`)
		p.until(task.TaskID, func(at protocol.Task) bool { return at.StatusMessage == "3/10: reporting" || at.Status == "completed" })
	})
}

// Log messages come marked, if the session asked for any.
func TestLog(t *testing.T) {
	onAllFaces(t, settings{Capabilities: ableToAll}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		if r := p.call("logging/setLevel", `{"level":"info"}`); r.Error != nil {
			t.Fatal(r.Error)
		}
		task := p.create(script("ask log log ask"))
		w := p.wait(task.TaskID)
		for i := range 2 {
			question := p.await(t, i+1, method(protocol.MethodElicit))[i]
			if err := p.answer(question, `{"action":"decline"}`); err != nil {
				t.Fatal(err)
			}
		}
		w.result(t)
		for _, m := range p.await(t, 2, method(protocol.MethodLogMessage)) {
			if related(m.Params) != task.TaskID || !strings.Contains(string(m.Params), `"data":"logged"`) { // REL-1
				t.Errorf("logged %s", m.raw)
			}
		}
		if all := p.seen(method(protocol.MethodLogMessage)); len(all) != 2 {
			t.Errorf("logged %s", p.dump())
		}
	})
}

// NOT-1, NOT-3: each change of status is told on the requestor's own streams, with the full
// task and without the metadata; also to a client that declared nothing and may get tickets.
func TestStatusNotifications(t *testing.T) {
	onAllFaces(t, settings{Capabilities: ableToAll, Listen: true, Tickets: soon()}, func(t *testing.T, connect func(string) *peer) {
		p, other := connect("alice"), connect("bob")
		task := p.create(script("ask"))
		w := p.wait(task.TaskID)
		question := p.await(t, 1, method(protocol.MethodElicit))[0]
		if err := p.answer(question, `{"action":"decline"}`); err != nil {
			t.Fatal(err)
		}
		w.result(t)
		told := p.await(t, 3, method(protocol.MethodTasksStatus))
		for i, want := range []string{"input_required", "working", "completed"} {
			got := p.task(reply{Result: told[i].Params})
			if got.Status != want || got.TaskID != task.TaskID || !got.CreatedAt.Equal(task.CreatedAt) || protocol.Get(told[i].Params, "ttl") == nil {
				t.Errorf("told %s, want %s", told[i].raw, want)
			}
			if protocol.Get(told[i].Params, "_meta") != nil {
				t.Errorf("told %s", told[i].raw)
			}
			if told[i].stream == "tasks/result" {
				t.Errorf("told on %s", told[i].stream)
			}
		}
		if heard := other.seen(func(heard) bool { return true }); len(heard) != 0 {
			t.Errorf("another heard %s", other.dump())
		}
	})
}

func TestNoStatusNotifications(t *testing.T) {
	onAllFaces(t, settings{NoStatus: true, Listen: true}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		task := p.create(script(""))
		p.wait(task.TaskID).result(t)
		if told := p.seen(method(protocol.MethodTasksStatus)); len(told) != 0 {
			t.Errorf("told %s", p.dump())
		}
	})
}

// With PushInput a question goes to the session at once, and is answered from there. A
// tasks/result asks it again on a stream of its own (requirements C.7): the other may be dead.
func TestPushInput(t *testing.T) {
	onAllFaces(t, settings{Capabilities: ableToAll, Listen: true, PushInput: true}, func(t *testing.T, connect func(string) *peer) {
		p, other := connect("alice"), connect("bob")
		task := p.create(script("ask"))
		question := p.await(t, 1, method(protocol.MethodElicit))[0]
		if question.stream == "tasks/result" || related(question.Params) != task.TaskID {
			t.Errorf("asked on %s: %s", question.stream, question.raw)
		}
		w := p.wait(task.TaskID)
		streams := 1
		if p.http {
			streams = 2
			p.await(t, streams, method(protocol.MethodElicit))
		}
		if err := p.answer(question, `{"action":"accept","content":{"n":8}}`); err != nil {
			t.Fatal(err)
		}
		wantText(t, w.result(t), "accept 8")
		if all := p.seen(method(protocol.MethodElicit)); len(all) != streams {
			t.Errorf("asked %s", p.dump())
		}
		if heard := other.seen(func(heard) bool { return true }); len(heard) != 0 {
			t.Errorf("another heard %s", other.dump())
		}
	})
}

// Pushed, but nobody listens: the question waits for tasks/result, or for the stream.
func TestPushInputWithoutAStream(t *testing.T) {
	s := settings{Capabilities: ableToAll, PushInput: true}
	onFaces(t, []face{faces[0], allFaces[3], allFaces[4]}, s, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		task := p.create(script("ask"))
		p.status(task.TaskID, "input_required")
		w := p.wait(task.TaskID)
		question := p.await(t, 1, method(protocol.MethodElicit))[0]
		if err := p.answer(question, `{"action":"decline"}`); err != nil {
			t.Fatal(err)
		}
		w.result(t)
	})
}

// What coatcheck.FromContext offers to a handler.
func TestFromContext(t *testing.T) {
	onEveryFace(t, settings{Capabilities: ableToAll, Listen: true}, func(t *testing.T, connect func(string) *peer) {
		p := connect("alice")
		r := p.call("tools/call", strings.Replace(script("now say poll report 9 own ask"), "asking", "speaks", 1))
		if now, _ := protocol.Unquote(protocol.Get(protocol.Get(r.Result, "_meta"), protocol.MetaImmediateResponse)); now != "Working on it." { // CRE-4
			t.Errorf("immediate response in %s", r.Result)
		}
		if related(r.Result) == "" { // REL-1
			t.Errorf("created %s", r.Result)
		}
		task := p.task(reply{Result: protocol.Get(r.Result, "task")})
		p.status(task.TaskID, "input_required")
		w := p.wait(task.TaskID)
		question := p.await(t, 1, method(protocol.MethodElicit))[0]
		got := p.get(task.TaskID)
		if got.PollInterval == nil || *got.PollInterval != 7000 { // TTL-4
			t.Errorf("pollInterval %v", got.PollInterval)
		}
		if err := p.answer(question, `{"action":"decline"}`); err != nil {
			t.Fatal(err)
		}
		w.result(t)
		told := p.await(t, 4, method(protocol.MethodTasksStatus))
		if got := p.task(reply{Result: told[0].Params}); got.StatusMessage != "as the tool says" {
			t.Errorf("told %s", told[0].raw)
		}
		if back := p.task(reply{Result: told[len(told)-1].Params}); back.Status == "working" && back.StatusMessage != "as the tool says" {
			t.Errorf("told %s", told[len(told)-1].raw)
		}
		// A plain call has no task, and the same handler does not mind.
		plain := p.call("tools/call", `{"name":"asking","arguments":{"script":"now say poll own"}}`)
		wantText(t, plain, "")
		// Another tool's answer does not wait.
		r = p.call("tools/call", script("now"))
		if strings.Contains(string(r.Result), protocol.MetaImmediateResponse) {
			t.Errorf("created %s", r.Result)
		}
	})
}

// A client that opens streams and does not read them holds nobody up.
func TestUnreadStreams(t *testing.T) {
	s := settings{Database: "sqlite:" + t.TempDir() + "/tasks.db"}
	p := openHTTP(t, s)("alice")
	h := p.web
	if r := p.call("logging/setLevel", `{"level":"debug"}`); r.Error != nil {
		t.Fatal(r.Error)
	}
	host := strings.TrimPrefix(h.url, "http://")
	unread := func(request string) {
		conn, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(request)); err != nil {
			t.Fatal(err)
		}
	}
	headers := "Host: " + host + "\r\nAuthorization: Bearer alice\r\nMcp-Session-Id: " + h.session + "\r\nMcp-Protocol-Version: 2025-11-25\r\n"
	unread("GET / HTTP/1.1\r\n" + headers + "Accept: text/event-stream\r\n\r\n")
	long := strings.Repeat("x", 200)
	words := "flood " + strings.Repeat("log ", 20_000) + long
	task := p.create(script(words))
	body := `{"jsonrpc":"2.0","id":77,"method":"tasks/result","params":` + idParams(task.TaskID) + `}`
	unread("POST / HTTP/1.1\r\n" + headers + "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n" +
		fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body))
	p.status(task.TaskID, "completed")
	wantText(t, p.call("tasks/result", idParams(task.TaskID)), "")
}
