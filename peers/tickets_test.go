package peers

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// metaTicket is where a result says that it is a ticket.
const metaTicket = "coatcheck/ticket"

// notes is the file in which ts/slow.mjs notes its runs.
type notes string

// slowServer is ts/slow.mjs, whose tools take the time they are asked to.
func slowServer(t *testing.T) (target, notes) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "runs")
	return target{Command: "node", Args: []string{filepath.Join("ts", "slow.mjs"), file}}, notes(file)
}

// of returns what is noted of the runs with a label, sorted: runs may overlap.
func (n notes) of(t *testing.T, label string) []string {
	t.Helper()
	text, err := os.ReadFile(string(n))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		if what, ok := strings.CutPrefix(line, label+" "); ok {
			all = append(all, strings.TrimSuffix(what, "\n"))
		}
	}
	slices.Sort(all)
	return all
}

// check checks what is noted of the runs with a label once that is as much as is wanted.
func (n notes) check(t *testing.T, label string, want ...string) {
	t.Helper()
	got := n.of(t, label)
	for end := time.Now().Add(patience); len(got) < len(want) && time.Now().Before(end); got = n.of(t, label) {
		<-time.After(10 * time.Millisecond)
	}
	equal(t, "noted by "+label, got, want)
}

// throughEach runs a test against a gateway in front of ts/slow.mjs, over HTTP and over stdio.
func throughEach(t *testing.T, test func(t *testing.T, server target, ran notes), flags ...string) {
	t.Helper()
	for _, face := range []string{"http", "stdio"} {
		t.Run(face, func(t *testing.T) {
			t.Parallel()
			upstream, ran := slowServer(t)
			test(t, through(t, face, upstream, flags...), ran)
		})
	}
}

// through returns a gateway in front of an upstream, for one user: one that listens, or one that
// the client starts.
func through(t *testing.T, face string, upstream target, flags ...string) target {
	t.Helper()
	store := filepath.Join(t.TempDir(), "tasks.db")
	if face == "http" {
		return startGatewayWith(t, store, upstream, append([]string{"--single-user"}, flags...)...).target
	}
	return target{Command: binary, Args: gatewayArgs(store, upstream, append([]string{"--stdio"}, flags...)...)}
}

// plainCall is a call for the scenario calls of ts/tickets.mjs.
type plainCall struct {
	Name    string         `json:"name"`
	Args    map[string]any `json:"args"`
	Options map[string]any `json:"options,omitempty"`
	Listens bool           `json:"listens,omitempty"`
}

type plainCalls struct {
	Tools []map[string]any
	Calls map[string]struct {
		Answers   []outcome
		Progress  []progressView
		Validated bool
	}
	Journal journal
	Errors  []string
}

type progressView struct {
	Progress float64
	Total    *float64
	Message  string
}

// callAll makes calls at the same time with the TypeScript SDK's client, which collects what it
// gets tickets for.
func callAll(t *testing.T, server target, capabilities map[string]any, calls map[string]plainCall) plainCalls {
	t.Helper()
	all := step{"calls", map[string]any{"key": metaTicket, "calls": calls}}
	got := report[plainCalls](t, driveAs(t, server, capabilities, map[string]step{"calls": all}), "calls")
	for _, text := range got.Errors {
		// The SDK hands progress on a moment later than an answer that comes with it.
		if !strings.Contains(text, "progress notification for an unknown token") {
			t.Errorf("error outside of any call: %s", text)
		}
	}
	checkProgressEnds(t, got.Journal)
	return got
}

// checkProgressEnds checks that no call's progress comes after its answer (PROG-1).
func checkProgressEnds(t *testing.T, j journal) {
	t.Helper()
	answered := map[any]bool{}
	tokens := map[any]any{} // by the id of the request
	for _, entry := range j {
		switch sent, got := entry.Sent, entry.Received; {
		case sent != nil && sent.Method == "tools/call":
			if meta, ok := sent.Params["_meta"].(map[string]any); ok {
				tokens[sent.ID] = meta["progressToken"]
			}
		case got != nil && got.Method == "" && tokens[got.ID] != nil:
			answered[tokens[got.ID]] = true
		case got != nil && got.Method == "notifications/progress" && answered[got.Params["progressToken"]]:
			t.Errorf("progress after the answer: %s", encode(t, got))
		}
	}
}

// isTicket reports whether an answer is a ticket, and checks that it is a whole one.
func isTicket(t *testing.T, answer outcome) bool {
	t.Helper()
	meta, _ := answer.Value["_meta"].(map[string]any)
	about, ok := meta[metaTicket].(map[string]any)
	if !ok || about["collect"] == nil {
		return false
	}
	id, _ := about["ticket"].(string)
	if id == "" || answer.Value["isError"] != nil || !strings.Contains(encode(t, answer.Value["content"]), id) {
		t.Errorf("no whole ticket: %s", encode(t, answer))
	}
	return true
}

// oneTicket checks that all answers but the last are tickets, at least one, and all the same.
func oneTicket(t *testing.T, answers []outcome) (collected outcome) {
	t.Helper()
	var tickets []string
	for _, answer := range answers[:len(answers)-1] {
		if !isTicket(t, answer) {
			t.Fatalf("an answer that is no ticket: %s", encode(t, answer))
		}
		tickets = append(tickets, encode(t, answer.Value["_meta"].(map[string]any)[metaTicket].(map[string]any)["ticket"]))
	}
	if len(tickets) == 0 || len(slices.Compact(tickets)) > 1 {
		t.Errorf("tickets %q", tickets)
	}
	return answers[len(answers)-1]
}

func names(tools []map[string]any) []string {
	var all []string
	for _, tool := range tools {
		all = append(all, tool["name"].(string))
	}
	return all
}

var ticketTools = []string{"ticket_collect", "ticket_cancel", "ticket_list"}

func compute(label string, seconds, steps int) plainCall {
	return plainCall{Name: "slow_compute", Args: map[string]any{"label": label, "seconds": seconds, "steps": steps}}
}

// direct calls ts/slow.mjs without a gateway, and returns its tools and the result of
// slow_compute. The label is that of the calls it is to be compared with.
func direct(t *testing.T, label string) (tools []map[string]any, result outcome) {
	t.Helper()
	server, ran := slowServer(t)
	tooSlow := compute("too slow", 8, 1)
	tooSlow.Options = map[string]any{"timeout": 1000}
	got := callAll(t, server, nil, map[string]plainCall{"at once": compute(label, 0, 1), "too slow": tooSlow})
	// That is what tickets are against.
	checkError(t, "a call beyond the client's timeout", got.Calls["too slow"].Answers[0], -32001)
	ran.check(t, "too slow", "cancelled", "started")
	return got.Tools, got.Calls["at once"].Answers[0]
}

// A client that gives up after 3 s gets the whole result of work that takes 8 s, and the SDK's
// validation of structured content has nothing against what it is answered until then.
func TestSlowToolBeyondTheTimeout(t *testing.T) {
	t.Parallel()
	throughEach(t, func(t *testing.T, server target, ran notes) {
		const label = "Zoë's"
		tools, result := direct(t, label)
		slow := compute(label, 8, 4)
		slow.Options = map[string]any{"timeout": 3000}
		quick := compute(label, 0, 1)
		got := callAll(t, server, nil, map[string]plainCall{"slow": slow, "quick": quick})

		if calls := got.Calls; !calls["slow"].Validated || !calls["quick"].Validated {
			t.Error("the client does not validate")
		}
		equal(t, "quick answers", got.Calls["quick"].Answers, []outcome{result})
		equal(t, "collected result", oneTicket(t, got.Calls["slow"].Answers), result)
		ran.check(t, label, "ended", "ended", "started", "started") // the quick and the slow one
		checkAdded(t, got.Tools, tools)
	}, "--patience", "1s")
}

// checkAdded checks that tools are those of the server with the ticket tools after them, and
// that of the server's only what has to say so has changed.
func checkAdded(t *testing.T, got, server []map[string]any) {
	t.Helper()
	equal(t, "names of the tools", names(got), append(names(server), ticketTools...))
	without := func(tools []map[string]any) []map[string]any {
		var all []map[string]any
		for _, tool := range tools {
			tool = maps.Clone(tool)
			delete(tool, "outputSchema") // that it validates is seen by calling
			delete(tool, "execution")
			all = append(all, tool)
		}
		return all
	}
	equal(t, "the server's tools", without(got[:min(len(server), len(got))]), without(server))
}

// A client that starts its timeout of 3 s anew at each progress can simply wait: the gateway
// tells it of progress while the tool says nothing, and never of less than the tool did.
func TestSlowToolWithHeartbeats(t *testing.T) {
	t.Parallel()
	throughEach(t, func(t *testing.T, server target, ran notes) {
		const label = "patient"
		_, result := direct(t, label)
		calls := map[string]plainCall{"silent": compute(label, 8, 1), "reports": compute(label, 8, 2)}
		for name, call := range calls {
			call.Options, call.Listens = map[string]any{"timeout": 3000, "resetTimeoutOnProgress": true}, true
			calls[name] = call
		}
		got := callAll(t, server, nil, calls)
		for name, call := range got.Calls {
			equal(t, name+": answers", call.Answers, []outcome{result})
			// At least one heartbeat in each 3 s, or the call had failed.
			if len(call.Progress) < 2 {
				t.Errorf("%s: progress %s", name, encode(t, call.Progress))
				continue
			}
			for i, p := range call.Progress[1:] {
				if p.Progress <= call.Progress[i].Progress { // PROG-1
					t.Errorf("%s: progress does not increase: %s", name, encode(t, call.Progress))
				}
			}
			own := slices.ContainsFunc(call.Progress, func(p progressView) bool {
				return p.Progress == 1 && p.Total != nil && *p.Total == 2 && p.Message == "step 1"
			})
			if own != (name == "reports") {
				t.Errorf("%s: the tool's own progress among %s: %v", name, encode(t, call.Progress), own)
			}
		}
		ran.check(t, label, "ended", "ended", "started", "started")
	}, "--patience", "none", "--heartbeat", "1s")
}
