package peers

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// rawInitialize begins a session of a client without capabilities.
const rawInitialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},` +
	`"clientInfo":{"name":"raw","version":"1"}}}`

const rawInitialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`

// rawRequests are requests whose answers are compared byte for byte.
var rawRequests = []string{
	`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`,
	`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo","arguments":{"message":"<é😀\u2028 &\u0007>"}}}`,
	`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"get-structured-content","arguments":{"location":"Chicago"}}}`,
	`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"get-annotated-message","arguments":{"messageType":"error","includeImage":true}}}`,
	`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"get-sum","arguments":{"a":"no number","b":1}}}`,
	`{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"no-such-tool","arguments":{}}}`,
	`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"trigger-long-running-operation",` +
		`"arguments":{"duration":2,"steps":4},"_meta":{"progressToken":"p"}}}`,
}

// answers are the raw messages of a session: the answers by their id, and the progress.
type answers struct {
	byID     map[string]string
	progress []string
}

func (a *answers) add(t *testing.T, raw []byte) {
	t.Helper()
	var m struct {
		ID     json.RawMessage
		Method string
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	switch m.Method {
	case "notifications/progress":
		a.progress = append(a.progress, string(raw))
	case "":
		a.byID[string(m.ID)] = string(raw)
	}
}

// overStdio sends the requests to a server on stdio, one after the other.
func overStdio(t *testing.T, server target) *answers {
	t.Helper()
	cmd := exec.Command(server.Command, server.Args...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hung := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer hung.Stop()
	all := &answers{byID: map[string]string{}}
	out := bufio.NewReader(stdout)
	for _, request := range slices.Concat([]string{rawInitialize, rawInitialized}, rawRequests) {
		if _, err := io.WriteString(stdin, request+"\n"); err != nil {
			t.Fatal(err)
		}
		for want := len(all.byID) + 1; request != rawInitialized && len(all.byID) < want; {
			line, err := out.ReadBytes('\n')
			if err != nil {
				t.Fatalf("%v after %s\n%s", err, request, &stderr)
			}
			all.add(t, line)
		}
	}
	stdin.Close()
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%s: %v\n%s", cmd, err, &stderr)
	}
	return all
}

// overHTTP sends the requests to a server with a URL, one after the other.
func overHTTP(t *testing.T, server target) *answers {
	t.Helper()
	all := &answers{byID: map[string]string{}}
	var session string
	for _, request := range slices.Concat([]string{rawInitialize, rawInitialized}, rawRequests) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader(request))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			req.Header.Set("Mcp-Session-Id", session)
			req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode >= 300 {
			t.Fatalf("%s: %s %v\n%s", request, res.Status, err, body)
		}
		if session == "" {
			session = res.Header.Get("Mcp-Session-Id")
		}
		for line := range bytes.Lines(body) {
			if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok && len(bytes.TrimSpace(data)) > 0 {
				all.add(t, bytes.TrimRight(data, "\r\n"))
			}
		}
	}
	http.DefaultClient.CloseIdleConnections()
	return all
}

// With --tickets off a session is, byte for byte, the one without a gateway. Over HTTP that is
// the whole message; over stdio the SDK reads messages, and writes their members in an order of its
// own. What --support adds to tools/list, and to initialize, is not about tickets, so that is off
// too in one case and told apart in the other.
func TestTicketsOffIsNoGateway(t *testing.T) {
	t.Parallel()
	support := regexp.MustCompile(`,"execution":\{"taskSupport":"(?:optional|forbidden|required)"\}`)
	type face struct {
		send    func(*testing.T, target) *answers
		direct  func(*testing.T) target
		gateway func(*testing.T, target, ...string) target
		view    func(*testing.T, string) string // of a raw message, that which is compared
	}
	for name, face := range map[string]face{
		"http": {
			overHTTP, startEverything,
			func(t *testing.T, server target, flags ...string) target { return through(t, "http", server, flags...) },
			func(_ *testing.T, raw string) string { return raw },
		},
		"stdio": {
			overStdio, func(*testing.T) target { return everythingServer() },
			func(t *testing.T, server target, flags ...string) target {
				return through(t, "stdio", server, flags...)
			},
			members,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := face.direct(t)
			want := face.send(t, server)
			for support, bare := range map[string]func(string) string{
				"forbidden": func(raw string) string { return raw },
				"optional":  func(raw string) string { return support.ReplaceAllString(raw, "") },
			} {
				got := face.send(t, face.gateway(t, server, "--tickets", "off", "--support", support))
				for id, raw := range want.byID {
					if id == "0" && support != "forbidden" {
						continue
					}
					if got, want := face.view(t, bare(got.byID[id])), face.view(t, bare(raw)); got != want {
						t.Errorf("--support %s: answer %s differs:\n got %s\nwant %s", support, id, got, want)
					}
				}
				equal(t, "ids of the answers", len(got.byID), len(want.byID))
				var gotProgress, wantProgress []string
				for _, raw := range got.progress {
					gotProgress = append(gotProgress, face.view(t, raw))
				}
				for _, raw := range want.progress {
					wantProgress = append(wantProgress, face.view(t, raw))
				}
				equal(t, "progress", gotProgress, wantProgress)
			}
		})
	}
}

// members returns the members of a message in the order of their names, each value as it was
// written.
func members(t *testing.T, raw string) string {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal([]byte(raw), &m); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	var b strings.Builder
	for _, name := range []string{"jsonrpc", "id", "method", "params", "result", "error"} {
		if value, ok := m[name]; ok {
			fmt.Fprintf(&b, "%s %s\n", name, value)
			delete(m, name)
		}
	}
	if len(m) > 0 {
		t.Errorf("unknown members in %s", raw)
	}
	return b.String()
}

// A client that negotiates tasks sees no ticket tools and gets no tickets, however long it takes.
func TestNoTicketsForClientsWithTasks(t *testing.T) {
	t.Parallel()
	none := map[string]any{}
	for name, tasks := range map[string]map[string]any{
		"all":  {"list": none, "cancel": none, "requests": map[string]any{"elicitation": map[string]any{"create": none}}},
		"bare": none,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			throughEach(t, func(t *testing.T, server target, ran notes) {
				got := callAll(t, server, map[string]any{"elicitation": none, "tasks": tasks},
					map[string]plainCall{"slow": compute("tasks", 2, 1)})
				equal(t, "names of the tools", names(got.Tools), []string{"slow_compute", "slow_failure", "slow_question"})
				for _, tool := range got.Tools {
					if tool["name"] == "slow_compute" && tool["outputSchema"].(map[string]any)["anyOf"] != nil {
						t.Errorf("outputSchema %s", encode(t, tool["outputSchema"]))
					}
				}
				if answers := got.Calls["slow"].Answers; len(answers) != 1 || isTicket(t, answers[0]) || answers[0].Error != nil {
					t.Errorf("answers %s", encode(t, answers))
				}
				ran.check(t, "tasks", "ended", "started")
			}, "--patience", "500ms")
		})
	}
}
