//go:build unix

package upstream

import (
	"encoding/json"
	"testing"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// asked is a requestor that answers elicitations once it was asked something else, which it
// leaves open.
type asked struct {
	engine.Line
	open      chan struct{} // closed by the other question
	withdrawn chan struct{} // closed by its withdrawal
}

func newAsked() *asked { return &asked{open: make(chan struct{}), withdrawn: make(chan struct{})} }

func (a *asked) Ask(method string, _ json.RawMessage, reply func(task.Outcome)) (func(), error) {
	if method != protocol.MethodElicit {
		close(a.open)
		return func() { close(a.withdrawn) }, nil
	}
	go func() {
		<-a.open
		reply(task.Outcome{Result: json.RawMessage(`{"action":"accept","content":{}}`)})
	}()
	return func() {}, nil
}

// A question that is open when its task is over is withdrawn, and the server is answered.
func TestQuestionOfTaskThatIsOver(t *testing.T) {
	line := newAsked()
	over := make(chan struct{})
	answer := ask(t.Context(), over, line, protocol.MethodListRoots, nil)
	close(over)
	if _, err := answer(); err == nil || err.Code != protocol.CodeRequestCancelled {
		t.Errorf("error %v", err)
	}
	<-line.withdrawn
}

// A process that still asks something when its call is answered is not used again.
func TestForgottenQuestion(t *testing.T) {
	p := newProcesses(t, 1)
	run := func(tool string) string {
		job, _ := newJob(tool)
		line := newAsked()
		job.Line = line
		job.Caller = &engine.Caller{Identified: true, Initialize: []byte(`{"capabilities":{"elicitation":{},"roots":{}}}`)}
		outcome, err := p.Run(t.Context(), job)
		if err != nil || outcome.Error != nil {
			t.Fatalf("%s: %s, %v", tool, outcome.Error, err)
		}
		if tool == "forget" {
			<-line.withdrawn
		}
		return textOf(outcome.Result)
	}
	if forgot, next := run("forget"), run("pid"); forgot == next {
		t.Errorf("process %s is used again", next)
	}
	if kept := run("pid"); kept != run("pid") {
		t.Error("a process that asks nothing is not kept")
	}
}

// One whose questions were answered is.
func TestProcessThatAskedIsKept(t *testing.T) {
	p := newProcesses(t, 1)
	var first *process
	for range 20 {
		job, _ := newJob("elicit")
		job.Line.(*line).answer = func(string, json.RawMessage) (task.Outcome, error) {
			return task.Outcome{Result: json.RawMessage(`{"action":"decline"}`)}, nil
		}
		job.Caller = &engine.Caller{Identified: true, Initialize: []byte(`{"capabilities":{"elicitation":{}}}`)}
		if outcome, err := p.Run(t.Context(), job); err != nil || textOf(outcome.Result) != "decline" {
			t.Fatalf("%s %s, %v", outcome.Result, outcome.Error, err)
		}
		if first == nil {
			first = p.idle[0]
		}
	}
	if len(p.idle) != 1 || p.idle[0] != first {
		t.Error("the process was replaced")
	}
}
