package gateway

import (
	"os/exec"
	"strings"
	"testing"
)

// promtool runs Prometheus' own checker.
func promtool(t *testing.T, input string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Fatal("promtool is missing: apt-get install --no-install-recommends prometheus")
	}
	cmd := exec.CommandContext(t.Context(), "promtool", args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
