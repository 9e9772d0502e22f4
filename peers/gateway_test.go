package peers

import (
	"bufio"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// target says how a client reaches a server: by URL, or by a command that speaks on stdin and
// stdout.
type target struct {
	URL     string   `json:"url,omitempty"`
	Command string   `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
}

// argument is the target as the SERVER of coatcheck's commands.
func (s target) argument() []string {
	if s.URL != "" {
		return []string{s.URL}
	}
	return []string{"--stdio", strings.Join(append([]string{s.Command}, s.Args...), " ")}
}

var (
	exampleServer    = func() target { return target{Command: binary, Args: []string{"example-server"}} }
	everythingServer = func() target { return target{Command: "node", Args: []string{everything}} }
)

// gatewayArgs are the arguments of a gateway with a store of its own in front of an upstream.
func gatewayArgs(store string, upstream target, flags ...string) []string {
	args := append([]string{"gateway", "--store", "sqlite:" + store, "--poll-interval", "50ms"}, flags...)
	if upstream.URL != "" {
		return append(args, upstream.URL)
	}
	return append(append(args, "--", upstream.Command), upstream.Args...)
}

// gateway is a running coatcheck gateway that listens on HTTP.
type gateway struct {
	target
	*process
}

// startGateway starts a gateway on a free port, for one user so that it can list tasks, and
// waits until it is ready. It ends with the test.
func startGateway(t *testing.T, store string, upstream target) gateway {
	t.Helper()
	return startGatewayWith(t, store, upstream, "--single-user")
}

// startGatewayWith is startGateway with the flags given.
func startGatewayWith(t *testing.T, store string, upstream target, flags ...string) gateway {
	t.Helper()
	p := start(t, nil, binary, gatewayArgs(store, upstream, append([]string{"--listen", "127.0.0.1:0"}, flags...)...)...)
	const ready = "listening on "
	line := p.waitForLine(t, ready)
	_, url, _ := strings.Cut(line, ready)
	return gateway{target{URL: url}, p}
}

// overEach runs a test against a gateway in front of the upstream, over HTTP and over stdio.
func overEach(t *testing.T, upstream func() target, test func(t *testing.T, server target), flags ...string) {
	t.Helper()
	t.Run("http", func(t *testing.T) {
		t.Parallel()
		test(t, startGatewayWith(t, filepath.Join(t.TempDir(), "tasks.db"), upstream(), append([]string{"--single-user"}, flags...)...).target)
	})
	t.Run("stdio", func(t *testing.T) {
		t.Parallel()
		store := filepath.Join(t.TempDir(), "tasks.db")
		test(t, target{Command: binary, Args: gatewayArgs(store, upstream(), append([]string{"--stdio"}, flags...)...)})
	})
}

// startEverything starts server-everything over Streamable HTTP.
func startEverything(t *testing.T) target {
	t.Helper()
	// The server cannot be asked to take any free port and say which, so one is found for it.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	listener.Close()
	p := start(t, []string{"PORT=" + port}, "node", everything, "streamableHttp")
	p.waitForLine(t, "listening on port")
	return target{URL: "http://127.0.0.1:" + port + "/mcp"}
}

// process is a running program whose stderr is collected line by line.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once the program is gone and its stderr read
	err    error         // how it ended; to be read after exited

	mu    sync.Mutex
	lines []string
	more  chan struct{} // closed and replaced whenever a line came
}

// start runs a program until the test ends. It is then asked to end with SIGTERM, and killed
// if it does not.
func start(t *testing.T, env []string, name string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(name, args...), exited: make(chan struct{}), more: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.collect(stderr)
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails when it is gone already, which is fine
		select {
		case <-p.exited:
		case <-time.After(patience):
			t.Errorf("%s %s did not end after SIGTERM", name, strings.Join(args, " "))
			p.kill()
		}
		stderr := p.stderr()
		if t.Failed() {
			t.Logf("stderr of %s %s:\n%s", name, strings.Join(args, " "), stderr)
		}
		if strings.Contains(stderr, "DATA RACE") {
			t.Errorf("data race in %s %s:\n%s", name, strings.Join(args, " "), stderr)
		}
	})
	return p
}

func (p *process) collect(stderr io.Reader) {
	scanner := bufio.NewScanner(stderr)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		p.mu.Lock()
		p.lines = append(p.lines, scanner.Text())
		close(p.more)
		p.more = make(chan struct{})
		p.mu.Unlock()
	}
	_, _ = io.Copy(io.Discard, stderr) // after a line that is too long
	p.err = p.cmd.Wait()
	close(p.exited)
}

// waitForLine returns the first line of stderr that contains the text.
func (p *process) waitForLine(t *testing.T, text string) string {
	t.Helper()
	deadline := time.After(patience)
	for {
		p.mu.Lock()
		lines, more := p.lines, p.more
		p.mu.Unlock()
		for _, line := range lines {
			if strings.Contains(line, text) {
				return line
			}
		}
		select {
		case <-more:
		case <-p.exited:
			t.Fatalf("%s ended (%v) before it said %q:\n%s", p.cmd, p.err, text, p.stderr())
		case <-deadline:
			t.Fatalf("%s did not say %q:\n%s", p.cmd, text, p.stderr())
		}
	}
}

// kill ends the process as kill -9 does and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails when it is gone already, which is fine
	<-p.exited
}

func (p *process) stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}
