package node_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store/sqlite"
	"github.com/coatcheck/coatcheck/task"
)

const question = `{"message":"How many?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer"}}},"odd":1.50}`

const given = `{"action":"accept","content":{"n":3},"odd":1.50}`

// ask asks twice, and returns what it was answered. It never gets to the second answer here.
func ask(ctx context.Context, job *engine.Job) (task.Outcome, error) {
	answers := make(chan task.Outcome, 1)
	for range 2 {
		_, err := job.Ask(protocol.MethodElicit, json.RawMessage(question), func(a task.Outcome) { answers <- a })
		if err != nil {
			return task.Outcome{}, err
		}
		select {
		case <-answers:
		case <-ctx.Done():
			return task.Outcome{}, ctx.Err()
		}
	}
	return task.Outcome{}, errors.New("not reached")
}

// server is a process that is killed.
type server struct {
	cmd *exec.Cmd
	client
}

func startServer(t *testing.T, database string) server {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashServer+"="+database)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal("the server did not start:", err)
	}
	web := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(web.CloseIdleConnections)
	return server{cmd, client{"http://" + strings.TrimSpace(address), web}}
}

func (s server) kill(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.cmd.Wait()
}

// asked opens tasks/result and returns the id of the first question on it.
func (s server) asked(t *testing.T, id string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url,
		strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tasks/result","params":{"taskId":"`+id+`"}}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := s.web.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal("no question:", err)
		}
		data, _ := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if m, err := protocol.ParseMessage([]byte(data)); err == nil && m.Method == protocol.MethodElicit {
			ask, _ := protocol.Unquote(m.ID)
			return ask
		}
	}
}

// answer posts an answer, and returns the status and body of what it is answered.
func (s server) answer(t *testing.T, ask string) (int, string) {
	t.Helper()
	resp, err := s.web.Post(s.url, "application/json", strings.NewReader(`{"jsonrpc":"2.0","id":"`+ask+`","result":`+given+`}`))
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

// TestKillWithAQuestionOpen is the restart test (C.7): the process is killed while a question
// is open, and right after an answer was acknowledged. Both are in the store afterwards. The
// task says that its process is gone, and so does what comes too late.
func TestKillWithAQuestionOpen(t *testing.T) {
	for _, answered := range []bool{false, true} {
		t.Run(fmt.Sprintf("answered %t", answered), func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "tasks.db")
			first := startServer(t, "sqlite:"+file)
			result, fault, err := first.call("tools/call", `{"name":"ask","arguments":{},"task":{}}`)
			if err != nil || fault != nil {
				t.Fatal(err, string(fault))
			}
			id, _ := protocol.Unquote(protocol.Get(protocol.Get(result, "task"), "taskId"))
			ask := first.asked(t, id)
			if answered {
				if status, body := first.answer(t, ask); status != http.StatusAccepted {
					t.Fatal(status, body)
				}
			}
			first.kill(t)

			ref := task.Ref{ID: id}
			stored := func() *task.Task {
				t.Helper()
				s, err := sqlite.Open(t.Context(), file, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				at, err := s.Load(t.Context(), ref)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Check(t.Context()); err != nil {
					t.Error(err)
				}
				return at
			}
			check := func(at *task.Task) {
				t.Helper()
				if len(at.Inputs) == 0 || string(at.Inputs[0].Params) != question || at.Inputs[0].Method != protocol.MethodElicit {
					t.Fatalf("stored %+v", at.Inputs)
				}
				answer := at.Inputs[0].Answer
				if answered != (answer != nil) || answered && string(answer.Result) != given {
					t.Errorf("stored answer %+v", answer)
				}
			}
			check(stored())

			second := startServer(t, "sqlite:"+file)
			defer second.kill(t)
			_, fault, err = second.call("tasks/result", `{"taskId":"`+id+`"}`) // waits for the dead process's lease
			if message, _ := protocol.Unquote(protocol.Get(fault, "message")); err != nil || !strings.Contains(message, "stopped before the task finished") {
				t.Errorf("result: %s, %v", fault, err)
			}
			result, _, err = second.call("tasks/get", `{"taskId":"`+id+`"}`)
			if err != nil || string(protocol.Get(result, "status")) != `"failed"` {
				t.Errorf("get: %s, %v", result, err)
			}
			// The first question, if it is open still, or one that was never sent.
			status, body := second.answer(t, strings.Replace(ask, "/1/", "/2/", 1))
			if !answered {
				status, body = second.answer(t, ask)
			}
			if status != http.StatusBadRequest || !strings.Contains(body, "too late: the task is in terminal status 'failed': The server stopped") {
				t.Errorf("a late answer: %d %s", status, body)
			}
			if answered { // the same answer again is fine
				if status, body := second.answer(t, ask); status != http.StatusAccepted {
					t.Errorf("the answer again: %d %s", status, body)
				}
			}
			at := stored()
			check(at)
			if at.Status != task.Failed {
				t.Errorf("status %s", at.Status)
			}
			if open := at.Inputs[len(at.Inputs)-1]; !answered && open.Answer != nil {
				t.Errorf("the open question has an answer: %+v", open)
			}
		})
	}
}
