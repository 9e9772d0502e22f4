package audit_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/task"
)

func BenchmarkRecord(b *testing.B) {
	created := audit.Event{
		Time: noon, Kind: audit.Created, Principal: "https://issuer.example|alice|ide", Address: "192.0.2.7", Session: id, Method: "tools/call",
		Tool: "render", Task: id, Trace: "4bf92f3577b34da6a3ce929d0e0e4736", Status: task.Working, Duration: time.Second,
	}
	missed := refused("mallory", "192.0.2.7", audit.NotFound, "")
	missed.Task = id
	ids := make([]string, 1<<17)
	for i := range ids {
		ids[i] = fmt.Sprintf("%026d", i)
	}
	none := audit.SinkFunc(func(context.Context, audit.Event) {})
	file, err := audit.File(filepath.Join(b.TempDir(), "audit.log"), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	for _, bench := range []struct {
		name string
		sink audit.Sink
		ev   audit.Event
	}{
		{"Log", audit.Log(slog.NewJSONHandler(io.Discard, nil), nil), created}, //nolint:sloglint // the making of lines is measured
		{"File", file, created},
		{"Watch/created", audit.Watch(none, nil), created},
		{"Watch/missed", audit.Watch(none, nil), missed},
	} {
		b.Run(bench.name, func(b *testing.B) {
			ev := bench.ev
			for i := 0; b.Loop(); i++ {
				ev.Task = ids[i%len(ids)]
				bench.sink.Record(b.Context(), ev)
			}
		})
	}
}
