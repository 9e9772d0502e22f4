package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/node"
	"github.com/coatcheck/coatcheck/internal/session"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store/memory"
)

// fetch gets a page of the operators' server.
func fetch(t *testing.T, url string) (status int, body string) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// scrape is what Prometheus would get.
type scrape struct {
	text    string
	samples map[string]float64 // by name and labels, as they are written
}

func scraped(t *testing.T, ops string) scrape {
	t.Helper()
	status, text := fetch(t, ops+"/metrics")
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	s := scrape{text, map[string]float64{}}
	for line := range strings.Lines(text) {
		if at := strings.LastIndexByte(line, ' '); !strings.HasPrefix(line, "#") {
			value, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
			if err != nil {
				t.Fatal(err)
			}
			s.samples[line[:at]] = value
		}
	}
	return s
}

func (s scrape) want(t *testing.T, want map[string]float64) {
	t.Helper()
	for name, value := range want {
		if got, ok := s.samples[name]; !ok || got != value {
			t.Errorf("%s is %v (there: %v), want %v", name, got, ok, value)
		}
	}
}

// watched is a gateway in front of the example server, with what watches it.
func watched(t *testing.T, c Config) (url, ops string, stop func()) {
	t.Helper()
	address := make(chan string, 1)
	c.Metrics, c.MetricsReady = "127.0.0.1:0", func(a string) { address <- a }
	if c.Command == nil {
		c.Command = []string{"example"}
	}
	url, stop = start(t, c)
	t.Cleanup(stop)
	return url, "http://" + <-address, stop
}

// answerQuestion waits for a task's end, and answers what it asks meanwhile.
func answerQuestion(t *testing.T, c *client, id string) {
	t.Helper()
	resp, err := c.web.Do(c.request(http.MethodPost, `{"jsonrpc":"2.0","id":9,"method":"tasks/result","params":`+ref(id)+`}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answered := false
	for events := bufio.NewScanner(resp.Body); events.Scan(); {
		data, ok := strings.CutPrefix(events.Text(), "data: ")
		if !ok {
			continue
		}
		m, err := protocol.ParseMessage([]byte(data))
		if err != nil {
			t.Fatal(err)
		}
		if m.Method == protocol.MethodElicit {
			c.post(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{"action":"accept","content":{"confirm":true}}}`)
			answered = true
		}
	}
	if !answered {
		t.Error("nothing was asked")
	}
}

// eventful is a gateway where something of each kind has happened, and what then is measured.
// Two tasks are at it still: one in the one process, one that waits for it.
func eventful(t *testing.T) (ids []string, s scrape) {
	url, ops, _ := watched(t, Config{
		SingleUser: true, Principal: "ada-of-the-house", Processes: 1, PollInterval: time.Second, MinRetention: time.Millisecond,
		Tools: map[string]protocol.TaskSupport{"greet": protocol.Optional},
	})
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	c := &client{t: t, url: url, web: &http.Client{Transport: transport}}
	first := c.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"t","version":"1"}}}`)
	c.session = first.header.Get("Mcp-Session-Id")
	c.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)

	create := func(params string) string {
		id := c.create(params)
		ids = append(ids, id)
		return id
	}
	for range 2 {
		c.call("tasks/result", ref(create(`{"name":"greet","arguments":{"name":"Ada"},"task":{}}`)))
	}
	c.call("tasks/result", ref(create(`{"name":"failing_job","task":{}}`)))
	cancelled := create(`{"name":"slow_compute","arguments":{"seconds":600},"task":{}}`)
	c.call("tasks/cancel", ref(cancelled))
	answerQuestion(t, c, create(`{"name":"confirm_delete","arguments":{"filename":"x"},"task":{}}`))
	c.call("tasks/get", ref("nosuchtask"))
	c.call("tasks/cancel", ref(cancelled))
	short := create(`{"name":"big_result","arguments":{"kilobytes":1},"task":{"ttl":1000}}`)
	c.call("tasks/result", ref(short))
	eventually(t, "a task is deleted", func() bool {
		return scraped(t, ops).samples["coatcheck_task_expiry_lag_seconds_count"] == 1
	})
	for range 2 {
		create(`{"name":"slow_compute","arguments":{"seconds":600},"task":{}}`)
	}
	go func() { // a call that waits
		resp, err := c.web.Do(c.request(http.MethodPost, `{"jsonrpc":"2.0","id":10,"method":"tasks/result","params":`+ref(ids[len(ids)-1])+`}`).WithContext(t.Context()))
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	}()
	eventually(t, "one task works, one waits for the process, and for it a call", func() bool {
		s = scraped(t, ops)
		return s.samples["coatcheck_pool_queued"] == 1 && s.samples["coatcheck_task_waiters"] == 1 &&
			s.samples[`coatcheck_pool_processes{coatcheck_pool_process_state="busy"}`] == 1
	})
	for _, id := range ids[len(ids)-2:] { // which else would be given time to finish
		c.call("tasks/cancel", ref(id))
	}
	return ids, s
}

// RSC-4: what happens at a gateway is measured, under names that its alerts and its dashboard
// know, and without a word about who it was.
func TestMetrics(t *testing.T) {
	ids, s := eventful(t)
	s.want(t, map[string]float64{
		`coatcheck_task_created_total{gen_ai_tool_name="greet"}`:                                            2,
		`coatcheck_task_created_total{gen_ai_tool_name="slow_compute"}`:                                     3,
		`coatcheck_task_ended_total{coatcheck_task_status="completed",gen_ai_tool_name="greet"}`:            2,
		`coatcheck_task_ended_total{coatcheck_task_status="failed",gen_ai_tool_name="failing_job"}`:         1,
		`coatcheck_task_ended_total{coatcheck_task_status="cancelled",gen_ai_tool_name="slow_compute"}`:     1,
		`coatcheck_task_ended_total{coatcheck_task_status="completed",gen_ai_tool_name="confirm_delete"}`:   1,
		`coatcheck_task_duration_seconds_count{coatcheck_task_status="completed",gen_ai_tool_name="greet"}`: 2,
		`coatcheck_task_queue_duration_seconds_count{gen_ai_tool_name="slow_compute"}`:                      3,
		`coatcheck_task_input_duration_seconds_count{gen_ai_tool_name="confirm_delete"}`:                    1,
		`coatcheck_task_expiry_lag_seconds_count`:                                                           1,
		`coatcheck_task_active{coatcheck_task_status="working",gen_ai_tool_name="slow_compute"}`:            2,
		`coatcheck_task_waiters`: 1,
		`coatcheck_operation_refused_total{coatcheck_refusal_reason="not_found",mcp_method_name="tasks/get"}`:  1,
		`coatcheck_operation_refused_total{coatcheck_refusal_reason="invalid",mcp_method_name="tasks/cancel"}`: 1,
		`coatcheck_suspicious_total`: 0,
		`coatcheck_pool_limit`:       1,
		`coatcheck_pool_queued`:      1,
		`coatcheck_pool_processes{coatcheck_pool_process_state="busy"}`:                        1,
		`coatcheck_pool_processes{coatcheck_pool_process_state="input"}`:                       0,
		`coatcheck_gateway_sessions`:                                                           1,
		`coatcheck_store_operation_duration_seconds_count{coatcheck_store_operation="create"}`: 8,
	})
	if s.samples[`coatcheck_task_input_duration_seconds_sum{gen_ai_tool_name="confirm_delete"}`] <= 0 {
		t.Error("the question was not open")
	}
	for _, secret := range append(ids, "ada-of-the-house", "127.0.0.1") {
		if strings.Contains(s.text, secret) {
			t.Errorf("%q is in the metrics", secret)
		}
	}
	promtool(t, s.text, "check", "metrics")

	word := regexp.MustCompile(`\b(?:coatcheck|process|go|gen_ai|mcp|error_type)_?[a-z_]*\b`)
	known := map[string]bool{"error_type": true} // a store that fails is not to be had
	for name := range s.samples {
		bare, labels, _ := strings.Cut(name, "{")
		known[bare] = true
		for _, label := range regexp.MustCompile(`([a-z_]+)="`).FindAllStringSubmatch(labels, -1) {
			known[label[1]] = true
		}
	}
	known["coatcheck_limit_name"], known["coatcheck_pattern_name"] = true, true // nothing was over a limit, or suspicious
	readme := string(mustRead(t, "README.md"))
	expressions := dashboardExpressions(t)
	for _, alert := range regexp.MustCompile(`(?m)^ +expr: ((?:.|\n)*?)\n +(?:for|labels):`).FindAllStringSubmatch(string(mustRead(t, "alerts.yml")), -1) {
		expressions = append(expressions, alert[1])
	}
	if len(expressions) < 11+20 {
		t.Errorf("only %d expressions were found", len(expressions))
	}
	used := map[string]bool{}
	for _, expr := range expressions {
		for _, name := range word.FindAllString(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(expr, ""), -1) {
			if used[name] = true; !known[name] {
				t.Errorf("%s, in %s, is not measured", name, expr)
			}
		}
	}
	for _, family := range regexp.MustCompile(`(?m)^# TYPE (coatcheck_\S+) `).FindAllStringSubmatch(s.text, -1) {
		name := family[1]
		if !strings.Contains(readme, "`"+name+"`") {
			t.Errorf("README.md does not say what %s is", name)
		}
		if !used[name] && !used[name+"_bucket"] {
			t.Errorf("neither a panel nor an alert uses %s", name)
		}
	}
	for _, name := range regexp.MustCompile("`(coatcheck_[a-z_]+)`").FindAllStringSubmatch(readme, -1) {
		if !known[name[1]] && !known[name[1]+"_bucket"] {
			t.Errorf("README.md names %s, which is not measured", name[1])
		}
	}
}

func mustRead(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../docs/ops", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// dashboardExpressions returns what the dashboard's panels and variables ask for.
func dashboardExpressions(t *testing.T) []string {
	t.Helper()
	var dashboard struct {
		Title, UID string
		Templating struct {
			List []struct {
				Name, Type string
				Query      any
				Definition string
			}
		}
		Panels []struct {
			Title, Type string
			Datasource  struct{ UID string }
			Targets     []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(mustRead(t, "dashboard.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	if first := dashboard.Templating.List[0]; first.Type != "datasource" || first.Name != "datasource" || first.Query != "prometheus" {
		t.Errorf("no data source can be chosen: %+v", first)
	}
	var all []string
	for _, v := range dashboard.Templating.List[1:] {
		all = append(all, v.Definition)
	}
	for _, p := range dashboard.Panels {
		if p.Type != "row" && (p.Datasource.UID != "${datasource}" || len(p.Targets) == 0) {
			t.Errorf("panel %s is of %q and has %d targets", p.Title, p.Datasource.UID, len(p.Targets))
		}
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	return all
}

// The rules are what Prometheus takes, each alert fires in a test, and the panels ask for
// what Prometheus understands.
func TestRules(t *testing.T) {
	promtool(t, "", "check", "rules", "../../docs/ops/alerts.yml")
	promtool(t, "", "test", "rules", "../../docs/ops/alerts_test.yml")
	tests := string(mustRead(t, "alerts_test.yml"))
	for _, alert := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(mustRead(t, "alerts.yml")), -1) {
		for _, outcome := range []string{`exp_alerts:\n +- exp_labels`, `exp_alerts: \[\]`} {
			if !regexp.MustCompile(`alertname: ` + alert[1] + `\n.*\n +` + outcome).MatchString(tests) {
				t.Errorf("no test has %s with %s", alert[1], outcome)
			}
		}
	}
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for i, expr := range dashboardExpressions(t) {
		if !strings.HasPrefix(expr, "label_values(") {
			expr = strings.NewReplacer("$__rate_interval", "5m", "$instance", "a", "$tool", "b").Replace(expr)
			fmt.Fprintf(&rules, "  - record: panel:%d\n    expr: %q\n", i, expr)
		}
	}
	file := filepath.Join(t.TempDir(), "panels.yml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "", "check", "rules", file)
}

// readyz returns what /readyz says.
func readyz(t *testing.T, ops string) string {
	status, body := fetch(t, ops+"/readyz")
	return fmt.Sprint(status, " ", strings.TrimSpace(body))
}

// A gateway that ends is not ready while its last tasks finish, but alive.
func TestReady(t *testing.T) {
	url, ops, stop := watched(t, Config{SingleUser: true})
	if got := readyz(t, ops); got != "200 ok" {
		t.Error(got)
	}
	c := newClient(t, url)
	id := c.create(`{"name":"slow_compute","arguments":{"seconds":3},"task":{}}`)
	eventually(t, "the task works", func() bool {
		return scraped(t, ops).samples[`coatcheck_pool_processes{coatcheck_pool_process_state="busy"}`] == 1
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		stop()
	}()
	eventually(t, "it shuts down", func() bool { return readyz(t, ops) == "503 shutting down" })
	if status, body := fetch(t, ops+"/livez"); status != http.StatusOK || body != "ok\n" {
		t.Errorf("livez: %d %s", status, body)
	}
	if result, fault := c.call("tasks/result", ref(id)); !strings.Contains(string(result), "done") {
		t.Errorf("the last task: %s %s", result, fault)
	}
	<-ended
	if resp, err := http.Get(ops + "/livez"); err == nil {
		_ = resp.Body.Close()
		t.Error("the metrics outlive the gateway")
	}
}

// A gateway is not ready before it has its store, nor when that does not answer.
func TestNotReady(t *testing.T) {
	address := make(chan string, 1)
	c := Config{Metrics: "127.0.0.1:0", MetricsReady: func(a string) { address <- a }, Logger: slog.New(slog.DiscardHandler)}
	o, err := c.ops(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	ops := "http://" + <-address
	if got := readyz(t, ops); got != "503 starting" {
		t.Error(got)
	}
	s := memory.New()
	n, err := node.Open(t.Context(), node.Config{Store: s, Runner: nobody{}})
	if err != nil {
		t.Fatal(err)
	}
	o.started(n)
	if got := readyz(t, ops); got != "200 ok" {
		t.Error(got)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Error(err)
	}
	_ = s.Close()
	if got := readyz(t, ops); got != "503 the store does not answer" {
		t.Error(got)
	}
	for path, want := range map[string]int{"/livez": 200, "/": 404, "/mcp": 404, "/metrics/x": 404} {
		if status, body := fetch(t, ops+path); status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if resp, err := http.Post(ops+"/metrics", "text/plain", nil); err != nil || resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %v %v", resp, err)
	} else {
		_ = resp.Body.Close()
	}
}

type nobody struct{ engine.Runner }

// The metrics of a stdio gateway, in front of a URL, which has no pool and no sessions.
func TestMetricsOverStdio(t *testing.T) {
	ours, theirs := mcp.NewInMemoryTransports()
	address := make(chan string, 1)
	ended := make(chan error, 1)
	c := Config{
		URL: exampleURL(t, nil), Stdio: theirs, Support: protocol.Optional, Store: "memory:",
		Metrics: "127.0.0.1:0", MetricsReady: func(a string) { address <- a },
	}
	go func() { ended <- Serve(context.Background(), c) }()
	ops := "http://" + <-address
	s, err := session.Connect(t.Context(), ours, nil)
	if err != nil {
		t.Fatal(err)
	}
	created, err := s.Call(t.Context(), "tools/call", json.RawMessage(`{"name":"greet","arguments":{"name":"Ada"},"task":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	id, _ := protocol.Unquote(protocol.Get(protocol.Get(created, "task"), "taskId"))
	if _, err := s.Call(t.Context(), "tasks/result", json.RawMessage(ref(id))); err != nil {
		t.Fatal(err)
	}
	got := scraped(t, ops)
	got.want(t, map[string]float64{`coatcheck_task_ended_total{coatcheck_task_status="completed",gen_ai_tool_name="greet"}`: 1})
	for _, absent := range []string{"coatcheck_pool_", "coatcheck_gateway_sessions"} {
		if strings.Contains(got.text, absent) {
			t.Errorf("%s is measured", absent)
		}
	}
	if got := readyz(t, ops); got != "200 ok" {
		t.Error(got)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
