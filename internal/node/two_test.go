package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/node"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

const questions = 5

// asker asks one question after the other, says what it is at meanwhile, and returns what it
// was answered.
type asker struct{}

func (asker) Run(ctx context.Context, job *engine.Job) (task.Outcome, error) {
	done := make(chan struct{})
	var talking sync.WaitGroup
	talking.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
				_ = job.SetMessage(ctx, fmt.Sprint("message ", i)) // another process may be faster
			}
		}
	})
	defer talking.Wait()
	defer close(done)
	var all []json.RawMessage
	for range questions {
		answers := make(chan task.Outcome, 1)
		if _, err := job.Ask(protocol.MethodElicit, json.RawMessage(`{"message":"?"}`), func(a task.Outcome) { answers <- a }); err != nil {
			return task.Outcome{}, err
		}
		select {
		case a := <-answers:
			all = append(all, protocol.Get(protocol.Get(a.Result, "content"), "n"))
		case <-ctx.Done():
			return task.Outcome{}, ctx.Err()
		}
	}
	return task.Outcome{Result: protocol.Marshal(map[string]any{"content": []any{}, "all": all})}, nil
}

// Two processes on one file: the tasks of each are waited for and answered at the other, while
// their own process changes them all the time (C.11). Nothing is lost, nothing answered twice.
func TestAnswersByAnotherProcess(t *testing.T) {
	database := "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")
	var nodes [2]*node.Node
	for i := range nodes {
		n, err := node.Open(t.Context(), node.Config{Database: database, Runner: asker{}, Tools: receiver.Tools{Default: protocol.Optional}, Grace: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := n.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		nodes[i] = n
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			created, err := nodes[i%2].Engine.Create(ctx, engine.Creation{Caller: &engine.Caller{}, Request: task.Request{Method: protocol.MethodToolsCall}})
			if err != nil {
				t.Error(err)
				return
			}
			other := nodes[1-i%2].Engine
			a := other.Attend(created.ID, engine.Listener{})
			defer a.Close()
			for n := 1; ; {
				ev, final, err := a.Next(ctx)
				switch {
				case err != nil:
					t.Errorf("task %d, question %d: %v", i, n, err)
					return
				case final != nil:
					if want := `{"all":[1,2,3,4,5],"content":[]}`; final.Outcome == nil || string(final.Outcome.Result) != want {
						t.Errorf("task %d: %s %+v", i, final.Status, final.Outcome)
					}
					return
				case ev.Ask == "":
					continue
				}
				answer := fmt.Appendf(nil, `{"action":"accept","content":{"n":%d}}`, n)
				for range 2 { // twice: the second changes nothing
					if _, err := other.Answer(ctx, "", ev.Ask, task.Outcome{Result: answer}); err != nil && !errors.Is(err, task.ErrTerminal) {
						t.Errorf("task %d, question %d: %v", i, n, err)
					}
				}
				n++
			}
		})
	}
	work.Wait()
}
