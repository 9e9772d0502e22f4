package wire_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/store/memory"
	"github.com/coatcheck/coatcheck/task"
)

// slowStore takes a minute to store a task, and then fails if it is told to.
type slowStore struct {
	store.Store
	fails bool
}

func (s *slowStore) Create(ctx context.Context, t *task.Task, q store.Quota) (*task.Task, error) {
	pause(context.Background(), time.Minute)
	if s.fails {
		return nil, errors.New("the disk is full")
	}
	return s.Store.Create(ctx, t, q)
}

// TestCarryAnsweredMeanwhile: what the server answers while a call is being handed off goes to its
// client, once and as it was written, if that fails, and else to the task (RES-1).
func TestCarryAnsweredMeanwhile(t *testing.T) {
	const stream = "id: 1\ndata: " + carriedReply + "\n\n: bye"
	for name, tc := range map[string]struct {
		serve       func(w http.ResponseWriter)
		contentType string
		status      int
		body        string
	}{
		"a body":    {func(w http.ResponseWriter) { asJSON(w, 200, carriedReply) }, "application/json", 200, carriedReply},
		"a refusal": {func(w http.ResponseWriter) { asJSON(w, 403, "no") }, "application/json", 403, "no"},
		"half a body": {func(w http.ResponseWriter) {
			asJSON(w, 200, carriedReply[:9])
			pause(context.Background(), time.Minute)
			_, _ = io.WriteString(w, carriedReply[9:])
		}, "application/json", 200, carriedReply},
		"a stream": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("X-Server", "slow")
			_, _ = io.WriteString(w, stream)
			w.Header().Set("X-Server", "too late")
		}, "text/event-stream", 200, stream},
	} {
		for _, fails := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%t", name, fails), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newCarrierWith(t, &slowStore{memory.New(), fails}, receiver.Tickets{}, func(w http.ResponseWriter, _ *http.Request) {
						pause(context.Background(), 30*time.Second) // the patience is 20 s
						tc.serve(w)
					})
					w := c.post(carriedCall, only)
					if !fails {
						want := `"x":1.0`
						if tc.status != 200 {
							want = "The server gave no answer"
						}
						if got := c.collect(t, w.Body.Bytes()); strings.Count(got, want) != 1 {
							t.Errorf("collected %s", got)
						}
						return
					}
					if got := w.Header().Get("Content-Type"); got != tc.contentType || w.Code != tc.status || w.Header().Get("X-Server") != "slow" {
						t.Errorf("answered with %d %v", w.Code, w.Header())
					}
					if got := w.Body.String(); got != tc.body {
						t.Errorf("got %s", got)
					}
				})
			})
		}
	}
}
