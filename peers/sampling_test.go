package peers

import (
	"path/filepath"
	"strings"
	"testing"
)

// CAP-2, GET-3, RES-3: the reference server requests sampling as a task of its client, which
// is `coatcheck call` with a command as the model, directly and through the gateway.
func TestEverythingSamples(t *testing.T) {
	t.Parallel()
	for name, connect := range map[string]func(t *testing.T) target{
		"direct/stdio": func(*testing.T) target { return everythingServer() },
		"direct/http":  startEverything,
		"gateway/child": func(t *testing.T) target {
			return startGateway(t, filepath.Join(t.TempDir(), "tasks.db"), everythingServer()).target
		},
		"gateway/child over stdio": func(t *testing.T) target {
			return target{Command: binary, Args: gatewayArgs(filepath.Join(t.TempDir(), "tasks.db"), everythingServer(), "--stdio")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := connect(t)
			hosting := func(tool, command string) string {
				said, _ := callTool(t, server, tool, "prompt=coats", "--host-sampling", command)
				return said
			}
			said := hosting("trigger-sampling-request-async", `grep -q '"text":"Resource .* coats"' && echo "grey wool"`)
			if !strings.HasPrefix(said, "[COMPLETED]") || !strings.Contains(said, `"text": "grey wool"`) {
				t.Errorf("as a task: %s", said)
			}
			said = hosting("trigger-sampling-request-async", "echo no key >&2; exit 1")
			if !strings.HasPrefix(said, "[FAILED]") || !strings.Contains(said, "no key") {
				t.Errorf("as a task that fails: %s", said)
			}
			said = hosting("trigger-sampling-request", "echo grey wool")
			if !strings.Contains(said, `"text": "grey wool"`) {
				t.Errorf("plainly: %s", said)
			}
		})
	}
}
