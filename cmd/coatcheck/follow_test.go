package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/coatcheck/coatcheck/protocol"
)

// taskServer is a server with one task, which asks on each tasks/result until it is answered.
type taskServer struct {
	mu       sync.Mutex
	opened   int           // how many tasks/result came
	drops    int           // how many of them drop once they have asked
	refuse   bool          // tasks/result is refused while the task runs
	polls    int           // how many tasks/get came
	answers  []string      // the results that came
	answered chan struct{} // closed with the first of them
}

func (s *taskServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if req.Method != http.MethodPost || err != nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	m, err := protocol.ParseMessage(body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	reply := func(result string) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
	}
	switch m.Method {
	case protocol.MethodInitialize:
		w.Header().Set("Mcp-Session-Id", "s")
		reply(`{"protocolVersion":"2025-11-25","serverInfo":{"name":"one","version":"1"},"capabilities":{"tools":{},"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}}}`)
	case protocol.MethodToolsList:
		reply(`{"tools":[{"name":"t","inputSchema":{"type":"object"},"execution":{"taskSupport":"required"}}]}`)
	case protocol.MethodToolsCall:
		reply(`{"task":` + s.state() + `}`)
	case protocol.MethodTasksGet:
		s.mu.Lock()
		s.polls++
		s.mu.Unlock()
		reply(s.state())
	case protocol.MethodTasksResult:
		s.result(w, req, string(m.ID), reply)
	case "":
		s.mu.Lock()
		s.answers = append(s.answers, string(protocol.Get(body, "result")))
		if len(s.answers) == 1 {
			close(s.answered)
		}
		s.mu.Unlock()
		w.WriteHeader(http.StatusAccepted)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

// over reports whether the task is.
func (s *taskServer) over() bool {
	if s.refuse { // it ends by itself
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.polls > 2
	}
	select {
	case <-s.answered:
		return true
	default:
		return false
	}
}

func (s *taskServer) state() string {
	status := "input_required"
	if s.over() {
		status = "completed"
	}
	return `{"taskId":"one","status":"` + status + `","createdAt":"2025-11-25T08:00:00Z","lastUpdatedAt":"2025-11-25T08:00:00Z","ttl":null,"pollInterval":20}`
}

func (s *taskServer) result(w http.ResponseWriter, req *http.Request, id string, reply func(string)) {
	s.mu.Lock()
	s.opened++
	n := s.opened
	s.mu.Unlock()
	const done = `{"content":[{"type":"text","text":"done"}]}`
	switch {
	case s.over():
		reply(done)
		return
	case s.refuse:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"not yet"}}`, id)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "data: "+`{"jsonrpc":"2.0","id":"ask%d","method":"elicitation/create","params":{"message":"Go on?","requestedSchema":`+yesOrNo+"}}\n\n", n)
	_ = http.NewResponseController(w).Flush()
	if n <= s.drops {
		panic(http.ErrAbortHandler)
	}
	select {
	case <-s.answered:
		fmt.Fprintf(w, "data: "+`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n\n", id, done)
	case <-req.Context().Done():
	}
}

// runs runs a command line of coatcheck in this process.
func runs(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	dir := t.TempDir()
	open := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	std := streams{open("in"), open("out"), open("err")}
	code = run(args, std)
	read := func(f *os.File) string {
		text, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	return code, read(std.out), read(std.err)
}

func answerFile(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "answer.json")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// GET-5, C.7: a stream that drops is opened again, and the question is asked there again.
func TestStreamDrops(t *testing.T) {
	s := &taskServer{drops: 1, answered: make(chan struct{})}
	server := httptest.NewServer(s)
	defer server.Close()
	code, out, errs := runs(t, "tasks", "watch", server.URL, "one", "--answer", answerFile(t, `{"sure":true}`))
	if code != codeDone || out != "done\n" {
		t.Errorf("exit code %d, stdout %q, stderr:\n%s", code, out, errs)
	}
	if !strings.Contains(errs, "Question from "+server.URL+" (one):\n  Go on?\n") {
		t.Errorf("stderr:\n%s", errs)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, answer := range s.answers {
		if answer != `{"action":"accept","content":{"sure":true}}` {
			t.Errorf("answered %s", answer)
		}
	}
}

// GET-3: a server that refuses tasks/result while the task runs is polled.
func TestResultRefused(t *testing.T) {
	s := &taskServer{refuse: true, answered: make(chan struct{})}
	server := httptest.NewServer(s)
	defer server.Close()
	code, out, errs := runs(t, "call", "--json", server.URL, "t")
	if code != codeDone || !json.Valid([]byte(out)) || !strings.Contains(out, "done") {
		t.Errorf("exit code %d, stdout %q, stderr:\n%s", code, out, errs)
	}
}
