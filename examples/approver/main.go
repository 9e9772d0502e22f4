// Command approver is a client whose user may take an hour over what a server asks: the
// elicitation runs as a task of the client's, which the server polls. It starts a server on
// stdio, calls one of its tools, and has what that asks answered on a page of its own.
//
//	go run ./examples/approver trigger-elicitation-request-async npx -y @modelcontextprotocol/server-everything
//
// Then open http://127.0.0.1:8090/.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
)

func main() {
	addr := flag.String("http", "127.0.0.1:8090", "the page's `address`")
	flag.Parse()
	if flag.NArg() < 2 {
		log.Fatal("usage: approver [-http ADDRESS] TOOL COMMAND [ARGUMENT...]")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *addr, flag.Arg(0), flag.Args()[1:]); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr, tool string, command []string) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	d := &desk{open: map[string]*request{}}
	go func() { _ = http.Serve(listener, http.NewCrossOriginProtection().Handler(d)) }()
	fmt.Printf("answer at http://%s/\n", listener.Addr())

	host, err := client.OpenHost(ctx, &client.HostOptions{Elicitation: client.Optional, Database: "sqlite:approver.db"})
	if err != nil {
		return err
	}
	c := mcp.NewClient(&mcp.Implementation{Name: "approver", Version: "1.0.0"}, &mcp.ClientOptions{ElicitationHandler: d.ask})
	server := &mcp.CommandTransport{Command: exec.CommandContext(ctx, command[0], command[1:]...)}
	s, err := client.Connect(ctx, c, server, &client.Options{Host: host, Server: strings.Join(command, " ")})
	if err != nil {
		return errors.Join(err, host.Close(ctx))
	}
	defer s.Close()
	defer host.Close(context.WithoutCancel(ctx))
	t, err := s.CallTool(ctx, &mcp.CallToolParams{Name: tool}, nil)
	if err != nil {
		return err
	}
	result, err := t.Wait(ctx)
	if err != nil {
		return err
	}
	for _, content := range result.Content {
		if text, ok := content.(*mcp.TextContent); ok {
			fmt.Println(text.Text)
		}
	}
	return nil
}

// desk has what waits for the user's answer.
type desk struct {
	mu   sync.Mutex
	open map[string]*request
}

type request struct {
	Message string
	Fields  map[string]any // the properties of the form's schema, by name
	answer  chan *mcp.ElicitResult
}

// ask is the client's elicitation handler. ctx ends when the server cancels the task, and
// when the task's time is over.
func (d *desk) ask(ctx context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	schema, _ := req.Params.RequestedSchema.(map[string]any)
	fields, _ := schema["properties"].(map[string]any)
	id, answer := rand.Text(), make(chan *mcp.ElicitResult, 1)
	d.mu.Lock()
	d.open[id] = &request{req.Params.Message, fields, answer}
	d.mu.Unlock()
	select {
	case result := <-answer:
		return result, nil
	case <-ctx.Done():
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.open, id)
		return nil, ctx.Err()
	}
}

// ServeHTTP takes an answer, POST /ID/ACTION with a form, and shows what is open.
func (d *desk) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if host, _, _ := net.SplitHostPort(req.Host); !net.ParseIP(host).IsLoopback() { // a foreign site's name that leads here
		http.Error(w, "Open this page as http://127.0.0.1:PORT/.", http.StatusForbidden)
		return
	}
	id, action, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.open[id]; r != nil && req.Method == http.MethodPost && req.ParseForm() == nil {
		delete(d.open, id)
		r.answer <- r.result(action, req)
	}
	_ = page.Execute(w, d.open)
}

func (r *request) result(action string, req *http.Request) *mcp.ElicitResult {
	result := &mcp.ElicitResult{Action: action, Content: map[string]any{}}
	for name, property := range r.Fields {
		if property, _ := property.(map[string]any); property["type"] == "boolean" {
			result.Content[name] = req.Form.Has(name)
		} else if text := req.Form.Get(name); text != "" {
			result.Content[name] = text
		}
	}
	if action != "accept" {
		result.Content = nil
	}
	return result
}

var page = template.Must(template.New("").Parse(`<!doctype html><html lang="en"><meta charset="utf-8"><title>Approvals</title>
{{range $id, $r := .}}<form method="post"><p>{{.Message}}</p>
{{range $name, $field := .Fields}}<p><label>{{or .title $name}} <input name="{{$name}}"{{if eq .type "boolean"}} type="checkbox"{{end}}></label></p>
{{end}}<button formaction="/{{$id}}/accept">Accept</button> <button formaction="/{{$id}}/decline">Decline</button></form>
{{else}}<p>Nothing to answer.</p>{{end}}`))
