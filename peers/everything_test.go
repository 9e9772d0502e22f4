package peers

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestEverything calls the reference server with `coatcheck call`: directly, and through the
// gateway with the server as its child process and behind a URL.
func TestEverything(t *testing.T) {
	t.Parallel()
	store := func(t *testing.T) string { return filepath.Join(t.TempDir(), "tasks.db") }
	for name, connect := range map[string]func(t *testing.T) target{
		"direct/stdio": func(*testing.T) target { return everythingServer() },
		"direct/http":  startEverything,
		"gateway/child": func(t *testing.T) target {
			return startGateway(t, store(t), everythingServer()).target
		},
		"gateway/URL": func(t *testing.T) target {
			return startGateway(t, store(t), startEverything(t)).target
		},
		"gateway/child over stdio": func(t *testing.T) target {
			return target{Command: binary, Args: gatewayArgs(store(t), everythingServer(), "--stdio")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := connect(t)
			throughGateway := strings.HasPrefix(name, "gateway")

			// TOOL-2, TOOL-3: a tool without tasks of its own.
			text, task := callTool(t, server, "echo", "message=hello wörld")
			if text != "Echo: hello wörld" {
				t.Errorf("echo: %q", text)
			}
			checkRelated(t, "echo", task, throughGateway)

			text, task = callTool(t, server, "get-sum", "a:=20.5", "b:=21.5")
			if text != "The sum of 20.5 and 21.5 is 42." {
				t.Errorf("get-sum: %q", text)
			}
			checkRelated(t, "get-sum", task, throughGateway)

			text, task = callTool(t, server, "trigger-long-running-operation", "duration:=1", "steps:=2")
			if text != "Long running operation completed. Duration: 1 seconds, Steps: 2." {
				t.Errorf("trigger-long-running-operation: %q", text)
			}
			checkRelated(t, "trigger-long-running-operation", task, throughGateway)

			// TOOL-4: a tool that the server itself only runs as a task.
			text, task = callTool(t, server, "simulate-research-query", "topic=durable tasks")
			if !strings.HasPrefix(text, "# Research Report: durable tasks\n") || !strings.Contains(text, "Stage 4: Generating report ✓") {
				t.Errorf("simulate-research-query: %q", text)
			}
			checkRelated(t, "simulate-research-query", task, true)
		})
	}
}

// callTool runs `coatcheck call --json` and returns the text of the result's first content
// and the task id in the result's metadata, which is empty after a plain call.
func callTool(t *testing.T, server target, tool string, args ...string) (text, taskID string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	command := append([]string{"call", "--json"}, server.argument()...)
	cmd := exec.CommandContext(ctx, binary, append(append(command, tool), args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, &stderr)
	}
	if strings.Contains(stderr.String(), "DATA RACE") {
		t.Errorf("data race in %s:\n%s", cmd, &stderr)
	}
	var result struct {
		Content []struct{ Text string }
		Meta    map[string]struct{ TaskID string } `json:"_meta"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &result); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, &stdout)
	}
	if len(result.Content) == 0 {
		t.Fatalf("%s: no content in %s", cmd, &stdout)
	}
	return result.Content[0].Text, result.Meta[relatedTask].TaskID
}

func checkRelated(t *testing.T, what, taskID string, asTask bool) {
	t.Helper()
	if (taskID != "") != asTask {
		t.Errorf("%s ran with task id %q, as a task is %v", what, taskID, asTask)
	}
}
