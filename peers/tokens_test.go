package peers

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
)

// maxTokens is what tickets may cost a conversation before any is given.
const maxTokens = 250

// TestTokens measures what the ticket tools and the sentence about them cost in every
// conversation. internal/ticket's own test holds testdata/listed.json against what it lists.
func TestTokens(t *testing.T) {
	t.Parallel()
	var costs []struct {
		Prefixed        bool
		Tools, Sentence int
	}
	runScript(t, &costs, "tokens.mjs", ticketData("listed.json"))
	if len(costs) != 2 {
		t.Fatalf("measured: %v", costs)
	}
	for _, cost := range costs {
		t.Logf("prefixed %t: %d tokens of tools, %d of instructions", cost.Prefixed, cost.Tools, cost.Sentence)
		if cost.Tools == 0 || cost.Sentence == 0 || cost.Tools+cost.Sentence >= maxTokens {
			t.Errorf("prefixed %t: %d tokens, want fewer than %d", cost.Prefixed, cost.Tools+cost.Sentence, maxTokens)
		}
	}
}

// TestAdapted validates results and tickets against the output schemas that tools with tickets are
// listed with, by the TypeScript SDK's validator.
func TestAdapted(t *testing.T) {
	t.Parallel()
	var report struct {
		Checked int
		Wrong   []string
	}
	runScript(t, &report, "schemas.mjs", ticketData("schemas.json"))
	for _, wrong := range report.Wrong {
		t.Error(wrong)
	}
	if report.Checked == 0 {
		t.Error("nothing was checked")
	}
}

func ticketData(name string) string {
	return filepath.Join("..", "internal", "ticket", "testdata", name)
}

// runScript reads into report what a script in ts prints.
func runScript(t *testing.T, report any, script string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", append([]string{filepath.Join("ts", script)}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, &stderr)
	}
	if err := json.Unmarshal(stdout.Bytes(), report); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, &stdout)
	}
}
