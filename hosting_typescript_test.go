package coatcheck_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/protocol"
)

// Our server has the TypeScript SDK's client sample as tasks of its own (FLOW-3).
func TestTypeScriptHost(t *testing.T) {
	if _, err := os.Stat(filepath.Join("peers", "node_modules", "@modelcontextprotocol", "sdk")); err != nil {
		t.Fatalf("%v; run: make peers", err)
	}
	database := func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "tasks.db") }
	t.Run("http", func(t *testing.T) {
		server := newServer()
		rt, err := coatcheck.Open(t.Context(), server, settings{Database: database(t)}.options())
		if err != nil {
			t.Fatal(err)
		}
		web := httptest.NewServer(rt.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)))
		defer func() {
			web.CloseClientConnections()
			web.Close()
			if err := rt.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		hostInTypeScript(t, map[string]any{"url": web.URL})
	})
	t.Run("stdio", func(t *testing.T) {
		t.Setenv(stdioServer, string(protocol.Marshal(settings{Database: database(t)})))
		hostInTypeScript(t, map[string]any{"command": os.Args[0], "args": []string{}})
	})
}

func hostInTypeScript(t *testing.T, target map[string]any) {
	t.Helper()
	type call struct {
		ID     string
		Result struct {
			Content []struct{ Text string }
		}
		Asked []struct {
			Method string
			Params json.RawMessage
		}
	}
	var report struct {
		Plain, Task call
		Hosted      []protocol.Task
		Errors      []string
	}
	cmd := exec.CommandContext(t.Context(), "node", filepath.Join("peers", "ts", "host.mjs"), string(protocol.Marshal(target)), "asking", `{"script":"hosted"}`)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if len(report.Hosted) != 2 || len(report.Errors) > 0 {
		t.Errorf("it hosted %+v; errors: %q", report.Hosted, report.Errors)
	}
	for i, c := range []call{report.Plain, report.Task} {
		if len(c.Result.Content) != 1 || c.Result.Content[0].Text != "because by m1" {
			t.Errorf("result %+v", c.Result)
		}
		seen := map[string]int{}
		for _, q := range c.Asked {
			seen[q.Method]++
			switch {
			case q.Method == protocol.MethodCreateMessage:
				if related(q.Params) != c.ID || string(protocol.Get(q.Params, "task")) != `{"ttl":60000}` { // REL-1, CRE-2
					t.Errorf("asked %s", q.Params)
				}
			case i < len(report.Hosted) && string(q.Params) != idParams(report.Hosted[i].TaskID): // REL-2
				t.Errorf("%s with %s", q.Method, q.Params)
			}
		}
		if seen[protocol.MethodCreateMessage] != 1 || seen[protocol.MethodTasksGet] < 2 || seen[protocol.MethodTasksResult] != 1 { // GET-2, RES-2
			t.Errorf("asked %v", seen)
		}
	}
}
