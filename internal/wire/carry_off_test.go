package wire_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
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

// TestCarrySessionEnds: a session that its client ends is ended when its calls are done, whatever
// becomes of that.
func TestCarrySessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCarrier(t, receiver.Tickets{}, func(w http.ResponseWriter, _ *http.Request) {
			pause(context.Background(), time.Minute)
			asJSON(w, 200, carriedReply)
		})
		left := make(chan struct{})
		c.server.left = func() {
			close(left)
			panic(http.ErrAbortHandler) // as httputil.ReverseProxy does when the server goes away
		}
		c.post(carriedCall, only)
		end := c.request(t.Context(), "", only)
		end.Method = http.MethodDelete
		w := httptest.NewRecorder()
		c.h.ServeHTTP(w, end)
		if w.Code != http.StatusNoContent {
			t.Errorf("DELETE: %d", w.Code)
		}
		<-left
	})
}

// TestCarryNowhereToKeep: work that goes on without its client, but for which there is no room,
// ends: else nothing would bound it (RSC-1).
func TestCarryNowhereToKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		c := newCarrierWith(t, &slowStore{memory.New(), true}, receiver.Tickets{}, func(_ http.ResponseWriter, req *http.Request) {
			<-req.Context().Done()
			close(ended)
		})
		ctx, hangUp := context.WithCancel(t.Context())
		go func() {
			pause(ctx, time.Second)
			hangUp()
		}()
		c.h.ServeHTTP(httptest.NewRecorder(), c.request(ctx, carriedCall, streams))
		select {
		case <-c.server.cancelled:
		default:
			t.Error("the server was not told")
		}
		<-ended
	})
}

// TestCarryGoneMeanwhile: with the policy cancel work ends whose client hangs up before it has the
// ticket.
func TestCarryGoneMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		tickets := receiver.Tickets{ByName: map[string]receiver.TicketTool{"slow": {CancelLost: true}}}
		c := newCarrierWith(t, &slowStore{memory.New(), false}, tickets, func(_ http.ResponseWriter, req *http.Request) {
			defer close(ended)
			pause(req.Context(), 30*time.Minute)
			if req.Context().Err() == nil {
				t.Error("the work went on")
			}
		})
		ctx, hangUp := context.WithCancel(t.Context())
		go func() {
			pause(ctx, 30*time.Second)
			hangUp()
		}()
		c.h.ServeHTTP(httptest.NewRecorder(), c.request(ctx, carriedCall, streams))
		<-ended
	})
}

// brokenConn is the connection of a client that cannot be reached any more, as is found once the
// result has to leave.
type brokenConn struct{ *httptest.ResponseRecorder }

func (b brokenConn) FlushError() error {
	if strings.Contains(b.Body.String(), `"x":1.0`) {
		return errors.New("broken pipe")
	}
	return nil
}

// TestCollectedByNobody: a result that could not be sent on a stream was not collected: a repeat of
// the call still gets it.
func TestCollectedByNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		c := newCarrier(t, receiver.Tickets{}, func(w http.ResponseWriter, req *http.Request) {
			calls++
			pause(req.Context(), time.Minute)
			asJSON(w, 200, carriedReply)
		})
		ctx, hangUp := context.WithCancel(t.Context())
		go func() {
			pause(ctx, time.Second)
			hangUp()
		}()
		c.h.ServeHTTP(httptest.NewRecorder(), c.request(ctx, carriedCall, only))
		pause(t.Context(), 58*time.Second)
		c.h.ServeHTTP(brokenConn{httptest.NewRecorder()}, c.request(t.Context(), carriedCall, streams))
		if got := c.post(carriedCall, only).Body.String(); calls != 1 || !strings.Contains(got, `"x":1.0`) {
			t.Errorf("%d calls, got %s", calls, got)
		}
	})
}

// TestCarryLongAnswers: an answer of any length passes as it was written.
func TestCarryLongAnswers(t *testing.T) {
	long := `data: {"jsonrpc":"2.0","id":"c","result":"` + strings.Repeat("x", 65<<20) + `"}` + "\n\n"
	c := newCarrier(t, receiver.Tickets{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, piece := range []string{long[:100], long[100 : 1<<20], long[1<<20:]} {
			if _, err := io.WriteString(w, piece); err != nil {
				t.Error(err)
				return
			}
		}
	})
	if got := c.post(carriedCall, streams).Body.String(); got != long {
		t.Errorf("got %d bytes, want %d", len(got), len(long))
	}
}

// TestCarryOfKnownLength: a stream that says how long it is has its length changed by what we leave
// out of it, or add (PROG-1).
func TestCarryOfKnownLength(t *testing.T) {
	const went, back = `data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":2}}` + "\n\n",
		`data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":1}}` + "\n\n"
	c := newCarrier(t, receiver.Tickets{}, func(w http.ResponseWriter, _ *http.Request) {
		whole := went + back + "data: " + carriedReply + "\n\n"
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Content-Length", strconv.Itoa(len(whole)))
		_, _ = io.WriteString(w, whole)
	})
	server := httptest.NewServer(c.h)
	defer server.Close()
	req := c.request(t.Context(), carriedCall, streams)
	var err error
	if req.URL, err = url.Parse(server.URL); err != nil {
		t.Fatal(err)
	}
	req.RequestURI, req.Host = "", ""
	answer, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	if want := went + "data: " + carriedReply + "\n\n"; err != nil || string(got) != want {
		t.Errorf("got %s, %v", got, err)
	}
}
