package audit_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck/audit"
)

func openFile(t *testing.T, path string, opts *audit.FileOptions) *audit.FileSink {
	t.Helper()
	f, err := audit.File(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// files returns the files of an audit log, the current one last.
func files(t *testing.T, path string) []string {
	t.Helper()
	ext := filepath.Ext(path)
	old, err := filepath.Glob(strings.TrimSuffix(path, ext) + "-*" + ext)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(old)
	return append(old, path)
}

// tools returns the tools of all events in some files.
func tools(t *testing.T, paths ...string) (tools []string) {
	t.Helper()
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
			var ev struct{ Tool string }
			if err := json.Unmarshal(lines.Bytes(), &ev); err != nil {
				t.Fatalf("%s: %v: %s", path, err, lines.Text())
			}
			tools = append(tools, ev.Tool)
		}
	}
	return tools
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

// TestFileRotates writes from many goroutines, through many files. AUD-1
func TestFileRotates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	const writers, each, size = 16, 200, 4_000
	f := openFile(t, path, &audit.FileOptions{MaxSize: size, Keep: -1})
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				f.Record(t.Context(), audit.Event{Time: noon, Kind: audit.Created, Tool: fmt.Sprintf("%d-%d", w, i)})
			}
		})
	}
	all.Wait()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	paths := files(t, path)
	if len(paths) < writers*each*80/size {
		t.Errorf("only %d files", len(paths))
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > size || info.Mode() != 0o600 {
			t.Errorf("%s has %d bytes and mode %v", path, info.Size(), info.Mode())
		}
	}
	got := tools(t, paths...)
	last := make([]int, writers) // each writer's events are in order, over all files
	for _, tool := range got {
		var w, i int
		if _, err := fmt.Sscanf(tool, "%d-%d", &w, &i); err != nil || i != last[w] {
			t.Fatalf("%s after %d", tool, last[w])
		}
		last[w]++
	}
	if len(got) != writers*each {
		t.Errorf("%d events, want %d", len(got), writers*each)
	}
}

func TestFileKeepsSomeOldOnes(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	old := filepath.Join(dir, "audit-2020-01-01T00-00-00.000000000.log")
	others := []string{"audit-notes.log", "audit-2020-01-01T00-00-00.000000000.log.gz", "other-2020-01-01T00-00-00.000000000.log"}
	for _, name := range append(others, filepath.Base(old)) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// By age, when it opens.
	if err := openFile(t, path, &audit.FileOptions{MaxAge: time.Hour}).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("an old file is there")
	}
	// By number, as others come. A line that is longer than a file may be is written all the same.
	f := openFile(t, path, &audit.FileOptions{MaxSize: 1, Keep: 2})
	for i := range 10 {
		f.Record(t.Context(), audit.Event{Time: noon, Kind: audit.Created, Tool: fmt.Sprint(i)})
	}
	for _, name := range others {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Error("somebody else's file: ", err)
		}
	}
	if got := tools(t, files(t, path)...); !slices.Equal(got, []string{"7", "8", "9"}) {
		t.Errorf("the last events are %v", got)
	}
}

// TestFileGoesOn has a file that is there, with the start of a line and modes that are too wide.
func TestFileGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte("{\"tool\":\"a\"}\n{\"to"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	f := openFile(t, path, &audit.FileOptions{MaxSize: 120})
	f.Record(t.Context(), audit.Event{Time: noon, Kind: audit.Created, Tool: "b"})
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const event = `{"time":"2026-01-31T12:00:00.123Z","level":"INFO","msg":"created","tool":"b"}` + "\n"
	if want := "{\"tool\":\"a\"}\n{\"to\n" + event; string(got) != want {
		t.Errorf("the file is %q, want %q", got, want)
	}
	f.Record(t.Context(), audit.Event{Time: noon, Kind: audit.Created, Tool: "b"})
	for _, path := range files(t, path) { // it may be that a shipper is in the group
		if m := mode(t, path); m != 0o640 {
			t.Errorf("%s has mode %v, want 0640", path, m)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != event {
		t.Errorf("the new file is %q (%v), want %q", got, err, event)
	}
}

// TestFileIsMovedByOthers renames the file, as logrotate does, and has two sinks on it.
func TestFileIsMovedByOthers(t *testing.T) {
	dir := t.TempDir()
	path, moved := filepath.Join(dir, "audit.log"), filepath.Join(dir, "moved")
	a, b := openFile(t, path, nil), openFile(t, path, nil)
	a.Record(t.Context(), audit.Event{Tool: "first"})
	if err := os.Rename(path, moved); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*audit.FileSink{a, b} {
		there := func() bool { b, err := os.ReadFile(path); return err == nil && len(b) > 0 }
		n := 0
		for deadline := time.Now().Add(time.Minute); !there() && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			f.Record(t.Context(), audit.Event{Tool: "more"})
			n++
		}
		if got := len(tools(t, path)); got != 1 {
			t.Fatalf("the new file has %d events after %d", got, n)
		}
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
		if f == a {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := tools(t, moved); got[0] != "first" {
		t.Errorf("the file that was moved has %v", got)
	}
}

func TestFileSaysWhatItCannotWrite(t *testing.T) {
	var told bytes.Buffer
	opts := &audit.FileOptions{Log: audit.LogOptions{Logger: slog.New(slog.NewTextHandler(&told, nil))}}
	f := openFile(t, "/dev/full", opts) // no regular file: it is neither renamed nor changed
	for range 3 {
		f.Record(t.Context(), audit.Event{Kind: audit.Created, Tool: "secret"})
	}
	if got := told.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "count=1 ") || !strings.Contains(got, "no space left") {
		t.Error("told:", got)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got := told.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "count=2 ") || strings.Contains(got, "secret") {
		t.Error("told in all:", got)
	}

	path := filepath.Join(t.TempDir(), "audit.log")
	f = openFile(t, path, opts)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	told.Reset()
	f.Record(t.Context(), audit.Event{Kind: audit.Created})
	if !strings.Contains(told.String(), "file already closed") || len(tools(t, path)) != 0 {
		t.Error("after its end:", told.String())
	}
	if _, err := audit.File(t.TempDir(), nil); err == nil {
		t.Error("a folder was opened")
	}
	if _, err := audit.File(filepath.Join(t.TempDir(), "no", "folder"), nil); err == nil {
		t.Error("a file was opened in no folder")
	}
}

// TestFileThatCannotBePutAside has a folder where nothing can be renamed.
func TestFileThatCannotBePutAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, strings.Repeat("a", 240)) // with a time it is longer than a name may be
	var told bytes.Buffer
	f := openFile(t, path, &audit.FileOptions{MaxSize: 100, Log: audit.LogOptions{Logger: slog.New(slog.NewTextHandler(&told, nil))}})
	for i := range 5 {
		f.Record(t.Context(), audit.Event{Kind: audit.Created, Tool: fmt.Sprint(i)})
	}
	if got := tools(t, path); len(got) != 5 {
		t.Errorf("it has %v", got)
	}
	if got := told.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, syscall.ENAMETOOLONG.Error()) {
		t.Error("told:", got)
	}
}

func TestFileBehindALink(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "real.log"), filepath.Join(dir, "link.log")
	if err := os.Symlink("real.log", link); err != nil {
		t.Fatal(err)
	}
	f := openFile(t, link, &audit.FileOptions{MaxSize: 1})
	for i := range 3 {
		f.Record(t.Context(), audit.Event{Kind: audit.Created, Tool: fmt.Sprint(i)})
	}
	if got := tools(t, files(t, path)...); !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("the files have %v", got)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Error("the link is gone")
	}
}
