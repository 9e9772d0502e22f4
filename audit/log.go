package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/coatcheck/coatcheck/task"
)

// LogOptions configures Log. A nil *LogOptions means all defaults.
type LogOptions struct {
	// TaskIDs has task ids logged as they are. Where requestors have no identity, who reads
	// the log can then read and cancel the tasks. Default: their Hash is.
	TaskIDs bool
	// Content has requests and outcomes logged, whole, with all that is secret in them.
	// Default: they are not.
	Content bool
	// Logger is told, once a minute at most, how many events the handler did not take, and why.
	// It should not lead to the same handler. Default: discards.
	Logger *slog.Logger
}

// Log returns a Sink that makes one record of each event (AUD-1). The message is the kind, the
// time the event's, and the attributes are those of its fields that are not empty, in
// snake_case; a duration is duration_ms. The level is Warn for Suspicious, Error for what was
// refused for Internal, and Info for all else.
//
// Task ids are logged as their Hash, unless Options.TaskIDs, and ids of sessions always.
// Principals and addresses are logged as they are. Any text is cut at 256 bytes, with the
// start of a hash of the whole at its end, so that what differs stays different.
func Log(handler slog.Handler, opts *LogOptions) Sink {
	l := &logger{handler: handler}
	if opts != nil {
		l.opts = *opts
	}
	l.faults = newFaults(l.opts.Logger, "events are missing in the audit log")
	return l
}

// Hash returns the id of a task or session as Log writes it: the first 128 bits of its SHA-256,
// in hex. It is the same on all nodes and after restarts. It needs no key: a task's id has 130
// random bits, which nobody finds by trying.
func Hash(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:16])
}

type logger struct {
	handler slog.Handler
	opts    LogOptions
	faults  *faults
}

// Record implements Sink.
func (l *logger) Record(ctx context.Context, ev Event) {
	level := level(&ev)
	if !l.handler.Enabled(ctx, level) {
		return
	}
	r := slog.NewRecord(ev.Time, level, clip(string(ev.Kind)), 0)
	var space [16]slog.Attr
	r.AddAttrs(l.attrs(space[:0], &ev)...)
	if err := l.handler.Handle(ctx, r); err != nil {
		l.faults.add(err)
		return
	}
	l.faults.tell()
}

func level(ev *Event) slog.Level {
	switch {
	case ev.Kind == Suspicious:
		return slog.LevelWarn
	case ev.Kind == Refused && ev.Reason == Internal:
		return slog.LevelError
	}
	return slog.LevelInfo
}

func (l *logger) attrs(to []slog.Attr, ev *Event) []slog.Attr {
	text := func(key, value string) {
		if value != "" {
			to = append(to, slog.String(key, clip(value)))
		}
	}
	hashed := func(key, id string) {
		if id != "" {
			to = append(to, slog.String(key, Hash(id)))
		}
	}
	text("principal", string(ev.Principal))
	text("address", ev.Address)
	hashed("session", ev.Session)
	text("method", ev.Method)
	text("tool", ev.Tool)
	if l.opts.TaskIDs {
		text("task", ev.Task)
	} else {
		hashed("task", ev.Task)
	}
	text("trace", ev.Trace)
	text("status", string(ev.Status))
	text("reason", ev.Reason)
	text("limit", ev.Limit)
	if ev.Duration != 0 {
		to = append(to, slog.Float64("duration_ms", float64(ev.Duration.Round(time.Microsecond).Microseconds())/1000))
	}
	if ev.Count != 0 {
		to = append(to, slog.Int("count", ev.Count))
	}
	if !l.opts.Content {
		return to
	}
	if ev.Request != nil {
		to = append(to, slog.Any("request", requestJSON(ev.Request)))
	}
	if ev.Outcome != nil {
		to = append(to, slog.Any("outcome", outcomeJSON(ev.Outcome)))
	}
	return to
}

func requestJSON(r *task.Request) json.RawMessage {
	return object(struct {
		Method string          `json:"method"`
		Params json.RawMessage `json:"params,omitempty"`
	}{r.Method, valid(r.Params)})
}

func outcomeJSON(o *task.Outcome) json.RawMessage {
	return object(struct {
		Result  json.RawMessage `json:"result,omitempty"`
		Error   json.RawMessage `json:"error,omitempty"`
		IsError bool            `json:"is_error,omitempty"`
	}{valid(o.Result), valid(o.Error), o.IsError})
}

// object encodes a value that can be.
func object(v any) json.RawMessage {
	b, _ := json.Marshal(v)
	return b
}

// valid returns what is JSON as it is, and anything else as a JSON string.
func valid(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 || json.Valid(raw) {
		return raw
	}
	return object(string(raw))
}

// maxText is how long a text in an event may be, in bytes; longer ones are cut.
const maxText = 256

// clip returns a text that is valid and not too long.
func clip(s string) string {
	long := len(s) > maxText
	if !long && utf8.ValidString(s) {
		return s
	}
	tail := ""
	if long {
		tail = "…" + Hash(s)[:16]
		s = s[:maxText]
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxText-len(tail) {
		return s + tail
	}
	cut := maxText - len(tail)
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + tail
}
