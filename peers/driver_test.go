package peers

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os/exec"
	"testing"
)

// The reports of the TypeScript driver, and what mcp-go's client is asked for too.
type (
	taskView struct {
		TaskID        string `json:"taskId"`
		Status        string `json:"status"`
		StatusMessage string `json:"statusMessage"`
		CreatedAt     string `json:"createdAt"`
		LastUpdatedAt string `json:"lastUpdatedAt"`
		TTL           *int64 `json:"ttl"`
		PollInterval  *int64 `json:"pollInterval"`
	}
	rpcError struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    any    `json:"data,omitempty"`
	}
	// outcome is what a request was answered with: a result or an error.
	outcome struct {
		Value map[string]any `json:"value,omitempty"`
		Error *rpcError      `json:"error,omitempty"`
	}
)

// step is one scenario of ts/scenarios.mjs or ts/inside.mjs with its arguments.
type step struct {
	scenario string
	args     map[string]any
}

func (s step) MarshalJSON() ([]byte, error) {
	args := s.args
	if args == nil {
		args = map[string]any{}
	}
	return json.Marshal([]any{s.scenario, args})
}

// reports are the driver's answers by the name of the step.
type reports map[string]json.RawMessage

// drive runs steps with the TypeScript SDK's client in one session with the server.
func drive(t *testing.T, server target, steps map[string]step) reports {
	t.Helper()
	return driveAs(t, server, nil, steps)
}

// driveAs is drive with a client that has capabilities.
func driveAs(t *testing.T, server target, capabilities map[string]any, steps map[string]step) reports {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", driverArgs(t, server, capabilities, steps)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("the TypeScript driver: %v\n%s", err, &stderr)
	}
	if bytes.Contains(stderr.Bytes(), []byte("DATA RACE")) {
		t.Errorf("data race:\n%s", &stderr)
	}
	var out reports
	if err := json.Unmarshal(stdout.Bytes(), &out); err != nil {
		t.Fatalf("the TypeScript driver's report: %v\n%s", err, &stdout)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("stderr of the TypeScript driver and its server:\n%s", &stderr)
		}
	})
	return out
}

func driverArgs(t *testing.T, server target, capabilities map[string]any, steps map[string]step) []string {
	t.Helper()
	if capabilities == nil {
		capabilities = map[string]any{}
	}
	return []string{driver, encode(t, server), encode(t, steps), encode(t, capabilities)}
}

// report decodes the report of one step.
func report[T any](t *testing.T, from reports, step string) T {
	t.Helper()
	var out T
	if err := json.Unmarshal(from[step], &out); err != nil {
		t.Fatalf("report of %s: %v\n%s", step, err, from[step])
	}
	return out
}

func encode(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const relatedTask = "io.modelcontextprotocol/related-task"

// sameResult checks that a task's result is the plain call's, byte for byte as far as a
// client can see, with the related-task metadata added and nothing else (RES-1, RES-3).
func sameResult(t *testing.T, what string, got, plain outcome, taskID string) {
	t.Helper()
	if plain.Error != nil {
		equal(t, what, got, plain)
		return
	}
	want := outcome{Value: maps.Clone(plain.Value)}
	meta, _ := want.Value["_meta"].(map[string]any)
	meta = maps.Clone(meta)
	if meta == nil {
		meta = map[string]any{}
	}
	meta[relatedTask] = map[string]any{"taskId": taskID}
	want.Value["_meta"] = meta
	equal(t, what, got, want)
}

// checkError checks an error's code, and that its message names what it should.
func checkError(t *testing.T, what string, got outcome, code int) {
	t.Helper()
	if got.Error == nil || got.Error.Code != code {
		t.Errorf("%s: got %s, want error %d", what, encode(t, got), code)
	}
}

func checkStatus(t *testing.T, what string, task taskView, status string) {
	t.Helper()
	if task.Status != status {
		t.Errorf("%s: status %q (%s), want %q", what, task.Status, task.StatusMessage, status)
	}
}
