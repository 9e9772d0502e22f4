package peers

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A host that ends a stdio session kills the gateway when it is not gone after some seconds. By
// then the store must say that a call with a ticket was interrupted, or its ticket would say that it
// runs until the lease is over. So that comes first: the server, which does not end with its input,
// is still there when another process tells of it (promise 1).
func TestInterruptedIsRecordedBeforeTheServerEnds(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	gateway := through(t, "stdio", commandsServer(t), "--patience", "500ms")
	other := connectMCPGo(t, gateway)
	first := exec.Command(gateway.Command, gateway.Args...)
	stdin, err := first.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	first.Stderr = &stderr
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	hung := time.AfterFunc(patience, func() { _ = first.Process.Kill() })
	defer hung.Stop()
	defer stdin.Close()

	call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_command","arguments":` +
		encode(t, map[string]any{"command": "echo $PPID >'" + file + "'; exec sleep 600"}) + `}}`
	lines := bufio.NewReader(stdout)
	var answer struct{ Result map[string]any }
	for _, message := range []string{rawInitialize, rawInitialized, call} {
		if _, err := io.WriteString(stdin, message+"\n"); err != nil {
			t.Fatal(err)
		}
		if message == rawInitialized {
			continue
		}
		line, err := lines.ReadBytes('\n')
		if err != nil {
			t.Fatalf("%v\n%s", err, &stderr)
		}
		if err := json.Unmarshal(line, &answer); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
	}
	collect := checkTicket(t, outcome{Value: answer.Result})
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	server, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}

	stdin.Close()
	answers := follow(t, other.plain, collect)
	if err := syscall.Kill(server, 0); err != nil {
		t.Errorf("the server when its call counts as interrupted: %v", err)
	}
	if last := answers[len(answers)-1]; ticketMeta(last)["status"] != "interrupted" {
		t.Errorf("collected: %s", encode(t, last))
	}
	if _, err := io.Copy(io.Discard, lines); err != nil {
		t.Error(err)
	}
	if err := first.Wait(); err != nil {
		t.Errorf("%v\n%s", err, &stderr)
	}
	if err := syscall.Kill(server, 0); err != syscall.ESRCH {
		t.Errorf("the server once the gateway has ended: %v", err)
	}
}
