package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/task"
)

func TestLimitFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "limits.yml")
	if err := os.WriteFile(file, []byte("default: {running: 3, queued: 4, tasks: 5, waits: 6}\nprincipals: {alice: {running: 7}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	alice := map[task.Principal]limit.Limits{"alice": {Running: 7}}
	for _, c := range []struct {
		args []string
		want *limit.Policy
	}{
		{nil, nil},
		{[]string{"--max-running=1", "--max-queued=2", "--max-tasks=none"}, &limit.Policy{Limits: limit.Limits{Running: 1, Queued: 2, Tasks: limit.None}}},
		{[]string{"--max-queued=0"}, &limit.Policy{Limits: limit.Limits{NoQueue: true}}},
		{[]string{"--limits", file}, &limit.Policy{Limits: limit.Limits{Running: 3, Queued: 4, Tasks: 5, Waits: 6}, Principals: alice}},
		{[]string{"--limits", file, "--max-running", "1", "--max-queued", "0"},
			&limit.Policy{Limits: limit.Limits{Running: 1, NoQueue: true, Tasks: 5, Waits: 6}, Principals: alice}},
	} {
		got, err := parseGateway(t, append(c.args, "http://h/mcp")...)
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
		} else if diff := cmp.Diff(c.want, got.Limits); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.args, diff)
		}
	}
}

func TestLimitFlagsRefuse(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yml")
	if err := os.WriteFile(bad, []byte("default:\n  runnig: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, says := range map[string]string{
		"--max-running 0":         `--max-running: "0" is not a whole number of at least 1, or none`,
		"--max-running=-1":        `--max-running: "-1" is not`,
		"--max-queued x":          `--max-queued: "x" is not a whole number of at least 1; or 0`,
		"--max-tasks 1.5":         `--max-tasks: "1.5" is not`,
		"--limits " + bad:         "--limits " + bad + ": line 2: default.runnig: unknown key",
		"--limits " + bad + "-no": "--limits: open " + bad + "-no: no such file",
	} {
		if got, err := parseGateway(t, append(strings.Fields(line), "http://h/mcp")...); err == nil {
			t.Errorf("%s: %+v, want an error that says %q", line, got, says)
		} else if !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %q, want an error that says %q", line, err, says)
		}
	}
}
