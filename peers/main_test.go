package peers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

// patience bounds every wait. It is generous because a slow machine is no failure; nothing
// waits this long unless something is broken.
const patience = 90 * time.Second

var (
	binary     string // the coatcheck under test
	raceFlags  []string
	everything = filepath.Join("node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js")
	driver     = filepath.Join("ts", "drive.mjs")
)

func TestMain(m *testing.M) {
	dir, err := setUp()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer os.RemoveAll(dir)
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// setUp builds the binary into a directory of its own, which it returns, and makes sure that
// what the tests need is there.
func setUp() (dir string, err error) {
	for _, path := range []string{
		everything,
		filepath.Join("node_modules", "@modelcontextprotocol", "sdk", "package.json"),
		filepath.Join("node_modules", "@modelcontextprotocol", "inspector-cli", "package.json"),
		filepath.Join("node_modules", "gpt-tokenizer", "package.json"),
		filepath.Join("node_modules", "mcp-server-commands", "package.json"),
	} {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%w; run: make peers", err)
		}
	}
	if out, err := exec.Command("node", "--version").CombinedOutput(); err != nil {
		return "", fmt.Errorf("node does not run (%w) %s; install Node.js 20 or later, with Debian: apt-get install nodejs npm", err, out)
	}
	if everything, err = filepath.Abs(everything); err != nil {
		return "", err
	}
	if dir, err = os.MkdirTemp("", "coatcheck-peers"); err != nil {
		return "", err
	}
	binary = filepath.Join(dir, "coatcheck")
	args := append([]string{"build", "-buildvcs=false"}, raceFlags...)
	build := exec.Command("go", append(args, "-o", binary, "./cmd/coatcheck")...)
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		os.RemoveAll(dir)
		return "", fmt.Errorf("go build ./cmd/coatcheck: %w\n%s", err, out)
	}
	return dir, nil
}

// equal compares two values as the JSON they encode to.
func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	x, y := generic(t, want), generic(t, got)
	if !cmp.Equal(x, y) { // cmp.Diff takes seconds over megabytes even when there is none
		t.Errorf("%s (-want +got):\n%s", what, cmp.Diff(x, y))
	}
}

// generic turns a value into what encoding/json makes of its encoding, with numbers as they
// were written.
func generic(t *testing.T, value any) any {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var out any
	if err := decoder.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}
