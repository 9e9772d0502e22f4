package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// answering connects a client whose Handler has the server's questions to a server that asks.
// The handler answers what comes in on release, raw.
func answering(t *testing.T, opts *client.Options, test func(t *testing.T, r *requesting, asked chan json.RawMessage, release chan string)) {
	t.Helper()
	r := overPipes(t)
	asked, release := make(chan json.RawMessage, 10), make(chan string)
	opts.Handlers = map[string]client.Handler{protocol.MethodCreateMessage: func(ctx context.Context, params json.RawMessage) client.Answer {
		asked <- params
		return func() (json.RawMessage, error) {
			select {
			case answer := <-release:
				if strings.HasPrefix(answer, "{") {
					return json.RawMessage(answer), nil
				}
				return nil, errors.New(answer)
			case <-ctx.Done():
				asked <- json.RawMessage(`"gone"`)
				return nil, ctx.Err()
			}
		}
	}}
	c := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{Sampling: &mcp.SamplingCapabilities{}}})
	s, err := client.Connect(t.Context(), c, r.transport, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if opts.Host != nil {
			if err := opts.Host.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
		_ = s.Close()
	})
	test(t, r, asked, release)
}

// reply is what a request of the server's was answered with.
type reply struct {
	result string
	err    error
}

func (r *requesting) sample(params string) <-chan reply {
	done := make(chan reply, 1)
	go func() {
		result, err := r.call(protocol.MethodCreateMessage, params)
		done <- reply{string(result), err}
	}()
	return done
}

// send sends a message whose answer nobody waits for.
func (r *requesting) send(id, method, params string) {
	r.t.Helper()
	if err := r.say(id, method, json.RawMessage(params)); err != nil {
		r.t.Fatal(err)
	}
}

const (
	odd    = `{"z":1.50,"a":{"b":[12345678901234567890]}}` // what no SDK type has
	oddToo = `{"y":2.50}`
)

// Params and results pass a Handler as they are on the wire, plainly and in a hosted task.
func TestHandler(t *testing.T) {
	answering(t, &client.Options{}, func(t *testing.T, r *requesting, asked chan json.RawMessage, release chan string) {
		done := r.sample(odd)
		if got := <-asked; string(got) != odd {
			t.Errorf("asked %s", got)
		}
		release <- oddToo
		if got := <-done; got.result != oddToo || got.err != nil {
			t.Errorf("answered %+v", got)
		}
		done = r.sample(odd)
		<-asked
		release <- "no model"
		got := <-done
		if wire, ok := errors.AsType[*jsonrpc.Error](got.err); !ok || wire.Code != protocol.CodeInternalError || wire.Message != "no model" {
			t.Errorf("answered %+v", got)
		}
		// What the server withdraws is not answered.
		r.send("w", protocol.MethodCreateMessage, odd)
		<-asked
		r.send("", protocol.MethodCancelled, `{"requestId":"w"}`)
		if got := <-asked; string(got) != `"gone"` {
			t.Errorf("asked %s", got)
		}
	})
	host, err := client.OpenHost(t.Context(), &client.HostOptions{Sampling: client.Optional, Database: "memory:", Grace: -1})
	if err != nil {
		t.Fatal(err)
	}
	answering(t, &client.Options{Host: host, Server: "s"}, func(t *testing.T, r *requesting, asked chan json.RawMessage, release chan string) {
		for _, answer := range []string{oddToo, ""} {
			created, err := r.call(protocol.MethodCreateMessage, `{"z":1.50,"task":{}}`)
			if err != nil {
				t.Fatal(err)
			}
			id, _ := protocol.Unquote(protocol.Get(protocol.Get(created, "task"), "taskId"))
			if got := <-asked; !strings.HasPrefix(string(got), `{"z":1.50`) || protocol.Get(got, "task") != nil {
				t.Errorf("asked %s", got)
			}
			if answer == "" { // CAN-2
				if _, err := r.call(protocol.MethodTasksCancel, ref(id)); err != nil {
					t.Error(err)
				}
				if got := <-asked; string(got) != `"gone"` {
					t.Errorf("asked %s", got)
				}
				continue
			}
			release <- answer
			if result, err := r.call(protocol.MethodTasksResult, ref(id)); err != nil || !strings.HasPrefix(string(result), `{"y":2.50,"_meta":`) { // RES-1
				t.Errorf("result %s, %v", result, err)
			}
		}
	})
}

// What the server sends reaches Handlers and OnNotification in its order, while what was asked
// before is not answered yet.
func TestHandlerOrder(t *testing.T) {
	var heard []string
	opts := &client.Options{OnNotification: func(_ string, params json.RawMessage) {
		n, _ := protocol.Unquote(protocol.Get(params, "data"))
		heard = append(heard, n)
	}}
	answering(t, opts, func(t *testing.T, r *requesting, asked chan json.RawMessage, release chan string) {
		const each = 4
		for i := range each {
			n := strconv.Itoa(i)
			r.send("", "notifications/message", `{"level":"info","data":"`+n+`"}`)
			r.send("q"+n, protocol.MethodCreateMessage, n)
			if i%2 == 1 {
				for j := i - 1; j <= i; j++ {
					if got := <-asked; string(got) != strconv.Itoa(j) {
						t.Errorf("asked %s, want %d", got, j)
					}
				}
				if len(heard) != i+1 || heard[i] != n { // as many as came before the question
					t.Errorf("heard %s before question %d", heard, i)
				}
			}
		}
		for range each {
			release <- `{}`
		}
	})
}

// INP-3: what is asked again because another tasks/result was opened is asked once, and both
// requests are answered. Two that are asked on one stream are two, and one that was answered and
// is asked again is another.
func TestAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := mcp.NewInMemoryTransports()
		conn, err := far.Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var answers []string
		ends := make(chan bool)
		s := &scripted{t: t, conn: &answersTo{conn, func(resp *jsonrpc.Response) {
			mu.Lock()
			defer mu.Unlock()
			answers = append(answers, resp.ID.Raw().(string)+string(protocol.Get(resp.Result, "model")))
		}}, asked: map[string]int{}, last: map[string]string{}}
		ask := func(id, more string) {
			s.say(`{"jsonrpc":"2.0","id":%q,"method":"sampling/createMessage","params":{"n":1%s}}`, id, more)
		}
		related := `,"_meta":{"` + protocol.MetaRelatedTask + `":{"taskId":"a"}}`
		s.answer = map[string]func(int, json.RawMessage) (string, error){
			"tools/call": create("a"),
			"tasks/get":  always(taskJSON("a", "input_required", `,"pollInterval":1000`)),
			"tasks/result": func(n int, _ json.RawMessage) (string, error) {
				switch n {
				case 1:
					ask("one", related)
					ask("two", related)
					ask("odd", "") // without what REL-1 demands
					s.say(`{"jsonrpc":"2.0","id":"quick","method":"sampling/createMessage","params":{"n":0%s}}`, related)
					return "", errors.New("not now")
				case 2:
					ask("one again", related)
					ask("two again", related)
					ask("odd again", "")
					s.say(`{"jsonrpc":"2.0","id":"quick again","method":"sampling/createMessage","params":{"n":0%s}}`, related)
					s.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"one"}}`)
					ask("three", related)
				}
				return "", nil
			},
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			s.serve()
		}()
		handled := make(chan struct{}, 10)
		c := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil)
		session, err := client.Connect(t.Context(), c, near, &client.Options{Handlers: map[string]client.Handler{
			protocol.MethodCreateMessage: func(ctx context.Context, params json.RawMessage) client.Answer {
				handled <- struct{}{}
				if string(protocol.Get(params, "n")) == "0" {
					return client.Answered(json.RawMessage(`{"model":"!"}`), nil)
				}
				return func() (json.RawMessage, error) {
					select {
					case <-ends:
						return json.RawMessage(`{"model":"!"}`), nil
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				}
			},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "x"}, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) //nolint:forbidigo // the bubble has its own clock
		if n := s.count("tasks/result"); n != 2 {
			t.Fatalf("tasks/result was called %d times", n)
		}
		if n := len(handled); n != 6 {
			t.Errorf("%d questions", n)
		}
		close(ends)
		synctest.Wait()
		mu.Lock()
		said := strings.Join(answers, " ")
		n := len(answers)
		mu.Unlock()
		for _, id := range []string{"two", "one again", "two again", "odd", "odd again", "three", "quick", "quick again"} {
			if !strings.Contains(" "+said, " "+id+`"!"`) {
				t.Errorf("%s is not answered: %s", id, said)
			}
		}
		if n != 8 {
			t.Errorf("answered %s", said)
		}
		_ = session.Close()
		_ = conn.Close()
		<-served
	})
}

// answersTo sees what a client answers.
type answersTo struct {
	mcp.Connection
	see func(*jsonrpc.Response)
}

func (c *answersTo) Read(ctx context.Context) (jsonrpc.Message, error) {
	msg, err := c.Connection.Read(ctx)
	if resp, ok := msg.(*jsonrpc.Response); ok && err == nil {
		c.see(resp)
	}
	return msg, err
}

// GET-2: while a server is not reached it is asked again, and the updates say why it does not
// answer; a refusal of the transport is no answer of the server's.
func TestUnreached(t *testing.T) {
	transport := overHTTP(t, "memory:")()
	web := transport.(*mcp.StreamableClientTransport)
	var down atomic.Bool
	web.HTTPClient = &http.Client{Transport: refusing{&down}}
	s, err := client.Connect(t.Context(), newClient(), transport, &client.Options{MinPoll: 10 * time.Millisecond, MaxPoll: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	task := call(t, s, "slow_compute", `{"seconds":1}`, nil)
	if protocol.Get(protocol.Get(task.Created(), "task"), "taskId") == nil {
		t.Errorf("created %s", task.Created())
	}
	down.Store(true)
	failed, recovered := 0, false
	for u := range task.Updates(t.Context()) {
		switch {
		case u.Err != nil:
			if failed++; failed == 8 {
				down.Store(false)
			}
		case failed > 0:
			recovered = true
		}
	}
	if failed < 8 || !recovered {
		t.Errorf("%d failures, recovered %t", failed, recovered)
	}
	wantText(t, task, "done")
}

// refusing is a network that is down at times.
type refusing struct{ down *atomic.Bool }

func (r refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.down.Load() && req.Method == http.MethodPost {
		return nil, errors.New("connection refused")
	}
	return bearer{}.RoundTrip(req)
}

// CAP-3, TOOL-4: a server without tasks is asked for none, and a plain call is one whatever
// the tool says.
func TestPlain(t *testing.T) {
	bare := mcp.NewServer(&mcp.Implementation{Name: "bare", Version: "1"}, nil)
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return bare }, nil))
	t.Cleanup(web.Close)
	s, err := client.Connect(t.Context(), newClient(), &mcp.StreamableClientTransport{Endpoint: web.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if _, err := s.Attach(t.Context(), "id"); !errors.Is(err, client.ErrUnsupported) {
		t.Error(err)
	}
	with, err := client.Connect(t.Context(), newClient(), overHTTP(t, "memory:")(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = with.Close() })
	_, err = call(t, with, "multi_input", `{}`, &client.CallOptions{Mode: client.Plain}).Wait(t.Context())
	if wire, ok := errors.AsType[*jsonrpc.Error](err); !ok || wire.Code != protocol.CodeMethodNotFound {
		t.Error(err)
	}
}
