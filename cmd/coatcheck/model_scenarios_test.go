package main

import (
	"cmp"
	"context"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestModel: a model that does only what the texts of tickets say comes to the end of every call,
// over both faces of the gateway.
func TestModel(t *testing.T) {
	t.Parallel()
	for name, play := range map[string]func(t *testing.T, face string){
		"slow":                  playSlow,
		"very slow":             playVerySlow,
		"tool error":            playToolError,
		"protocol error":        playProtocolError,
		"question":              playQuestion,
		"question stays open":   playOpenQuestion,
		"question elsewhere":    playQuestionElsewhere,
		"mistyped ticket":       playMistyped,
		"misremembered ticket":  playMisremembered,
		"expired":               playExpired,
		"interrupted":           playInterrupted,
		"cancelled":             playCancelled,
		"cancelled too late":    playCancelledLate,
		"lost reply":            playLostReply,
		"server's own ticket_*": playPrefixed,
	} {
		for _, face := range []string{"http", "stdio"} {
			t.Run(name+"/"+face, func(t *testing.T) {
				t.Parallel()
				play(t, face)
			})
		}
	}
}

// soon has calls of a tool answered with a ticket at once, as one reckons in tests. To collect its
// result takes no more than one call, on a slow machine too.
func soon(tool string) []string { return []string{"--tool=" + tool + "=ticket:300ms"} }

// calls checks how many calls the model made.
func (s *stage) calls(m *model, want int) {
	s.t.Helper()
	if len(m.heard) != want {
		s.t.Errorf("%d calls, want %d: %q", len(m.heard), want, m.heard)
	}
}

// said checks what the model heard from its nth call.
func (s *stage) said(m *model, n int, want ...string) {
	s.t.Helper()
	for _, w := range want {
		if len(m.heard) < n || !strings.Contains(m.heard[n-1], w) {
			s.t.Errorf("call %d should have said %q: %q", n, w, m.heard)
		}
	}
}

func playSlow(t *testing.T, face string) {
	s := onStage(t, face, staging{gateway: []string{"--tool=slow_compute=ticket:200ms"}})
	m := s.model()
	s.ask(m, "slow_compute", map[string]any{"seconds": 1, "label": "mine"})
	s.calls(m, 2)
	s.worked("slow_compute", 1, 1)
}

var stepTold = regexp.MustCompile(`Its last progress: "\d+/12: mine: step (\d+) of 12"`)

// What the texts say of progress grows.
func playVerySlow(t *testing.T, face string) {
	s := onStage(t, face, staging{gateway: []string{"--patience=600ms"}})
	m := s.model()
	s.ask(m, "slow_compute", map[string]any{"seconds": 3, "label": "mine"})
	s.worked("slow_compute", 1, 1)
	tickets := m.heard[:len(m.heard)-1]
	if len(tickets) < 3 {
		t.Errorf("%d tickets, want more: %q", len(tickets), m.heard)
	}
	first, last := 0, 0
	for _, text := range tickets {
		told := stepTold.FindStringSubmatch(text)
		if told == nil { // it has done none yet
			continue
		}
		step, err := strconv.Atoi(told[1])
		if err != nil || step < last {
			t.Errorf("step %s after %d: %q", told[1], last, m.heard)
		}
		first, last = cmp.Or(first, step), step
	}
	if last <= first {
		t.Errorf("steps %d to %d: %q", first, last, m.heard)
	}
}

func playToolError(t *testing.T, face string)     { playError(t, face, "failing_job") }
func playProtocolError(t *testing.T, face string) { playError(t, face, "protocol_error_job") }

func playError(t *testing.T, face, tool string) {
	s := onStage(t, face, staging{gateway: soon(tool), server: []string{"hold=" + tool}})
	m := s.model()
	m.after = func(int) { s.release(t, tool) }
	s.ask(m, tool, map[string]any{})
	s.calls(m, 2)
	s.worked(tool, 1, 1)
}

// user answers questions, but not the first ones, and only once it has time.
type user struct {
	ignores int32
	free    chan struct{}
	asked   atomic.Int32
	end     <-chan struct{} // of the test
}

func (u *user) answer(ctx context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	free := u.free
	if u.asked.Add(1) <= u.ignores {
		free = nil
	}
	select {
	case <-free:
		return accept(ctx, req)
	case <-ctx.Done():
	case <-u.end:
	}
	return nil, errors.New("nobody answers")
}

// The user answers while the tool that collects waits.
func playQuestion(t *testing.T, face string) { playAsked(t, face, 1, face == "http") }

// The user answers late: the question stays open from one collect to the next (INP-5).
func playOpenQuestion(t *testing.T, face string) { playAsked(t, face, 3, face == "http") }

// The same with the other kind of server behind each face.
func playQuestionElsewhere(t *testing.T, face string) { playAsked(t, face, 2, face != "http") }

func playAsked(t *testing.T, face string, tickets int, url bool) {
	u := &user{free: make(chan struct{}), end: t.Context().Done()}
	again := face == "http" && url // else it is not told what a question belongs to: it stays open where it was asked
	if again {
		u.ignores = int32(tickets)
	}
	s := onStage(t, face, staging{gateway: []string{"--patience=300ms"}, url: url, elicit: u.answer})
	m := s.model()
	m.before = func(n int, _ *modelCall, _ context.CancelFunc) {
		if n == tickets+1 {
			close(u.free)
		}
	}
	s.ask(m, "confirm_delete", map[string]any{"filename": "a.txt"})
	s.worked("confirm_delete", 1, 1)
	for n := 2; n <= tickets && again; n++ {
		s.said(m, n, `It cannot go on without an answer ("Waiting for input: Delete a.txt?")`)
	}
	if len(m.heard) <= tickets {
		t.Errorf("it ended before the user answered: %q", m.heard)
	}
	asked := int(u.asked.Load())
	if again && (asked <= tickets || asked > len(m.heard)) || !again && asked != 1 {
		t.Errorf("asked %d times in %d calls", asked, len(m.heard))
	}
}

// mistype changes the last letter of a ticket.
func mistype(ticket string) string {
	if strings.HasSuffix(ticket, "A") {
		return ticket[:len(ticket)-1] + "B"
	}
	return ticket[:len(ticket)-1] + "A"
}

// A model that mistypes its ticket finds it in what it was told. Nothing is listed.
func playMistyped(t *testing.T, face string) {
	s := onStage(t, face, staging{gateway: soon("greet"), server: []string{"hold=greet"}, many: true})
	m := s.model()
	m.before = func(n int, call *modelCall, _ context.CancelFunc) {
		if n == 2 {
			call.arguments = map[string]any{"ticket": mistype(call.arguments["ticket"].(string))}
		}
	}
	m.after = func(n int) {
		if n == 2 {
			s.release(t, "greet")
		}
	}
	s.ask(m, "greet", map[string]any{"name": "Ann"})
	s.calls(m, 3)
	s.said(m, 2, "Use a ticket exactly as it was given.")
	s.worked("greet", 1, 1)
}

// A model that has a wrong ticket from an earlier conversation finds the right one by the tool
// that lists.
func playMisremembered(t *testing.T, face string) {
	s := onStage(t, face, staging{gateway: append(soon("greet"), soon("big_result")...), server: []string{"hold=greet", "hold=big_result"}})
	greeting := map[string]any{"name": "Ann"}
	ticket := ticketIn(t, s.call("greet", greeting))
	s.call("big_result", map[string]any{"kilobytes": 1})
	s.release(t, "greet")
	m := s.model()
	m.subject = "greet"
	if err := s.finish(m, &modelCall{"ticket_collect", map[string]any{"ticket": mistype(ticket)}}, "greet", greeting); err != nil {
		t.Fatal(err)
	}
	s.calls(m, 3)
	s.said(m, 2, ticket, `"greet"`, `"big_result"`)
	s.worked("greet", 1, 1)
	s.release(t, "big_result")
	s.worked("big_result", 1, 1)
}

var ticketGiven = regexp.MustCompile(`\{"ticket":"([^"]+)"\}`)

func ticketIn(t *testing.T, text string) string {
	t.Helper()
	given := ticketGiven.FindStringSubmatch(text)
	if given == nil {
		t.Fatalf("no ticket in %q", text)
	}
	return given[1]
}

// A model that comes back too late makes its call again.
func playExpired(t *testing.T, face string) {
	s := onStage(t, face, staging{gateway: []string{"--tool=slow_compute=ticket:200ms", "--max-ttl=2s"}})
	m := s.model()
	m.after = func(n int) {
		if n != 1 {
			return
		}
		ticket := ticketIn(t, m.heard[0])
		for deadline := time.Now().Add(patience); strings.Contains(s.call("ticket_list", nil), ticket); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("it does not expire")
			}
		}
	}
	s.ask(m, "slow_compute", map[string]any{"seconds": 0.8})
	s.calls(m, 4)
	s.said(m, 2, "has expired")
	s.worked("slow_compute", 2, 2)
}

// A model whose call a crash ended makes it again, unless it knows that doing it twice does harm.
func playInterrupted(t *testing.T, face string) {
	s := onStage(t, face, staging{gateway: []string{"--patience=2s", "--tool=greet=ticket:100ms"}, server: []string{"hold=greet"}})
	collect := &modelCall{"ticket_collect", map[string]any{"ticket": ticketIn(t, s.call("greet", map[string]any{"name": "Ann"}))}}
	m := s.model()
	m.after = func(n int) {
		if n == 1 {
			s.crash()
			m.session = s.session
		}
	}
	s.ask(m, "slow_compute", map[string]any{"seconds": 3})
	s.worked("slow_compute", 2, 1)
	if !slices.ContainsFunc(m.heard, func(text string) bool { return strings.Contains(text, "was interrupted by a restart") }) {
		t.Errorf("it heard of no interruption: %q", m.heard)
	}

	careful := s.model()
	careful.harmless = false
	got, err := careful.work(t.Context(), collect)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(got.text, "how much of its work was done is not known") || !got.result.IsError {
		t.Errorf("it ended with %q", got.text)
	}
	s.calls(careful, 1)
	if began := s.times("began", "greet"); began != 1 {
		t.Errorf("greet began %d times", began)
	}
}

// A model that changes its mind stops its call, and then nothing comes of that.
func playCancelled(t *testing.T, face string) {
	s := onStage(t, face, staging{gateway: []string{"--tool=slow_compute=ticket:200ms"}})
	m := s.model()
	m.after = func(n int) { m.wants = "stop" }
	m.original = &modelCall{"slow_compute", map[string]any{"seconds": 600}}
	got, err := m.work(t.Context(), m.original)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(got.text, "Cancelled.") || got.result.IsError {
		t.Errorf("cancelling said %q", got.text)
	}
	s.calls(m, 2)
	if !s.until("stopped", "slow_compute", 1) {
		t.Error("the work goes on")
	}
	collect := &modelCall{"ticket_collect", map[string]any{"ticket": ticketIn(t, m.heard[0])}}
	if got, err = m.work(t.Context(), collect); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(got.text, "was cancelled and has no result") || !got.result.IsError {
		t.Errorf("collecting what was cancelled said %q", got.text)
	}
	s.calls(m, 3)
	s.worked("slow_compute", 1, 0)
}

// One that changes its mind too late gets the result.
func playCancelledLate(t *testing.T, face string) {
	s := onStage(t, face, staging{gateway: soon("greet"), server: []string{"hold=greet"}})
	m := s.model()
	m.after = func(n int) {
		if n != 1 {
			return
		}
		m.wants = "stop"
		s.release(t, "greet")
		for deadline := time.Now().Add(patience); !strings.Contains(s.call("ticket_list", nil), "completed"); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("it does not end")
			}
		}
	}
	s.ask(m, "greet", map[string]any{"name": "Ann"})
	s.calls(m, 3)
	s.said(m, 2, "has already ended, so it was not cancelled")
	s.worked("greet", 1, 1)
}

// A model whose host gives up a call makes it again, and is joined to its work.
func playLostReply(t *testing.T, face string) {
	s := onStage(t, face, staging{gateway: []string{"--tool=greet=ticket:1s"}, server: []string{"hold=greet"}})
	m := s.model()
	m.before = func(n int, _ *modelCall, cancel context.CancelFunc) {
		if n == 1 {
			go func() {
				defer cancel()
				s.until("began", "greet", 1)
			}()
		}
	}
	m.after = func(n int) {
		switch n {
		case 1: // a repeat is one once the gateway knows that its reply is lost
			for deadline := time.Now().Add(patience); !strings.Contains(s.call("ticket_list", nil), `"greet"`); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the work is not kept")
				}
			}
		case 2:
			s.release(t, "greet")
		}
	}
	s.ask(m, "greet", map[string]any{"name": "Ann"})
	s.calls(m, 3)
	s.said(m, 1, "")
	s.said(m, 2, "This call repeats an earlier one and was joined to it")
	s.worked("greet", 1, 1)
}

// Where the server has a tool of such a name, the texts name ours.
func playPrefixed(t *testing.T, face string) {
	s := onStage(t, face, staging{gateway: soon("greet"), server: []string{"hold=greet", "own=ticket_collect"}})
	m := s.model()
	m.after = func(int) { s.release(t, "greet") }
	s.ask(m, "greet", map[string]any{"name": "Ann"})
	s.calls(m, 2)
	s.said(m, 1, "call the tool coatcheck_ticket_collect with", "use coatcheck_ticket_cancel with")
	s.worked("greet", 1, 1)
	s.worked("ticket_collect", 0, 0)
}
