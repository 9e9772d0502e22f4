package audit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/task"
)

const (
	id   = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	hash = "d6ec6898de87ddac6e5b3611708a7aa1" // printf %s ID | sha256sum | cut -c 1-32
)

var noon = time.Date(2026, 1, 31, 12, 0, 0, 123e6, time.UTC)

// line returns what Log writes of an event, as JSON.
func line(t interface {
	Helper()
	Fatal(...any)
}, ev audit.Event, opts *audit.LogOptions) string {
	t.Helper()
	var b bytes.Buffer
	audit.Log(slog.NewJSONHandler(&b, nil), opts).Record(context.Background(), ev)
	text, ended := strings.CutSuffix(b.String(), "\n")
	if !ended || strings.Contains(text, "\n") {
		t.Fatal("not one line: ", b.String())
	}
	return text
}

// AUD-1
func TestLines(t *testing.T) {
	by := func(kind audit.Kind, ev audit.Event) audit.Event {
		ev.Time, ev.Kind, ev.Principal = noon, kind, "alice"
		return ev
	}
	const start = `{"time":"2026-01-31T12:00:00.123Z","level":"INFO","msg":"`
	for _, tc := range []struct {
		ev   audit.Event
		want string
	}{
		{by(audit.Created, audit.Event{
			Address: "192.0.2.7", Session: id, Method: "tools/call", Tool: "render", Task: id, Status: task.Working,
			Trace: "4bf92f3577b34da6a3ce929d0e0e4736", Request: &task.Request{Method: "tools/call", Params: json.RawMessage(`{"secret":1}`)},
		}), start + `created","principal":"alice","address":"192.0.2.7","session":"` + hash + `","method":"tools/call","tool":"render","task":"` + hash + `","trace":"4bf92f3577b34da6a3ce929d0e0e4736","status":"working"}`},
		{by(audit.Started, audit.Event{Tool: "render", Task: id, Status: task.Working, Duration: 1500 * time.Microsecond}),
			start + `started","principal":"alice","tool":"render","task":"` + hash + `","status":"working","duration_ms":1.5}`},
		{by(audit.Asked, audit.Event{Task: id, Status: task.InputRequired, Reason: "elicitation/create"}),
			start + `asked","principal":"alice","task":"` + hash + `","status":"input_required","reason":"elicitation/create"}`},
		{by(audit.Answered, audit.Event{Task: id, Status: task.Working, Reason: "elicitation/create", Duration: time.Hour}),
			start + `answered","principal":"alice","task":"` + hash + `","status":"working","reason":"elicitation/create","duration_ms":3600000}`},
		{by(audit.Retrieved, audit.Event{Method: "tasks/result", Task: id, Status: task.Completed}),
			start + `retrieved","principal":"alice","method":"tasks/result","task":"` + hash + `","status":"completed"}`},
		{by(audit.Cancelled, audit.Event{Task: id, Status: task.Cancelled, Duration: 2 * time.Second}),
			start + `cancelled","principal":"alice","task":"` + hash + `","status":"cancelled","duration_ms":2000}`},
		{by(audit.Ended, audit.Event{Task: id, Status: task.Failed, Duration: time.Second, Outcome: &task.Outcome{Error: json.RawMessage(`{"secret":1}`)}}),
			start + `ended","principal":"alice","task":"` + hash + `","status":"failed","duration_ms":1000}`},
		{by(audit.Expired, audit.Event{Task: id, Status: task.Completed, Duration: time.Millisecond}),
			start + `expired","principal":"alice","task":"` + hash + `","status":"completed","duration_ms":1}`},
		{by(audit.Refused, audit.Event{Method: "tasks/get", Task: id, Reason: audit.NotFound}),
			start + `refused","principal":"alice","method":"tasks/get","task":"` + hash + `","reason":"not_found"}`},
		{by(audit.Refused, audit.Event{Method: "tools/call", Reason: audit.OverLimit, Limit: "creates"}),
			start + `refused","principal":"alice","method":"tools/call","reason":"limit","limit":"creates"}`},
		{by(audit.Refused, audit.Event{Reason: audit.Internal}),
			`{"time":"2026-01-31T12:00:00.123Z","level":"ERROR","msg":"refused","principal":"alice","reason":"internal"}`},
		{by(audit.Suspicious, audit.Event{Reason: audit.ManyMisses, Count: 20}),
			`{"time":"2026-01-31T12:00:00.123Z","level":"WARN","msg":"suspicious","principal":"alice","reason":"many_misses","count":20}`},
		{audit.Event{Time: noon, Kind: "x"}, start + `x"}`},
	} {
		if got := line(t, tc.ev, nil); got != tc.want {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
	}
}

// AUD-1
func TestLinesWithAllThatMayBeAskedFor(t *testing.T) {
	ev := audit.Event{
		Time: noon, Kind: audit.Ended, Session: id, Task: id,
		Request: &task.Request{Method: "tools/call", Params: json.RawMessage("{\"a\":\n\"<&>\"}")},
		Outcome: &task.Outcome{Result: json.RawMessage(`{"isError":true}`), IsError: true},
	}
	const start = `{"time":"2026-01-31T12:00:00.123Z","level":"INFO","msg":"ended","session":"` + hash + `","task":"`
	if got, want := line(t, ev, &audit.LogOptions{TaskIDs: true}), start+id+`"}`; got != want {
		t.Errorf("with ids: %s, want %s", got, want)
	}
	var got struct {
		Task             string
		Request, Outcome json.RawMessage
	}
	if err := json.Unmarshal([]byte(line(t, ev, &audit.LogOptions{Content: true})), &got); err != nil {
		t.Fatal(err)
	}
	var params struct{ Params struct{ A string } }
	if err := json.Unmarshal(got.Request, &params); err != nil || params.Params.A != "<&>" {
		t.Errorf("the request is %s (%v)", got.Request, err)
	}
	if want := `{"result":{"isError":true},"is_error":true}`; string(got.Outcome) != want {
		t.Errorf("the outcome is %s, want %s", got.Outcome, want)
	}
	if got.Task != hash {
		t.Error("content brings the task's id with it: ", got.Task)
	}
	ev.Request.Params = json.RawMessage("no\nJSON")
	if got := line(t, ev, &audit.LogOptions{Content: true}); !strings.Contains(got, `"request":{"method":"tools/call","params":"no\nJSON"}`) {
		t.Error("params that are no JSON:", got)
	}
}

func TestLongTextsAreCut(t *testing.T) {
	short := strings.Repeat("é", 128)
	if got := line(t, audit.Event{Tool: short}, nil); !strings.Contains(got, `"tool":"`+short+`"`) {
		t.Error("256 bytes were changed:", got)
	}
	long := strings.Repeat("é", 5_000)
	tools := map[string]bool{}
	for _, tool := range []string{long, long + "1", long + "2", strings.Repeat("\xff", 257), "\xff"} {
		var got struct{ Tool string }
		if err := json.Unmarshal([]byte(line(t, audit.Event{Tool: tool}, nil)), &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Tool) > 256 || !utf8.ValidString(got.Tool) || got.Tool == "" {
			t.Errorf("%d bytes: %q", len(got.Tool), got.Tool)
		}
		tools[got.Tool] = true
	}
	if len(tools) != 5 {
		t.Errorf("what differs is the same when cut: %d of 5", len(tools))
	}
}

// TestNothingSecretIsLogged has secrets wherever there may be some. SEC-3, AUD-1
func TestNothingSecretIsLogged(t *testing.T) {
	const mark = "SECRET"
	rapid.Check(t, func(t *rapid.T) {
		secret := func(name string) string { return rapid.StringN(0, 12, -1).Draw(t, name) + mark }
		raw := func(name string) json.RawMessage {
			b, _ := json.Marshal(map[string]string{secret(name): secret(name)})
			return b
		}
		plain := rapid.StringMatching(`[a-z/|.:]{0,20}`)
		ev := audit.Event{
			Time: noon, Kind: rapid.SampledFrom([]audit.Kind{audit.Created, audit.Retrieved, audit.Ended, audit.Refused, audit.Suspicious}).Draw(t, "kind"),
			Principal: task.Principal(plain.Draw(t, "principal")), Address: plain.Draw(t, "address"), Method: plain.Draw(t, "method"),
			Tool: plain.Draw(t, "tool"), Reason: plain.Draw(t, "reason"), Limit: plain.Draw(t, "limit"),
			Session: secret("session"), Task: secret("task"),
			Request: &task.Request{Method: "tools/call", Params: raw("params")},
			Outcome: &task.Outcome{Result: raw("result"), Error: raw("error")},
		}
		var raised []audit.Event
		audit.Watch(audit.SinkFunc(func(_ context.Context, ev audit.Event) { raised = append(raised, ev) }),
			&audit.WatchOptions{ManyMisses: 1}).Record(t.Context(), ev)
		for _, ev := range raised {
			if got := line(t, ev, nil); strings.Contains(got, mark) {
				t.Fatal("it shows:", got)
			}
		}
		if got := line(t, ev, &audit.LogOptions{TaskIDs: true}); strings.Count(got, mark) != 1 {
			t.Fatal("more shows than the task's id:", got)
		}
		if got := line(t, ev, &audit.LogOptions{Content: true}); strings.Count(got, mark) != 6 {
			t.Fatal("not all content shows, or more than that:", got)
		}
	})
}

type failing struct {
	slog.Handler
	fails *bool
}

func (f failing) Handle(ctx context.Context, r slog.Record) error {
	if *f.fails {
		return errors.New("disk is full")
	}
	return f.Handler.Handle(ctx, r)
}

// TestEventsThatAreLostAreTold loses a thousand a second.
func TestEventsThatAreLostAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told bytes.Buffer
		fails := true
		sink := audit.Log(failing{slog.NewTextHandler(new(bytes.Buffer), nil), &fails}, &audit.LogOptions{
			Logger: slog.New(slog.NewTextHandler(&told, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			}})),
		})
		record := func(n int) {
			for range n {
				sink.Record(t.Context(), audit.Event{Kind: audit.Created})
			}
		}
		want := ""
		expect := func(count string) {
			t.Helper()
			if count != "" {
				want += `level=ERROR msg="events are missing in the audit log" count=` + count + ` error="disk is full"` + "\n"
			}
			if told.String() != want {
				t.Errorf("told\n%swant\n%s", told.String(), want)
			}
		}
		record(1000)
		expect("1") // the first, at once
		<-time.After(59 * time.Second)
		record(1000)
		expect("")
		fails = false
		<-time.After(time.Second)
		record(1) // also when it works again
		expect("1999")
		<-time.After(time.Hour)
		record(1)
		expect("")
	})
}

func TestJoin(t *testing.T) {
	if audit.Join() != nil || audit.Join(nil, nil) != nil {
		t.Error("nothing joined is not nil")
	}
	n := 0
	one := audit.SinkFunc(func(context.Context, audit.Event) { n++ })
	audit.Join(nil, one).Record(t.Context(), audit.Event{})
	audit.Join(one, nil, one).Record(t.Context(), audit.Event{})
	if n != 3 {
		t.Errorf("%d events, want 3", n)
	}
}
