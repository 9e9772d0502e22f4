package client_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/client"
)

// hostRole, in the environment, makes this test binary a host: "call" or "resume".
const hostRole = "COATCHECK_TEST_HOST"

const inFlight = 100

// hostProcess starts tasks, or finds those of its predecessor and prints their results.
func hostProcess(role, url, file string) error {
	ctx := context.Background()
	ledger, err := client.OpenLedger(file)
	if err != nil {
		return err
	}
	defer ledger.Close()
	s, err := client.Connect(ctx, newClient(), &mcp.StreamableClientTransport{Endpoint: url}, &client.Options{Ledger: ledger})
	if err != nil {
		return err
	}
	if role == "call" {
		for i := range inFlight {
			if _, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "held", Arguments: map[string]any{"label": fmt.Sprint("n", i)}}, nil); err != nil {
				return err
			}
		}
		fmt.Fprintln(os.Stdout, "all called")
		select {} // until it is killed
	}
	tasks, err := s.Resume(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, len(tasks), "resumed")
	for _, t := range tasks {
		result, err := t.Wait(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintln(os.Stdout, result.Content[0].(*mcp.TextContent).Text)
	}
	left, err := s.Resume(ctx)
	fmt.Fprintln(os.Stdout, "left:", len(left), err)
	return s.Close()
}

// A client that is killed with 100 tasks in flight finds all of them when it is started again,
// and gets every result. AUD-3
func TestKilledHost(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	release := make(chan struct{})
	type in struct {
		Label string `json:"label"`
	}
	mcp.AddTool(server, &mcp.Tool{Name: "held"}, func(ctx context.Context, _ *mcp.CallToolRequest, in in) (*mcp.CallToolResult, any, error) {
		select {
		case <-release:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: in.Label + " done"}}}, nil, nil
	})
	rt, err := coatcheck.Open(t.Context(), server, &coatcheck.Options{
		Database: "sqlite:" + filepath.Join(t.TempDir(), "tasks.db"),
		Tools:    map[string]coatcheck.Tool{"held": {Support: coatcheck.Optional}},
	})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(rt.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)))
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
		if err := rt.Close(context.Background()); err != nil {
			t.Error(err)
		}
		for session := range server.Sessions() {
			_ = session.Close()
		}
	})
	ledger := filepath.Join(t.TempDir(), "ledger")
	host := func(role string) (*exec.Cmd, *bufio.Reader) {
		cmd := exec.Command(os.Args[0], role, web.URL, ledger)
		cmd.Env = append(os.Environ(), hostRole+"=1")
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, bufio.NewReader(out)
	}
	first, out := host("call")
	if line, err := out.ReadString('\n'); err != nil || line != "all called\n" {
		t.Fatal(line, err)
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()

	second, out := host("resume")
	if line, err := out.ReadString('\n'); err != nil || line != fmt.Sprintf("%d resumed\n", inFlight) {
		t.Fatal(line, err)
	}
	close(release) // up to here all were in flight
	got := map[string]bool{}
	for {
		line, err := out.ReadString('\n')
		if err != nil {
			break
		}
		got[strings.TrimSpace(line)] = true
	}
	if err := second.Wait(); err != nil {
		t.Fatal(err)
	}
	for i := range inFlight {
		if want := fmt.Sprintf("n%d done", i); !got[want] {
			t.Errorf("no %q", want)
		}
	}
	if !got["left: 0 <nil>"] {
		t.Error("the ledger was not emptied")
	}
}

// A ledger keeps what it was told, however its last line was cut short.
func TestFileLedger(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ledger")
	open := func() *client.FileLedger {
		l, err := client.OpenLedger(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	entry := func(server, id string) client.Entry {
		return client.Entry{Server: server, ID: id, Method: "tools/call", Params: json.RawMessage(`{"ü":1.0}`), CreatedAt: time.Unix(1, 0).UTC()}
	}
	l := open()
	for _, e := range []client.Entry{entry("a", "1"), entry("a", "2"), entry("b", "1"), entry("a", "1")} {
		if err := l.Add(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"1", "unknown"} {
		if err := l.Remove(t.Context(), "a", id); err != nil {
			t.Fatal(err)
		}
	}
	check := func(l *client.FileLedger) {
		t.Helper()
		for server, want := range map[string]string{"a": "2", "b": "1"} {
			got, err := l.List(t.Context(), server)
			if err != nil || len(got) != 1 || got[0].ID != want || string(got[0].Params) != `{"ü":1.0}` || !got[0].CreatedAt.Equal(time.Unix(1, 0)) {
				t.Errorf("%s: %+v, %v", server, got, err)
			}
		}
	}
	check(l)
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"add":{"server":"a","id":"3","me`); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	l = open()
	check(l)
	if err := l.Add(t.Context(), entry("c", "1")); err != nil {
		t.Fatal(err)
	}
	l = open()
	check(l)
	if got, err := l.List(t.Context(), "c"); err != nil || len(got) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func FuzzLedger(f *testing.F) {
	f.Add([]byte("{\"add\":{\"server\":\"a\",\"id\":\"1\"}}\n{\"remove\":{\"server\":\"a\",\"id\":\"1\"}}\n{\"add\":"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file := filepath.Join(t.TempDir(), "ledger")
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := client.OpenLedger(file)
		if err != nil {
			t.Fatal(err)
		}
		before, _ := l.List(t.Context(), "a")
		_ = l.Close()
		if l, err = client.OpenLedger(file); err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if after, _ := l.List(t.Context(), "a"); len(after) != len(before) {
			t.Fatalf("%d entries became %d", len(before), len(after))
		}
	})
}
