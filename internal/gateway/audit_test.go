package gateway

import (
	"context"
	"sync"
	"testing"

	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/protocol"
)

// TestGuessesAreSeen looks for tasks that are not there. AUD-2
func TestGuessesAreSeen(t *testing.T) {
	var mu sync.Mutex
	var misses int
	var raised []audit.Event
	c := newClient(t, serve(t, Config{Command: []string{"raw"}, Audit: audit.Watch(audit.SinkFunc(func(_ context.Context, ev audit.Event) {
		mu.Lock()
		defer mu.Unlock()
		switch ev.Kind {
		case audit.Suspicious:
			raised = append(raised, ev)
		case audit.Refused:
			misses++
		}
	}), nil)}))
	for range 50 {
		if _, fault := c.call(protocol.MethodTasksGet, ref("guess")); fault == nil {
			t.Fatal("a task is there")
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if misses != 50 || len(raised) != 1 {
		t.Fatalf("%d refusals raised %+v", misses, raised)
	}
	if ev := raised[0]; ev.Reason != audit.ManyMisses || ev.Count != 20 || ev.Address != "127.0.0.1" || ev.Session != c.session || ev.Method != protocol.MethodTasksGet {
		t.Errorf("raised: %+v", ev)
	}
}
