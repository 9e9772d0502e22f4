package peers

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// inspector returns what makes a call with the Inspector's command line, which begins a session for
// it and, over stdio, starts the server for it.
func inspector(server target) func(*testing.T, plainCall) outcome {
	return func(t *testing.T, call plainCall) outcome {
		t.Helper()
		return inspect(t, server, call)
	}
}

// inspect makes one call with the Inspector's command line.
func inspect(t *testing.T, server target, call plainCall) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", inspectorArgs(t, server, call)...)
	// It looks for its package.json one up from the working directory.
	cmd.Dir = filepath.Join("node_modules", "@modelcontextprotocol", "inspector-cli", "build")
	// It drops what its server writes to stderr, and the code with which that ends.
	races := filepath.Join(t.TempDir(), "race")
	cmd.Env = append(os.Environ(), "GORACE=log_path="+races)
	cmd.WaitDelay = time.Second // its children have its stdout, too
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, &stderr)
	}
	found, err := filepath.Glob(races + ".*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range found {
		text, err := os.ReadFile(file)
		t.Errorf("data race in %s: %v\n%s", cmd, err, text)
	}
	var out outcome
	if err := json.Unmarshal(stdout.Bytes(), &out.Value); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, &stdout)
	}
	return out
}

// inspectorArgs are the arguments of node for one call. What follows a command's name comes after
// two "--": the Inspector's command line consists of two programs, of which each takes one away.
func inspectorArgs(t *testing.T, server target, call plainCall) []string {
	t.Helper()
	args := []string{"cli.js", "--cli", server.URL + server.Command, "--method", "tools/call", "--tool-name", call.Name}
	for _, name := range slices.Sorted(maps.Keys(call.Args)) {
		args = append(args, "--tool-arg", name+"="+encode(t, call.Args[name]))
	}
	if server.URL == "" {
		args = append(append(args, "--", "--"), server.Args...)
	}
	return args
}

// Over stdio the Inspector starts a gateway for each call and ends it after the answer. Its calls
// that are done within the patience are as without a gateway. Those that are not end with that
// gateway: the ticket then says so, and what to do. A ticket of a call that goes on in another
// process, which has the same store, it can collect.
func TestInspectorOverStdio(t *testing.T) {
	t.Parallel()
	for name, server := range realServers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			upstream := server(t)
			wantSlow, wantFast := inspect(t, upstream.target, upstream.slow), inspect(t, upstream.target, upstream.fast)
			gateway := through(t, "stdio", upstream.target, "--patience", "1s")
			equal(t, "fast answer", inspect(t, gateway, upstream.fast), wantFast)

			t.Run("another's call", func(t *testing.T) {
				host := connectMCPGo(t, gateway)
				collect := checkTicket(t, host.plain(t, upstream.slow))
				answers := follow(t, inspector(gateway), collect)
				equal(t, "collected result", answers[len(answers)-1], wantSlow)
				upstream.checkRuns(t, 2) // with the one without a gateway
			})
			t.Run("its own call", func(t *testing.T) { interruptedCall(t, gateway, upstream.endless()) })
			t.Run("without patience", func(t *testing.T) {
				waits := through(t, "stdio", upstream.target, "--patience", "none")
				equal(t, "slow answer", inspect(t, waits, upstream.slow), wantSlow)
			})
		})
	}
}

// endless is a call of the slow tool that does not end by itself while a test runs.
func (s *realServer) endless() plainCall {
	if s.runs == "" {
		return plainCall{Name: s.slow.Name, Args: map[string]any{"duration": 600, "steps": 1}}
	}
	return plainCall{Name: s.slow.Name, Args: map[string]any{"command": "exec sleep 600"}}
}

// interruptedCall checks what a client is told of a call that ended with the gateway's process.
func interruptedCall(t *testing.T, gateway target, call plainCall) {
	collect := checkTicket(t, inspect(t, gateway, call))
	// As long as the lease of a process that was killed runs, the call counts as running.
	answers := follow(t, inspector(gateway), collect)
	last := answers[len(answers)-1]
	equal(t, "metadata", ticketMeta(last), map[string]any{"ticket": collect.Args["ticket"], "status": "interrupted"})
	text := textOf(last)
	again := "Call " + encode(t, call.Name) + " again, which starts anew, only if that is still wanted"
	if last.Value["isError"] != true || !strings.Contains(text, "was interrupted by a restart") || !strings.Contains(text, again) {
		t.Errorf("interrupted: %s", encode(t, last))
	}
	equal(t, "collected again", inspect(t, gateway, collect), last)
	listed := encode(t, inspect(t, gateway, plainCall{Name: "ticket_list"}))
	if !strings.Contains(listed, collect.Args["ticket"].(string)) {
		t.Errorf("ticket_list: %s", listed)
	}
}
