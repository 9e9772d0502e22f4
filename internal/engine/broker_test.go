package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store/memory"
	"github.com/coatcheck/coatcheck/task"
)

// lines hands out the Line of each job, whose work goes on until it is stopped.
type lines chan *Job

func (jobs lines) Run(ctx context.Context, job *Job) (task.Outcome, error) {
	jobs <- job
	<-ctx.Done()
	return task.Outcome{}, ctx.Err()
}

const anyNumber = `{"message":"?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}}`

// brokerModel is what must be true of one task's questions.
type brokerModel struct {
	engine *Engine
	store  *memory.Store
	ref    task.Ref
	line   Line

	asked    int
	open     map[string]bool
	given    map[string]string   // the answer that was accepted, by key
	replies  map[string][]string // what the tool got
	withdraw map[string]func()
	streams  []*modelStream
	ids      []string // under which something was asked
}

type modelStream struct {
	attendance *Attendance
	has        map[string]string // the questions out on it: id by key
}

func (m *brokerModel) ask(t *rapid.T) {
	m.asked++
	key := fmt.Sprint(m.asked)
	withdraw, err := m.line.Ask(protocol.MethodElicit, []byte(anyNumber), func(o task.Outcome) {
		m.replies[key] = append(m.replies[key], string(o.Result))
	})
	if err != nil {
		t.Fatal(err)
	}
	m.open[key], m.withdraw[key] = true, withdraw
}

func (m *brokerModel) take(t *rapid.T, s *modelStream) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for {
		ev, final, err := s.attendance.Next(over)
		switch {
		case errors.Is(err, context.Canceled):
			return
		case err != nil || final != nil:
			t.Fatalf("ended: %v, %v", final, err)
		case ev.Ask != "":
			q, _ := parseAskID(ev.Ask)
			if slices.Contains(m.ids, ev.Ask) {
				t.Fatalf("id %s came twice", ev.Ask)
			}
			m.ids = append(m.ids, ev.Ask)
			s.has[q.key] = ev.Ask
		case ev.Method == protocol.MethodCancelled:
			id, _ := protocol.Unquote(protocol.Get(ev.Params, "requestId"))
			q, _ := parseAskID(id)
			if s.has[q.key] != id || m.open[q.key] {
				t.Fatalf("taken back %s, which is open %t", id, m.open[q.key])
			}
			delete(s.has, q.key)
		}
	}
}

func (m *brokerModel) check(t *rapid.T) {
	at, err := m.store.Load(context.Background(), m.ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.store.Check(context.Background()); err != nil {
		t.Fatal(err)
	}
	want := task.Working
	for _, open := range m.open {
		if open {
			want = task.InputRequired // INP-1
		}
	}
	shown, err := m.engine.Get(context.Background(), m.ref)
	if err != nil || shown.Status != want || at.Status != want {
		t.Fatalf("status %v, stored %s, want %s: %v", shown, at.Status, want, err)
	}
	for _, input := range at.Inputs {
		switch given := m.given[input.Key]; {
		case m.open[input.Key] != (input.Answer == nil):
			t.Fatalf("question %s is open %t, stored %+v", input.Key, m.open[input.Key], input)
		case given != "" && (string(input.Answer.Result) != given || !slices.Equal(m.replies[input.Key], []string{given})):
			t.Fatalf("question %s was answered %s, stored %s, the tool got %q", input.Key, given, input.Answer.Result, m.replies[input.Key])
		case given == "" && len(m.replies[input.Key]) != 0:
			t.Fatalf("question %s: the tool got %q", input.Key, m.replies[input.Key])
		}
	}
}

// TestBroker is C.7: whatever streams come and go, whatever is answered rightly, wrongly,
// twice or late, and whatever is withdrawn, each question has one answer, stored before the
// tool has it, and is out on some stream as long as it has none and there is one.
func TestBroker(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		jobs := make(lines, 1)
		s := memory.New()
		e, err := New(context.Background(), Options{Store: s, Runner: jobs})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			if err := e.Shutdown(ended); err != nil {
				t.Fatal(err)
			}
		}()
		created, err := e.Create(context.Background(), Creation{Caller: &Caller{Principal: "p"}})
		if err != nil {
			t.Fatal(err)
		}
		m := &brokerModel{
			engine: e, store: s, ref: created.Ref, line: (<-jobs).Line,
			open: map[string]bool{}, given: map[string]string{}, replies: map[string][]string{}, withdraw: map[string]func(){},
		}
		stream := func(t *rapid.T) (int, *modelStream) {
			if len(m.streams) == 0 {
				t.Skip()
			}
			i := rapid.IntRange(0, len(m.streams)-1).Draw(t, "stream")
			return i, m.streams[i]
		}
		defer func() {
			for _, s := range m.streams {
				s.attendance.Close()
			}
		}()
		answer := func(t *rapid.T, result string) {
			if len(m.ids) == 0 {
				t.Skip()
			}
			id := rapid.SampledFrom(m.ids).Draw(t, "id")
			q, _ := parseAskID(id)
			_, err := e.Answer(context.Background(), "p", id, task.Outcome{Result: []byte(result)})
			wrong := strings.Contains(result, "wrong")
			_, refused := errors.AsType[*protocol.Error](err)
			if refused != (wrong && m.open[q.key]) || err != nil && !refused {
				t.Fatalf("answer %s to %s: %v", result, id, err)
			}
			if !wrong && m.open[q.key] {
				m.open[q.key], m.given[q.key] = false, result
				for _, s := range m.streams {
					if s.has[q.key] == id {
						delete(s.has, q.key)
					}
				}
			}
		}
		n := 0
		t.Repeat(map[string]func(*rapid.T){
			"":    m.check,
			"ask": func(t *rapid.T) { m.ask(t) },
			"open": func(t *rapid.T) {
				s := &modelStream{e.Attend(m.ref.ID, Listener{Principal: "p", Session: rapid.SampledFrom([]string{"", "s"}).Draw(t, "session")}), map[string]string{}}
				m.streams = append(m.streams, s)
				m.take(t, s)
				for key, open := range m.open {
					if open && s.has[key] == "" {
						t.Fatalf("question %s is not asked on a new stream", key)
					}
				}
			},
			"take": func(t *rapid.T) {
				_, s := stream(t)
				m.take(t, s)
			},
			"drop": func(t *rapid.T) {
				i, s := stream(t)
				s.attendance.Close()
				m.streams = slices.Delete(m.streams, i, i+1)
			},
			"answer": func(t *rapid.T) {
				n++
				answer(t, fmt.Sprintf(`{"action":"accept","content":{"n":%d}}`, n))
			},
			"answer wrongly": func(t *rapid.T) { answer(t, `{"action":"accept","content":{"n":"wrong"}}`) },
			"withdraw": func(t *rapid.T) {
				if m.asked == 0 {
					t.Skip()
				}
				key := fmt.Sprint(rapid.IntRange(1, m.asked).Draw(t, "key"))
				m.withdraw[key]()
				m.open[key] = false
			},
		})
		for _, s := range m.streams {
			m.take(t, s)
		}
		for key, open := range m.open {
			out := slices.ContainsFunc(m.streams, func(s *modelStream) bool { return s.has[key] != "" })
			if open && len(m.streams) > 0 && !out {
				t.Fatalf("question %s is out nowhere", key)
			}
		}
	})
}
