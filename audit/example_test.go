package audit_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/coatcheck/coatcheck/audit"
)

// What happens goes to a file, and what is suspicious to the program's own log, too. The Sink is
// for coatcheck.Options.Audit.
func Example() {
	file, err := audit.File(os.DevNull, &audit.FileOptions{
		Log:     audit.LogOptions{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))},
		MaxSize: 50 << 20,
		MaxAge:  90 * 24 * time.Hour,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	alert := audit.SinkFunc(func(_ context.Context, ev audit.Event) {
		if ev.Kind == audit.Suspicious {
			fmt.Println("suspicious:", ev.Reason, "by", ev.Principal, ev.Count)
		}
	})
	sink := audit.Watch(audit.Join(file, alert), nil)

	for range 1000 {
		sink.Record(context.Background(), audit.Event{Kind: audit.Refused, Reason: audit.NotFound, Principal: "mallory"})
	}
	// Output: suspicious: many_misses by mallory 20
}

// Log writes to any slog.Handler.
func ExampleLog() {
	sink := audit.Log(slog.NewJSONHandler(os.Stdout, nil), nil)
	sink.Record(context.Background(), audit.Event{
		Time: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC), Kind: audit.Retrieved, Principal: "alice",
		Method: "tasks/result", Task: "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
	})
	fmt.Println(audit.Hash("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
	// Output:
	// {"time":"2026-01-31T12:00:00Z","level":"INFO","msg":"retrieved","principal":"alice","method":"tasks/result","task":"d6ec6898de87ddac6e5b3611708a7aa1"}
	// d6ec6898de87ddac6e5b3611708a7aa1
}
