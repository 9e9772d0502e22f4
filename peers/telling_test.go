package peers

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// toldReport is the report of the scenario told.
type toldReport struct {
	Created, Last taskView
	Progress      []struct { // as onprogress got it
		Progress, Total float64
		Message         string
	}
	Logs []struct {
		Level, Logger, Data string
		Meta                map[string]struct{ TaskID string } `json:"_meta"`
	}
	Statuses []taskView
	Journal  journal
	Errors   []string
}

// told is a step that calls a tool as a task and listens to all that it says. It polls, or has
// tasks/result open from the start.
func told(name string, args map[string]any, wait bool) step {
	return step{"told", map[string]any{
		"name": name, "args": args, "level": "debug", "wait": wait,
		"answers": map[string]any{"confirm": accept("confirm", true)}}}
}

// Progress, logs and changes of status reach the SDK's handlers, on the session's own stream
// while the client polls, and on that of tasks/result while it waits there.
func TestTelling(t *testing.T) {
	t.Parallel()
	chatty, slow := map[string]any{"messages": 100}, map[string]any{"seconds": 1, "label": "told"}
	overEach(t, exampleServer, func(t *testing.T, server target) {
		got := driveAs(t, server, able, map[string]step{
			"chatty, polled":  told("chatty", chatty, false),
			"chatty, waiting": told("chatty", chatty, true),
			"slow, polled":    told("slow_compute", slow, false),
			"slow, waiting":   told("slow_compute", slow, true),
			"asking":          told("confirm_delete", map[string]any{"filename": "e.txt"}, true),
		})
		for name, total := range map[string]float64{"chatty, polled": 100, "chatty, waiting": 100, "slow, polled": 4, "slow, waiting": 4} {
			t.Run(name, func(t *testing.T) {
				got := report[toldReport](t, got, name)
				checkTold(t, &got)
				checkProgress(t, &got, total)
				if strings.HasPrefix(name, "chatty") {
					checkLogs(t, &got, int(total))
				}
				equal(t, "statuses", statuses(&got), []string{"completed"})
				if over := got.Journal.received("notifications/progress"); strings.HasPrefix(name, "slow") && server.URL != "" {
					want := "GET"
					if strings.HasSuffix(name, "waiting") {
						want = "tasks/result"
					}
					if stream := over[len(over)-1].stream; stream != want {
						t.Errorf("the last progress came on the stream of %s, want %s", stream, want)
					}
				}
			})
		}
		t.Run("asking", func(t *testing.T) {
			got := report[toldReport](t, got, "asking")
			checkTold(t, &got)
			equal(t, "statuses", statuses(&got), []string{"input_required", "working", "completed"})
		})
	})
}

// checkTold checks what holds of any task and its changes of status (NOT-1, NOT-3).
func checkTold(t *testing.T, got *toldReport) {
	t.Helper()
	checkStatus(t, "at the end", got.Last, "completed")
	if len(got.Errors) > 0 { // such as progress under an unknown token
		t.Errorf("errors outside of any call: %q", got.Errors)
	}
	for _, change := range got.Journal.received("notifications/tasks/status") {
		if change.Params["_meta"] != nil {
			t.Errorf("a change of status has metadata: %s", encode(t, change.Params))
		}
	}
	for _, state := range got.Statuses {
		if state.TaskID != got.Created.TaskID {
			t.Errorf("the status of another task: %s", encode(t, state))
		}
	}
	if len(got.Statuses) > 0 { // the full Task: the same as a poll shows
		equal(t, "the last status", got.Statuses[len(got.Statuses)-1], got.Last)
	}
}

func statuses(got *toldReport) []string {
	var names []string
	for _, state := range got.Statuses {
		names = append(names, state.Status)
	}
	return names
}

// checkProgress checks that progress goes on after the CreateTaskResult under the call's own
// token, rises on each stream, reaches the last there is, and ends with the task (PROG-1, REL-1).
func checkProgress(t *testing.T, got *toldReport, total float64) {
	t.Helper()
	on := got.Journal.received("notifications/progress")
	if len(on) == 0 || len(on) != len(got.Progress) {
		t.Fatalf("%d progress notifications, of which %d reached onprogress", len(on), len(got.Progress))
	}
	// Two streams of HTTP are not in order with each other.
	reached, seen := map[string]float64{}, map[float64]bool{}
	for _, p := range on {
		value, _ := p.Params["progress"].(float64)
		if value <= reached[p.stream] || seen[value] {
			t.Errorf("on %s progress %v comes after %v", p.stream, value, reached[p.stream])
		}
		reached[p.stream], seen[value] = value, true
	}
	if !seen[total] {
		t.Errorf("progress ends with %v, want %v", reached, total)
	}
	for _, p := range got.Progress {
		if !seen[p.Progress] || p.Total != total || p.Message == "" {
			t.Errorf("onprogress got %+v", p)
		}
	}
	call := got.Journal[got.Journal.sent("tools/call")[0]].Sent
	for _, p := range on {
		if p.Params["progressToken"] != call.ID || related(p.Params) != got.Created.TaskID {
			t.Errorf("progress under another token than %v, or about another task: %s", call.ID, encode(t, p.Params))
		}
	}
	last := on[len(on)-1]
	if created := got.Journal.created(got.Created.TaskID); last.at < created {
		t.Errorf("all progress came before the task was known")
	}
	for _, change := range got.Journal.received("notifications/tasks/status") {
		if change.Params["status"] == "completed" && change.stream == last.stream && change.at < last.at {
			t.Errorf("progress came after the end")
		}
	}
}

// checkLogs checks that each message reached the handler once, in the order of its stream, and
// marked as the task's (REL-1).
func checkLogs(t *testing.T, got *toldReport, total int) {
	t.Helper()
	told := map[string]bool{}
	for _, log := range got.Logs {
		told[log.Data] = true
		if log.Logger != "chatty" || log.Level != "info" || log.Meta[relatedTask].TaskID != got.Created.TaskID {
			t.Errorf("log message %+v, want one about task %q", log, got.Created.TaskID)
			break
		}
	}
	if len(got.Logs) != total || len(told) != total {
		t.Errorf("%d log messages, %d different ones, want %d", len(got.Logs), len(told), total)
	}
	reached := map[string]int{}
	for _, log := range got.Journal.received("notifications/message") {
		var i, of int
		if _, err := fmt.Sscanf(fmt.Sprint(log.Params["data"]), "message %d of %d", &i, &of); err != nil || of != total {
			t.Fatalf("log message %s", encode(t, log.Params))
		}
		if i <= reached[log.stream] {
			t.Errorf("on %s message %d comes after %d", log.stream, i, reached[log.stream])
		}
		reached[log.stream] = i
	}
}

// What a task says goes to its own requestor. Without authorization that is the session which
// made it (NOT-1); with --single-user, changes of status go to all sessions.
func TestTellingOnlyTheRequestor(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"anyone": nil, "single user": {"--single-user"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startGatewayWith(t, filepath.Join(t.TempDir(), "tasks.db"), exampleServer(), flags...)
			steps := map[string]step{}
			for _, tool := range []string{"chatty", "confirm_delete"} {
				overheard := told(tool, map[string]any{"chatty": map[string]any{"messages": 5},
					"confirm_delete": map[string]any{"filename": "f.txt"}}[tool].(map[string]any), true)
				overheard.scenario, overheard.args["capabilities"] = "overheard", able
				steps[tool] = overheard
			}
			all := driveAs(t, server.target, able, steps)
			for tool := range steps {
				got := report[struct{ Mine, Theirs toldReport }](t, all, tool)
				if !slices.Contains(statuses(&got.Mine), "completed") || !slices.Contains(statuses(&got.Theirs), "completed") {
					t.Fatalf("%s: the end was told to neither or one: %q, %q", tool, statuses(&got.Mine), statuses(&got.Theirs))
				}
				id := got.Mine.Created.TaskID
				var heard []string // by the bystander, of a task that is not its own
				for _, entry := range got.Theirs.Journal {
					if entry.Received == nil || !strings.Contains(encode(t, entry.Received), id) {
						continue
					}
					heard = append(heard, entry.Received.Method)
				}
				heard = slices.Compact(heard)
				var want []string
				if flags != nil {
					want = []string{"notifications/tasks/status"}
				}
				equal(t, tool+": heard by another session", heard, want)
			}
		})
	}
}

// With --no-status-notifications nothing is told of a task's status.
func TestNoStatusNotifications(t *testing.T) {
	t.Parallel()
	overEach(t, exampleServer, func(t *testing.T, server target) {
		got := report[askedReport](t, driveAs(t, server, able, map[string]step{"asked": {"asked", map[string]any{
			"name": "confirm_delete", "args": map[string]any{"filename": "g.txt"},
			"answers": map[string]any{"confirm": accept("confirm", true)},
			"plain":   map[string]any{"name": "greet", "arguments": map[string]any{"name": "meanwhile"}}}}}), "asked")
		checkAsked(t, &got, "elicitation/create", "Hello, meanwhile!")
		if told := got.Journal.received("notifications/tasks/status"); len(told) > 0 {
			t.Errorf("told %s", encode(t, told))
		}
	}, "--no-status-notifications")
}
