package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// approverRole, in the environment, makes this test binary a client on stdio that hosts
// elicitations, in the database that it names. Its user never answers.
const approverRole = "COATCHECK_TEST_APPROVER"

func approverProcess(database string) error {
	ctx := context.Background()
	host, err := client.OpenHost(ctx, &client.HostOptions{Elicitation: client.Required, Database: database, Grace: -1})
	if err != nil {
		return err
	}
	c := mcp.NewClient(&mcp.Implementation{Name: "approver", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
	})
	s, err := client.Connect(ctx, c, &mcp.StdioTransport{}, &client.Options{Host: host, Server: "s"})
	if err != nil {
		return err
	}
	_ = s.SDK().Wait()
	return errors.Join(host.Close(ctx), s.Close())
}

// approver is such a process, seen from its server.
type approver struct {
	t    *testing.T
	cmd  *exec.Cmd
	conn mcp.Connection
	last float64
}

func startApprover(t *testing.T, database string) *approver {
	t.Helper()
	a := &approver{t: t, cmd: exec.Command(os.Args[0])}
	a.cmd.Env = append(os.Environ(), approverRole+"="+database)
	a.cmd.Stderr = os.Stderr
	var err error
	if a.conn, err = (&mcp.CommandTransport{Command: a.cmd}).Connect(context.Background()); err != nil {
		t.Fatal(err)
	}
	for ready := false; !ready; {
		switch msg := a.read().(type) {
		case *jsonrpc.Request:
			if msg.IsCall() { // initialize
				a.write(&jsonrpc.Response{ID: msg.ID, Result: []byte(capabilities)})
			} else {
				ready = true
			}
		}
	}
	return a
}

func (a *approver) read() jsonrpc.Message {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	msg, err := a.conn.Read(ctx)
	if err != nil {
		a.t.Fatal(err)
	}
	return msg
}

func (a *approver) write(msg jsonrpc.Message) {
	a.t.Helper()
	if err := a.conn.Write(context.Background(), msg); err != nil {
		a.t.Fatal(err)
	}
}

func (a *approver) send(method, params string) {
	a.t.Helper()
	a.last++
	id, _ := jsonrpc.MakeID(a.last)
	a.write(&jsonrpc.Request{ID: id, Method: method, Params: []byte(params)})
}

// answer returns the next response.
func (a *approver) answer() *jsonrpc.Response {
	a.t.Helper()
	for {
		if resp, ok := a.read().(*jsonrpc.Response); ok {
			return resp
		}
	}
}

func (a *approver) kill() {
	a.t.Helper()
	if err := a.cmd.Process.Kill(); err != nil {
		a.t.Fatal(err)
	}
	_ = a.conn.Close() // it waits for the process
}

// A task that the server knows of is there after the client was killed, and says plainly what
// became of it: there is nobody any more who could answer. C.11, EXE-3
func TestKilledApprover(t *testing.T) {
	database := "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")
	var known []string
	for round := range 3 {
		a := startApprover(t, database)
		const asked = 10
		for i := range asked {
			a.send("elicitation/create", fmt.Sprintf(`{"message":"%d of %d?","requestedSchema":{"type":"object","properties":{}},"task":{"ttl":600000}}`, i, round))
		}
		for range []int{1, asked / 2, asked}[round] { // and not a moment longer
			resp := a.answer()
			id, _ := protocol.Unquote(protocol.Get(protocol.Get(resp.Result, "task"), "taskId"))
			if id == "" {
				t.Fatalf("created %s, %v", resp.Result, resp.Error)
			}
			known = append(known, id)
		}
		a.kill()
	}

	a := startApprover(t, database)
	const plainly = "The client stopped before the task finished, and started again without it."
	deadline := time.Now().Add(time.Minute)
	for _, id := range known {
		for range time.Tick(10 * time.Millisecond) { // within the rate of gets
			a.send("tasks/get", ref(id))
			got := a.answer()
			if got.Error != nil {
				t.Fatalf("the task is lost: %v", got.Error)
			}
			status, _ := protocol.Unquote(protocol.Get(got.Result, "status"))
			message, _ := protocol.Unquote(protocol.Get(got.Result, "statusMessage"))
			if status == "failed" {
				if message != plainly {
					t.Errorf("failed with %q", message)
				}
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the task stays %s", got.Result)
			}
		}
		a.send("tasks/result", ref(id))
		got := a.answer()
		wire, ok := errors.AsType[*jsonrpc.Error](got.Error)
		if !ok || wire.Code != protocol.CodeInternalError || wire.Message != plainly {
			t.Errorf("result %s, %v", got.Result, got.Error)
		}
	}
	a.send("tasks/list", "{}")
	listed := a.answer()
	all, err := protocol.Elements(protocol.Get(listed.Result, "tasks"))
	if err != nil || len(all) < len(known) || len(all) > 30 {
		t.Errorf("%d tasks are listed of %d that the server knows: %v", len(all), len(known), err)
	}
	a.kill()
}
