package peers

import (
	"path/filepath"
	"testing"
)

// TestRestart kills the gateway with SIGKILL between creation and result. The TypeScript
// client then reads, from a new session with a new gateway on the same store, the result of
// the task that was done, and learns that the one that was running is lost.
func TestRestart(t *testing.T) {
	t.Parallel()
	store := filepath.Join(t.TempDir(), "tasks.db")
	first := startGateway(t, store, exampleServer())
	before := drive(t, first.target, map[string]step{
		"done": {"life", map[string]any{"name": "greet", "args": calls["greet"], "task": map[string]any{"ttl": hour}}},
		"running": {"begin", map[string]any{
			"name": "slow_compute", "args": map[string]any{"seconds": 600, "label": "lost"}, "task": map[string]any{"ttl": hour}}},
	})
	done := report[struct {
		Created taskView
		Result  outcome
	}](t, before, "done")
	running := report[taskView](t, before, "running")
	first.kill()

	second := startGateway(t, store, exampleServer())
	after := drive(t, second.target, map[string]step{
		"done":    {"collect", map[string]any{"taskId": done.Created.TaskID}},
		"running": {"collect", map[string]any{"taskId": running.TaskID}},
	})
	type collected struct {
		Last   taskView
		Result outcome
	}
	// Promise 1: what was acknowledged survives kill -9.
	got := report[collected](t, after, "done")
	checkStatus(t, "the finished task", got.Last, "completed")
	equal(t, "its result", got.Result, done.Result)
	// C.9: restart policy "fail".
	lost := report[collected](t, after, "running")
	checkStatus(t, "the running task", lost.Last, "failed")
	if lost.Last.StatusMessage == "" {
		t.Error("a lost task without a statusMessage")
	}
	if lost.Result.Error == nil {
		t.Errorf("the lost task's result is %s, want an error", encode(t, lost.Result))
	}
}
