package peers

import (
	"strings"
	"testing"
	"time"
)

const hour = 3_600_000 // milliseconds

// calls are the example server's tools that end by themselves.
var calls = map[string]map[string]any{
	"greet":              {"name": "Zoë 😀"},
	"big_result":         {"kilobytes": 2048},
	"failing_job":        {},
	"protocol_error_job": {},
	"panicking_job":      {},
}

// TestTypeScript drives the gateway with the TypeScript SDK's client through the whole life
// of a task.
func TestTypeScript(t *testing.T) {
	t.Parallel()
	overEach(t, exampleServer, func(t *testing.T, server target) {
		steps := map[string]step{
			"tools":  {"tools", nil},
			"stream": {"stream", map[string]any{"name": "greet", "args": calls["greet"]}},
			"failed": {"stream", map[string]any{"name": "failing_job", "args": map[string]any{}}},
			"blocked": {"blocked", map[string]any{
				"name": "slow_compute", "args": map[string]any{"seconds": 1, "label": "three wait"}, "waiters": 3}},
			"cancel": {"cancel", map[string]any{
				"name": "slow_compute", "args": map[string]any{"seconds": 600, "label": "never done"}}},
			"list":    {"listed", map[string]any{"name": "greet", "args": calls["greet"], "count": 3}},
			"unknown": {"unknown", nil},
		}
		for name, args := range calls {
			steps["life of "+name] = step{"life", map[string]any{"name": name, "args": args, "task": map[string]any{"ttl": hour}}}
			// A panic has no plain answer to compare with: it may end the upstream's process.
			if name != "panicking_job" {
				steps["plain "+name] = step{"plain", map[string]any{"name": name, "args": args}}
			}
		}
		got := drive(t, server, steps)

		t.Run("negotiation", func(t *testing.T) { typeScriptNegotiation(t, got) })
		t.Run("life", func(t *testing.T) { typeScriptLife(t, got) })
		t.Run("stream", func(t *testing.T) { typeScriptStream(t, got) })
		t.Run("blocked", func(t *testing.T) { typeScriptBlocked(t, got) })
		t.Run("cancel", func(t *testing.T) { typeScriptCancel(t, got) })
		t.Run("list", func(t *testing.T) { typeScriptList(t, got) })
		t.Run("unknown", func(t *testing.T) { typeScriptUnknown(t, got) })
	})
}

// CAP-1, TOOL-3
func typeScriptNegotiation(t *testing.T, from reports) {
	got := report[struct {
		Capability any
		Support    map[string]string
	}](t, from, "tools")
	none := map[string]any{}
	equal(t, "capabilities.tasks", got.Capability, map[string]any{
		"list": none, "cancel": none, "requests": map[string]any{"tools": map[string]any{"call": none}}})
	equal(t, "execution.taskSupport", got.Support, map[string]string{
		"greet": "optional", "slow_compute": "optional", "failing_job": "optional",
		"protocol_error_job": "optional", "panicking_job": "optional", "big_result": "optional", "confirm_delete": "optional",
		"multi_input": "optional", "ask_model": "optional", "chatty": "optional"})
}

// CRE-1, CRE-2, CRE-3, GET-1, RES-1, RES-3, EXE-1, EXE-2, EXE-3, TTL-1, TTL-2, TTL-4
func typeScriptLife(t *testing.T, from reports) {
	for name := range calls {
		t.Run(name, func(t *testing.T) {
			got := report[struct {
				Created, Got, Last taskView
				Result, Again      outcome
			}](t, from, "life of "+name)
			checkCreated(t, got.Created)
			if got.Created.TTL == nil || *got.Created.TTL != hour {
				t.Errorf("ttl %s, want the %d asked for", encode(t, got.Created.TTL), hour)
			}
			for _, view := range []taskView{got.Got, got.Last} {
				if view.TaskID != got.Created.TaskID || view.CreatedAt != got.Created.CreatedAt {
					t.Errorf("another task: %+v", view)
				}
			}
			equal(t, "second tasks/result", got.Again, got.Result)

			switch name {
			case "failing_job", "protocol_error_job", "panicking_job":
				checkStatus(t, "at the end", got.Last, "failed")
				if got.Last.StatusMessage == "" {
					t.Error("a failed task without a statusMessage")
				}
			default:
				checkStatus(t, "at the end", got.Last, "completed")
			}
			if name == "panicking_job" {
				checkError(t, "result", got.Result, -32603)
				return
			}
			plain := report[outcome](t, from, "plain "+name)
			sameResult(t, "result", got.Result, plain, got.Created.TaskID)
			switch name {
			case "failing_job":
				equal(t, "isError", got.Result.Value["isError"], true)
			case "protocol_error_job":
				if got.Result.Error == nil || got.Result.Error.Data == nil {
					t.Errorf("an error with data is expected, got %s", encode(t, got.Result))
				}
			}
		})
	}
}

// GET-2, and what callToolStream makes of a failed task.
func typeScriptStream(t *testing.T, from reports) {
	type message struct {
		Type   string
		Task   taskView
		Result map[string]any
	}
	got := report[[]message](t, from, "stream")
	if len(got) < 3 || got[0].Type != "taskCreated" || got[1].Type != "taskStatus" {
		t.Fatalf("messages: %s", encode(t, got))
	}
	last := got[len(got)-1]
	if last.Type != "result" {
		t.Fatalf("messages: %s", encode(t, got))
	}
	sameResult(t, "result", outcome{Value: last.Result}, report[outcome](t, from, "plain greet"), got[0].Task.TaskID)

	// The SDK gives up on a failed task without fetching its result.
	failed := report[[]message](t, from, "failed")
	if last := failed[len(failed)-1]; last.Type != "error" {
		t.Errorf("messages of a failing tool: %s", encode(t, failed))
	}
	checkStatus(t, "before the error", failed[len(failed)-2].Task, "failed")
}

// RES-2, RES-4
func typeScriptBlocked(t *testing.T, from reports) {
	got := report[struct {
		Created, Last taskView
		Results       []outcome
	}](t, from, "blocked")
	checkStatus(t, "with all answered", got.Last, "completed")
	if len(got.Results) != 3 {
		t.Fatalf("%d answers", len(got.Results))
	}
	for _, result := range got.Results {
		if !strings.Contains(encode(t, result.Value["content"]), "three wait") {
			t.Errorf("answer: %s", encode(t, result))
		}
		equal(t, "answers", result, got.Results[0])
	}
}

// CAN-1, CAN-2, CAN-3, C.2
func typeScriptCancel(t *testing.T, from reports) {
	got := report[struct {
		Created, Cancelled, Got, Last taskView
		Waiting, Again, Result        outcome
	}](t, from, "cancel")
	checkStatus(t, "tasks/cancel", got.Cancelled, "cancelled")
	checkStatus(t, "tasks/get", got.Got, "cancelled")
	checkStatus(t, "tasks/get at last", got.Last, "cancelled")
	checkError(t, "the open tasks/result", got.Waiting, -32800)
	checkError(t, "tasks/result", got.Result, -32800)
	checkError(t, "cancel again", got.Again, -32602)
	if !strings.Contains(got.Again.Error.Message, "cancelled") {
		t.Errorf("cancel again: %q does not name the status", got.Again.Error.Message)
	}
}

// LST-1, LST-2, LST-3
func typeScriptList(t *testing.T, from reports) {
	got := report[struct {
		Created   []string
		Pages     [][]taskView
		BadCursor outcome
	}](t, from, "list")
	seen := map[string]int{}
	for _, page := range got.Pages {
		for _, task := range page {
			seen[task.TaskID]++
		}
	}
	for _, id := range got.Created {
		if seen[id] != 1 {
			t.Errorf("task %s is listed %d times", id, seen[id])
		}
	}
	// The steps run in the order of their names, and only these create a task before "list":
	// "blocked", "cancel", "failed", each "life of".
	if want := 3 + len(calls) + len(got.Created); len(seen) != want {
		t.Errorf("%d tasks listed, want %d", len(seen), want)
	}
	checkError(t, "a made-up cursor", got.BadCursor, -32602)
}

// ERR-1
func typeScriptUnknown(t *testing.T, from reports) {
	got := report[map[string]outcome](t, from, "unknown")
	for _, method := range []string{"get", "result", "cancel"} {
		checkError(t, "tasks/"+method, got[method], -32602)
	}
}

// checkCreated checks a task as its creation shows it.
func checkCreated(t *testing.T, task taskView) {
	t.Helper()
	checkStatus(t, "at creation", task, "working")
	if len(task.TaskID) < 22 { // 128 bits in the densest usual alphabet (SEC-3)
		t.Errorf("taskId %q is short", task.TaskID)
	}
	for _, stamp := range []string{task.CreatedAt, task.LastUpdatedAt} {
		if _, err := time.Parse("2006-01-02T15:04:05.000Z", stamp); err != nil {
			t.Error(err)
		}
	}
	if task.PollInterval == nil || *task.PollInterval != 50 {
		t.Errorf("pollInterval %s, want 50", encode(t, task.PollInterval))
	}
}
