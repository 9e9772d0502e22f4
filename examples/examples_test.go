package examples_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// build builds a program of this module and returns its path.
func build(t *testing.T, dir, pkg string) string {
	t.Helper()
	bin := filepath.Join(dir, filepath.Base(pkg)+".test")
	if out, err := exec.Command("go", "build", "-o", bin, pkg).CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", pkg, err, out)
	}
	return bin
}

// process is a program that runs.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Reader // of stdout and stderr
}

func start(t *testing.T, dir, bin string, args ...string) *process {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(bin, args...), lines: bufio.NewReader(r)}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, w, w
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	_ = r.SetReadDeadline(time.Now().Add(time.Minute))
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		_ = r.Close()
	})
	return p
}

// see reads up to a line that matches, and returns what the first group does.
func (p *process) see(pattern string) string {
	p.t.Helper()
	want := regexp.MustCompile(pattern)
	var seen strings.Builder
	for {
		line, err := p.lines.ReadString('\n')
		seen.WriteString(line)
		if m := want.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
			return m[len(m)-1]
		}
		if err != nil {
			p.t.Fatalf("no %q: %v after\n%s", pattern, err, &seen)
		}
	}
}

// rest reads to the end, which must be a good one.
func (p *process) rest() string {
	p.t.Helper()
	out, err := io.ReadAll(p.lines)
	if err == nil {
		err = p.cmd.Wait()
	}
	if err != nil {
		p.t.Fatalf("%v after\n%s", err, out)
	}
	return string(out)
}

// AUD-3: the host is killed while its tools run, and collects what it called when it is
// started again.
func TestHost(t *testing.T) {
	dir := t.TempDir()
	coatcheck, host := build(t, dir, "../cmd/coatcheck"), build(t, dir, "./host")
	gateway := start(t, dir, coatcheck, "gateway", "--single-user", "--listen", "127.0.0.1:0", "--", coatcheck, "example-server")
	endpoint := gateway.see(`listening on (\S+)`)

	first := start(t, dir, host, "-seconds", "2", endpoint)
	first.see("^0 tasks of an earlier run$")
	for range 3 {
		first.see("^called: task ")
	}
	first.see("^working: ")
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.cmd.Wait()

	second := start(t, dir, host, endpoint)
	second.see("^3 tasks of an earlier run$")
	out := second.rest()
	for i := range 3 {
		if want := fmt.Sprintf("job %d: done after", i+1); !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if ledger, err := os.ReadFile(filepath.Join(dir, "host.ledger")); err != nil || bytes.Count(ledger, []byte(`{"remove"`)) != 3 {
		t.Errorf("%v, the ledger is\n%s", err, ledger)
	}
}

// The user answers on the page what a server of another maker asks as a task.
func TestApprover(t *testing.T) {
	everything, err := filepath.Abs("../peers/node_modules/@modelcontextprotocol/server-everything/dist/index.js")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(everything); err != nil {
		t.Fatal("server-everything is not installed; run: make peers")
	}
	dir := t.TempDir()
	approver := build(t, dir, "./approver")
	for _, c := range []struct{ action, want string }{
		{"accept", "- Name: Zoë\n- Agreed to terms: true"},
		{"decline", "[DECLINED]"},
	} {
		t.Run(c.action, func(t *testing.T) {
			p := start(t, dir, approver, "-http", "127.0.0.1:0", "trigger-elicitation-request-async", "node", everything, "stdio")
			base := p.see(`^answer at (\S+)/$`)
			var form string
			deadline := time.Now().Add(time.Minute)
			for !strings.Contains(form, "/"+c.action) {
				if time.Now().After(deadline) {
					t.Fatalf("the page stays\n%s", form)
				}
				_, form = request(t, http.MethodGet, base, "", nil)
			}
			if !strings.Contains(form, "Please provide inputs") || !strings.Contains(form, `Your Name <input name="name">`) {
				t.Errorf("the page is\n%s", form)
			}
			path := regexp.MustCompile(`formaction="(/\w+/` + c.action + `)"`).FindStringSubmatch(form)[1]
			answer := url.Values{"name": {"Zoë"}, "agreeToTerms": {"on"}}
			// Other sites' pages, and names, lead nowhere.
			if code, _ := request(t, http.MethodPost, base+path, "", answer, "Origin", "http://evil.example"); code != http.StatusForbidden {
				t.Errorf("another site's answer: %d", code)
			}
			if code, _ := request(t, http.MethodGet, base, "evil.example:80", nil); code != http.StatusForbidden {
				t.Errorf("by another name: %d", code)
			}
			if code, body := request(t, http.MethodPost, base+path, "", answer); code != http.StatusOK || !strings.Contains(body, "Nothing to answer.") {
				t.Errorf("answered with %d\n%s", code, body)
			}
			if out := p.rest(); !strings.Contains(out, c.want) || !strings.Contains(out, "Task created: ") {
				t.Errorf("got\n%s", out)
			}
		})
	}
}

func request(t *testing.T, method, address, host string, form url.Values, header ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Host, req.Close = host, true
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}
