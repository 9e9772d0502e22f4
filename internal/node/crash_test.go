package node_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/internal/node"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// crashServer, in the environment, makes this test binary a server on the database it names.
const crashServer = "COATCHECK_TEST_DATABASE"

const (
	rounds  = 50
	clients = 16
	lease   = time.Second
)

func TestMain(m *testing.M) {
	if database := os.Getenv(crashServer); database != "" {
		if err := serve(database); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// echo answers a call with its own arguments, after a moment.
type echo struct{}

func (echo) Run(ctx context.Context, job *engine.Job) (task.Outcome, error) {
	if string(protocol.Get(job.Request.Params, "name")) == `"ask"` {
		return ask(ctx, job)
	}
	select {
	case <-time.After(rand.N(5 * time.Millisecond)):
	case <-ctx.Done():
		return task.Outcome{}, ctx.Err()
	}
	arguments := protocol.Get(job.Request.Params, "arguments")
	if bytes.Contains(arguments, []byte("error")) {
		return task.Outcome{Error: protocol.Errorf(-32050, "%s", arguments).JSON()}, nil
	}
	return task.Outcome{Result: fmt.Appendf(nil, `{"content":[],"structuredContent":%s}`, arguments)}, nil
}

func open(database string) (*node.Node, error) {
	return node.Open(context.Background(), node.Config{
		Database: database, Runner: echo{}, Tools: receiver.Tools{Default: protocol.Optional}, Lease: lease, Grace: -1, Limits: limit.Off(),
	})
}

func serve(database string) error {
	n, err := open(database)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, listener.Addr())
	return http.Serve(listener, wire.Handler(http.NotFoundHandler(), n.Receiver, nil))
}

// acknowledged is what a client was told of a task.
type acknowledged struct {
	id     string
	answer string // the whole answer to tasks/result, or "" if there was none
	cancel bool   // its cancellation was acknowledged
}

type client struct {
	url string
	web *http.Client
}

// call returns the result and error of an answer; err means that none came.
func (c client) call(method, params string) (result json.RawMessage, fault json.RawMessage, err error) {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params)
	resp, err := c.web.Post(c.url, "application/json", strings.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, err
	}
	m, err := protocol.ParseMessage(data)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %q", err, data)
	}
	return m.Result, m.Error, nil
}

// load creates tasks and collects or cancels them until the server is gone.
func (c client) load(worker int, heard func(acknowledged)) {
	for i := 0; ; i++ {
		kind := []string{"ok", "error"}[i%2]
		result, fault, err := c.call("tools/call", fmt.Sprintf(`{"name":"x","arguments":{"w":%d,"i":%d,"kind":%q},"task":{}}`, worker, i, kind))
		if err != nil {
			return
		}
		id, _ := protocol.Unquote(protocol.Get(protocol.Get(result, "task"), "taskId"))
		if id == "" {
			heard(acknowledged{id: fmt.Sprintf("no task: %s %s", result, fault)})
			return
		}
		heard(acknowledged{id: id})
		switch params := `{"taskId":"` + id + `"}`; (worker + i) % 3 {
		case 0, 1:
			if result, fault, err = c.call("tasks/result", params); err != nil {
				return
			}
			heard(acknowledged{id: id, answer: string(result) + string(fault)})
		case 2:
			if _, fault, err = c.call("tasks/cancel", params); err != nil {
				return
			}
			if fault == nil {
				heard(acknowledged{id: id, cancel: true})
			}
		}
	}
}

// TestKill is promise 1: the server is killed at random points under load, and everything
// it ever acknowledged is there afterwards, as acknowledged.
func TestKill(t *testing.T) {
	database := "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")
	known := map[string]acknowledged{}
	var mu sync.Mutex
	heard := func(a acknowledged) {
		mu.Lock()
		defer mu.Unlock()
		known[a.id] = a
	}
	for round := range rounds {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), crashServer+"="+database)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		address, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatalf("round %d: the server did not start: %v", round, err)
		}
		transport := &http.Transport{MaxIdleConnsPerHost: clients}
		c := client{"http://" + strings.TrimSpace(address), &http.Client{Transport: transport}}
		var load sync.WaitGroup
		for worker := range clients {
			load.Go(func() { c.load(worker, heard) })
		}
		<-time.After(rand.N(300 * time.Millisecond)) // the random point
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		load.Wait()
		transport.CloseIdleConnections()
	}

	n, err := open(database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	from := &receiver.Requestor{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // those left running end when the dead lease does
	defer cancel()
	answered, cancelled, lost := 0, 0, 0
	for _, a := range known {
		m := protocol.NewCall(json.RawMessage("1"), protocol.MethodTasksResult, protocol.Marshal(map[string]string{"taskId": a.id}))
		got, err := n.Receiver.Handle(ctx, from, m)
		if err != nil {
			t.Fatalf("task %+v: %v", a, err)
		}
		code := string(protocol.Get(got.Error, "code"))
		switch {
		case a.answer != "":
			answered++
			if answer := string(got.Result) + string(got.Error); answer != a.answer {
				t.Errorf("task %s was answered %s, now %s", a.id, a.answer, answer)
			}
		case a.cancel:
			cancelled++
			if code != "-32800" {
				t.Errorf("cancelled task %s: %s %s", a.id, got.Result, got.Error)
			}
		case code == "-32602": // not found
			t.Errorf("task %s: %s", a.id, got.Error)
		case code == "-32603":
			lost++
		}
	}
	t.Logf("%d tasks acknowledged in %d rounds: %d answered, %d cancelled, %d failed with their process", len(known), rounds, answered, cancelled, lost)
	if len(known) < rounds || answered == 0 || cancelled == 0 {
		t.Error("too little load to prove anything")
	}
}
