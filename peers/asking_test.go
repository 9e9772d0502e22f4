package peers

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// able are the capabilities of a client that answers questions.
var able = map[string]any{"elicitation": map[string]any{}, "sampling": map[string]any{}}

func accept(field string, value any) map[string]any {
	return map[string]any{"action": "accept", "content": map[string]any{field: value}}
}

// askedReport is the report of the scenario asked.
type askedReport struct {
	Created, Last taskView
	Messages      []struct {
		Type   string
		Task   taskView
		Result map[string]any
	}
	Asked   []question
	Journal journal
	Errors  []string
}

// result returns what callToolStream ended with.
func (r *askedReport) result(t *testing.T) map[string]any {
	t.Helper()
	last := r.Messages[len(r.Messages)-1]
	if last.Type != "result" {
		t.Fatalf("messages: %s", encode(t, r.Messages))
	}
	return last.Result
}

// checkAsked checks FLOW-2 as callToolStream goes through it: the task becomes input_required,
// which has the client open tasks/result; the questions come there; polls and plain calls are
// served meanwhile; the result comes on the same call.
func checkAsked(t *testing.T, got *askedReport, method, plain string) {
	t.Helper()
	id := got.Created.TaskID
	checkStatus(t, "at creation", got.Created, "working")
	checkQuestions(t, got.Journal, method, "tasks/result", got.Asked, id)
	if calls := got.Journal.sent("tasks/result"); len(calls) != 1 {
		t.Errorf("tasks/result was called %d times", len(calls))
	}
	for _, q := range got.Asked {
		while := during[struct{ Polled, Plain outcome }](t, q)
		if while.Polled.Value["status"] != "input_required" || while.Polled.Value["taskId"] != id {
			t.Errorf("tasks/get with the question open: %s", encode(t, while.Polled)) // INP-1
		}
		if !strings.Contains(encode(t, while.Plain), plain) {
			t.Errorf("a plain call with the question open: %s", encode(t, while.Plain))
		}
	}
	seen := got.Messages[len(got.Messages)-2]
	checkStatus(t, "before tasks/result", seen.Task, "input_required")
	if about := related(got.result(t)); about != id { // RES-3
		t.Errorf("the result is about task %q, want %q", about, id)
	}
	checkStatus(t, "at the end", got.Last, "completed")
	if len(got.Errors) > 0 {
		t.Errorf("errors outside of any call: %q", got.Errors)
	}
}

// FLOW-2 with the reference server, which asks in the middle of a task of its own: through the
// gateway, and, to know what is whose, directly.
func TestEverythingAsks(t *testing.T) {
	t.Parallel()
	steps := map[string]step{}
	for name, answer := range map[string]map[string]any{
		"accept":  accept("interpretation", "snake"),
		"decline": {"action": "decline"},
	} {
		steps[name] = step{"asked", map[string]any{
			"name": "simulate-research-query", "args": map[string]any{"topic": "python", "ambiguous": true},
			"answers": map[string]any{"interpretation": answer},
			"plain":   map[string]any{"name": "echo", "arguments": map[string]any{"message": "meanwhile"}},
		}}
	}
	check := func(t *testing.T, server target) {
		got := driveAs(t, server, able, steps)
		for name, clarification := range map[string]string{
			"accept":  "snake",
			"decline": "User declined - using default interpretation",
		} {
			got := report[askedReport](t, got, name)
			checkAsked(t, &got, "elicitation/create", "Echo: meanwhile")
			if len(got.Asked) != 1 {
				t.Errorf("%s: asked %d times", name, len(got.Asked))
			}
			if text := encode(t, got.result(t)["content"]); !strings.Contains(text, "- **Clarification**: "+clarification) {
				t.Errorf("%s: %s", name, text)
			}
		}
	}
	t.Run("gateway", func(t *testing.T) {
		t.Parallel()
		overEach(t, everythingServer, func(t *testing.T, server target) {
			check(t, server)
			everythingSamples(t, server)
		})
	})
	t.Run("direct/stdio", func(t *testing.T) {
		t.Parallel()
		check(t, everythingServer())
	})
	t.Run("direct/http", func(t *testing.T) {
		t.Parallel()
		check(t, startEverything(t))
	})
}

// everythingSamples calls a tool of the reference server that knows nothing of tasks, and is
// there only for clients that can sample.
func everythingSamples(t *testing.T, server target) {
	got := report[askedReport](t, driveAs(t, server, able, map[string]step{"asked": {"asked", map[string]any{
		"name": "trigger-sampling-request", "args": map[string]any{"prompt": "Why?"},
		"answers": map[string]any{"sampling": map[string]any{
			"model": "none", "role": "assistant", "content": map[string]any{"type": "text", "text": "Because."}}},
		"plain": map[string]any{"name": "echo", "arguments": map[string]any{"message": "meanwhile"}}}}}), "asked")
	checkAsked(t, &got, "sampling/createMessage", "Echo: meanwhile")
	if len(got.Asked) != 1 {
		t.Errorf("asked %d times", len(got.Asked))
	}
	if text := encode(t, got.result(t)["content"]); !strings.Contains(text, "Because.") {
		t.Errorf("result: %s", text)
	}
}

// FLOW-2 with the example server, whose tools are plain ones and know nothing of tasks.
func TestExampleAsks(t *testing.T) {
	t.Parallel()
	plain := map[string]any{"name": "greet", "arguments": map[string]any{"name": "meanwhile"}}
	steps := map[string]step{
		"accept": {"asked", map[string]any{
			"name": "confirm_delete", "args": map[string]any{"filename": "a.txt"}, "plain": plain,
			"answers": map[string]any{"confirm": accept("confirm", true)}}},
		"decline": {"asked", map[string]any{
			"name": "confirm_delete", "args": map[string]any{"filename": "b.txt"}, "plain": plain,
			"answers": map[string]any{"confirm": map[string]any{"action": "decline"}}}},
		"two": {"asked", map[string]any{
			"name": "multi_input", "args": map[string]any{}, "plain": plain, "together": 2,
			"answers": map[string]any{"name": accept("name", "Zoë"), "colour": accept("colour", "blue")}}},
		"sampling": {"asked", map[string]any{
			"name": "ask_model", "args": map[string]any{"prompt": "Why?"}, "plain": plain,
			"answers": map[string]any{"sampling": map[string]any{
				"model": "none", "role": "assistant", "content": map[string]any{"type": "text", "text": "Because."}}}}},
	}
	overEach(t, exampleServer, func(t *testing.T, server target) {
		got := driveAs(t, server, able, steps)
		for name, want := range map[string]struct {
			method string
			asked  int
			text   string
		}{
			"accept":   {"elicitation/create", 1, "Deleted a.txt."},
			"decline":  {"elicitation/create", 1, "Kept b.txt."},
			"two":      {"elicitation/create", 2, "Zoë likes blue."},
			"sampling": {"sampling/createMessage", 1, "Because."},
		} {
			got := report[askedReport](t, got, name)
			checkAsked(t, &got, want.method, "Hello, meanwhile!")
			if len(got.Asked) != want.asked {
				t.Errorf("%s: asked %d times, want %d", name, len(got.Asked), want.asked)
			}
			equal(t, name, got.result(t)["content"], []any{map[string]any{"type": "text", "text": want.text}})
		}
	})
}

// With --push-input a question comes by itself, to a client that has not opened tasks/result.
func TestPushedQuestion(t *testing.T) {
	t.Parallel()
	overEach(t, exampleServer, func(t *testing.T, server target) {
		got := report[struct {
			Created, Last taskView
			Asked         []question
			Result        outcome
			Journal       journal
			Errors        []string
		}](t, driveAs(t, server, able, map[string]step{"pushed": {"pushed", map[string]any{
			"name": "confirm_delete", "args": map[string]any{"filename": "c.txt"},
			"answers": map[string]any{"confirm": accept("confirm", true)}}}}), "pushed")

		checkQuestions(t, got.Journal, "elicitation/create", "GET", got.Asked, got.Created.TaskID)
		if len(got.Asked) != 1 {
			t.Fatalf("asked %d times", len(got.Asked))
		}
		if calls, answered := got.Journal.sent("tasks/result"), got.Journal.answered(got.Asked[0].RequestID); len(calls) != 1 || calls[0] < answered {
			t.Errorf("tasks/result was called at %v, the answer came at %d", calls, answered)
		}
		if while := during[outcome](t, got.Asked[0]); while.Value["status"] != "input_required" {
			t.Errorf("tasks/get with the question open: %s", encode(t, while))
		}
		checkStatus(t, "at the end", got.Last, "completed")
		if !strings.Contains(encode(t, got.Result), "Deleted c.txt.") {
			t.Errorf("result: %s", encode(t, got.Result))
		}
		if len(got.Errors) > 0 {
			t.Errorf("errors outside of any call: %q", got.Errors)
		}
	}, "--push-input")
}

// A client is gone with a question open: killed, or frozen, so that its connection stays and
// nobody can know. The next one, in a session of its own, is asked the same on its
// tasks/result, and gets the result.
func TestClientGoneWhileAsked(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"killed":            {"--single-user"},
		"killed, with push": {"--single-user", "--push-input"},
		"frozen":            {"--single-user"},
		"frozen, with push": {"--single-user", "--push-input"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startGatewayWith(t, filepath.Join(t.TempDir(), "tasks.db"), exampleServer(), flags...)
			first := start(t, nil, "node", driverArgs(t, server.target, able, map[string]step{
				"abandoned": {"abandoned", map[string]any{"name": "confirm_delete", "args": map[string]any{"filename": "d.txt"}}}})...)
			_, taskID, _ := strings.Cut(first.waitForLine(t, "asked "), "asked ")
			if strings.HasPrefix(name, "frozen") {
				if err := first.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				defer first.kill() // it cannot end by itself
			} else {
				first.kill()
			}

			got := report[struct {
				First, Last taskView
				Asked       []question
				Result      outcome
				Journal     journal
				Errors      []string
			}](t, driveAs(t, server.target, able, map[string]step{"resumed": {"resumed", map[string]any{
				"taskId": taskID, "answers": map[string]any{"confirm": accept("confirm", true)}}}}), "resumed")

			checkStatus(t, "in the new session", got.First, "input_required")
			checkQuestions(t, got.Journal, "elicitation/create", "tasks/result", got.Asked, taskID)
			if len(got.Asked) != 1 {
				t.Fatalf("asked %d times", len(got.Asked))
			}
			equal(t, "the question", got.Asked[0].Params["message"], "Delete d.txt?")
			if !strings.Contains(encode(t, got.Result), "Deleted d.txt.") || related(got.Result.Value) != taskID {
				t.Errorf("result: %s", encode(t, got.Result))
			}
			checkStatus(t, "at the end", got.Last, "completed")
			if len(got.Errors) > 0 {
				t.Errorf("errors outside of any call: %q", got.Errors)
			}
		})
	}
}
