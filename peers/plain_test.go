package peers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// realServer is a server written by others that knows nothing of tasks in the calls made of it.
type realServer struct {
	target
	slow, fast plainCall // slow takes 2 s
	runs       string    // the file to which each run of slow adds a line, "" if none does
}

// realServers are servers of the TypeScript SDK, by name: the reference server, and one from outside
// of the protocol's own, on an SDK that speaks no revision with tasks.
var realServers = map[string]func(t *testing.T) realServer{
	"server-everything": func(*testing.T) realServer {
		return realServer{
			target: everythingServer(),
			slow:   plainCall{Name: "trigger-long-running-operation", Args: map[string]any{"duration": 2, "steps": 2}},
			fast:   plainCall{Name: "get-structured-content", Args: map[string]any{"location": "Chicago"}}, // has an outputSchema
		}
	},
	"mcp-server-commands": func(t *testing.T) realServer {
		server := realServer{target: commandsServer(t), runs: filepath.Join(t.TempDir(), "runs")}
		run := func(command string) plainCall {
			return plainCall{Name: "run_command", Args: map[string]any{"command": command}}
		}
		server.slow = run("sleep 2; echo ran >>'" + server.runs + "'; echo done; echo warned >&2")
		server.fast = run("echo partly; exit 3") // isError
		return server
	},
}

// commandsServer is mcp-server-commands, whose run_command runs a shell's command.
func commandsServer(t *testing.T) target {
	t.Helper()
	script, err := filepath.Abs(filepath.Join("node_modules", "mcp-server-commands", "build", "index.js"))
	if err != nil {
		t.Fatal(err)
	}
	return target{Command: "node", Args: []string{script}}
}

// checkRuns checks how often the slow call's work was done, where that can be seen.
func (s *realServer) checkRuns(t *testing.T, want int) {
	t.Helper()
	if s.runs == "" {
		return
	}
	text, err := os.ReadFile(s.runs)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(text), "\n"); got != want {
		t.Errorf("the work was done %d times, want %d", got, want)
	}
}

// plainClient makes a slow and a fast call, collects what it gets tickets for, and returns all
// answers to each.
type plainClient func(t *testing.T, server target, calls *realServer) (slow, fast []outcome)

var plainClients = map[string]plainClient{
	"TypeScript": func(t *testing.T, server target, calls *realServer) (slow, fast []outcome) {
		t.Helper()
		got := callAll(t, server, nil, map[string]plainCall{"slow": calls.slow, "fast": calls.fast})
		return got.Calls["slow"].Answers, got.Calls["fast"].Answers
	},
	"mcp-go": func(t *testing.T, server target, calls *realServer) (slow, fast []outcome) {
		t.Helper()
		call := connectMCPGo(t, server).plain
		return follow(t, call, calls.slow), follow(t, call, calls.fast)
	},
	"inspector": func(t *testing.T, server target, calls *realServer) (slow, fast []outcome) {
		t.Helper()
		call := inspector(server)
		return follow(t, call, calls.slow), follow(t, call, calls.fast)
	},
}

// plain makes a plain call.
func (c mcpGo) plain(t *testing.T, call plainCall) outcome {
	t.Helper()
	result, err := c.CallTool(t.Context(), callRequest(call.Name, call.Args))
	if err != nil {
		t.Fatalf("%s: %v", call.Name, err)
	}
	return mcpGoOutcome(t, result)
}

// follow makes a call, and then each that the text of the last answer says to make, as a model does
// that knows nothing but the texts. It returns all answers.
func follow(t *testing.T, ask func(*testing.T, plainCall) outcome, call plainCall) []outcome {
	t.Helper()
	answers := []outcome{ask(t, call)}
	for end := time.Now().Add(patience); ; {
		next, ok := instructed(t, answers[len(answers)-1])
		if !ok {
			return answers
		}
		if time.Now().After(end) {
			t.Fatalf("no result: %s", encode(t, answers))
		}
		answers = append(answers, ask(t, next))
	}
}

var instruction = regexp.MustCompile(`call the tool (\S+) with exactly (\{.*?\})\.`)

// instructed returns the call that the text of an answer says to make.
func instructed(t *testing.T, answer outcome) (call plainCall, ok bool) {
	t.Helper()
	if found := instruction.FindStringSubmatch(textOf(answer)); found != nil {
		call.Name = found[1]
		if err := json.Unmarshal([]byte(found[2]), &call.Args); err != nil {
			t.Fatalf("%v in %s", err, encode(t, answer))
		}
		return call, true
	}
	return call, false
}

// textOf is the text of an answer's first content.
func textOf(answer outcome) string {
	contents, _ := answer.Value["content"].([]any)
	if len(contents) == 0 {
		return ""
	}
	first, _ := contents[0].(map[string]any)
	text, _ := first["text"].(string)
	return text
}

// checkTicket checks that an answer is a ticket whose text says to make the call that its
// metadata says, and returns that.
func checkTicket(t *testing.T, answer outcome) (collect plainCall) {
	t.Helper()
	if !isTicket(t, answer) {
		t.Fatalf("no ticket: %s", encode(t, answer))
	}
	about := ticketMeta(answer)
	collect, ok := instructed(t, answer)
	if !ok {
		t.Fatalf("the text says not what to do: %s", encode(t, answer))
	}
	equal(t, "the call that the text says", collect, plainCall{Name: about["collect"].(string), Args: map[string]any{"ticket": about["ticket"]}})
	return collect
}

// ticketMeta is what an answer's metadata says of a ticket.
func ticketMeta(answer outcome) map[string]any {
	meta, _ := answer.Value["_meta"].(map[string]any)
	about, _ := meta[metaTicket].(map[string]any)
	return about
}

// checkPlain checks the answers that a client got of a server without a gateway.
func checkPlain(t *testing.T, what string, answers []outcome) outcome {
	t.Helper()
	if len(answers) != 1 || answers[0].Error != nil || answers[0].Value["content"] == nil || ticketMeta(answers[0]) != nil {
		t.Fatalf("%s without a gateway: %s", what, encode(t, answers))
	}
	return answers[0]
}

// Clients written by others, none of which knows of tickets, get from servers written by others
// what they get without a gateway: of a call that takes long by collecting it, of any other at once.
// Each command of the Inspector is a session of its own, so it collects in another than it called in;
// what that means over stdio is in TestInspectorOverStdio.
func TestPlainClients(t *testing.T) {
	t.Parallel()
	for serverName, server := range realServers {
		for clientName, client := range plainClients {
			t.Run(serverName+"/"+clientName, func(t *testing.T) {
				t.Parallel()
				upstream := server(t)
				slow, fast := client(t, upstream.target, &upstream)
				wantSlow, wantFast := checkPlain(t, "slow", slow), checkPlain(t, "fast", fast)
				for _, face := range []string{"http", "stdio"} {
					if clientName == "inspector" && face == "stdio" {
						continue
					}
					t.Run(face, func(t *testing.T) {
						t.Parallel()
						upstream := server(t)
						gateway := through(t, face, upstream.target, "--patience", "1s")
						slow, fast := client(t, gateway, &upstream)
						equal(t, "fast answers", fast, []outcome{wantFast})
						equal(t, "collected result", oneTicket(t, slow), wantSlow)
						for _, ticket := range slow[:len(slow)-1] {
							checkTicket(t, ticket)
						}
						upstream.checkRuns(t, 1)
					})
				}
			})
		}
	}
}
