package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// samplingServer is a server over stdio whose tools ask for sampling, message by message.
type samplingServer struct {
	mu           sync.Mutex
	lastID       int
	waiting      map[string]chan *protocol.Message
	capabilities json.RawMessage // of the client
}

// samplingServerMain is the program sampling-server.
func samplingServerMain() {
	s := &samplingServer{waiting: map[string]chan *protocol.Message{}}
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		m, err := protocol.ParseMessage(line)
		if err != nil {
			panic(err)
		}
		switch m.Method {
		case "":
			s.mu.Lock()
			s.waiting[string(m.ID)] <- m
			s.mu.Unlock()
		case protocol.MethodInitialize:
			s.capabilities = protocol.Get(m.Params, "capabilities")
			s.say(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","serverInfo":{"name":"sampling","version":"1"},"capabilities":{"tools":{}}}}`, m.ID)
		case protocol.MethodToolsList:
			s.say(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[]}}`, m.ID)
		case protocol.MethodToolsCall:
			name, _ := protocol.Unquote(protocol.Get(m.Params, "name"))
			arg, _ := protocol.Unquote(protocol.Get(protocol.Get(m.Params, "arguments"), "arg"))
			go func() {
				said := protocol.AppendString(nil, s.tool(name, arg))
				s.say(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%s}]}}`, m.ID, said)
			}()
		}
	}
}

func (s *samplingServer) tool(name, arg string) string {
	switch name {
	case "capabilities":
		return string(s.capabilities)
	case "plain":
		return s.ask(protocol.MethodCreateMessage, sampling)
	case "task":
		id := s.create()
		return id + " " + s.outcome(id)
	case "kept": // arg is the id of a task that the client had before
		return s.outcome(arg)
	case "cancel": // once the file arg is there
		id := s.create()
		awaitFile(arg)
		cancelled := s.ask(protocol.MethodTasksCancel, `{"taskId":"`+id+`"}`)
		return strings.ReplaceAll(string(protocol.Get([]byte(cancelled), "status")), `"`, "")
	case "withdraw": // once the file arg is there
		id, _ := s.begin(protocol.MethodCreateMessage, sampling)
		awaitFile(arg)
		s.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, id)
		return "withdrawn"
	}
	return "no such tool"
}

// sampling is what the server asks for.
const sampling = `{"messages":[],"maxTokens":100,"odd":1.50}`

// create asks for sampling as a task, and returns the task's id.
func (s *samplingServer) create() string {
	params, err := protocol.Set([]byte(sampling), "task", []byte(`{"ttl":600000}`))
	if err != nil {
		panic(err)
	}
	created := s.ask(protocol.MethodCreateMessage, string(params))
	id, _ := protocol.Unquote(protocol.Get(protocol.Get([]byte(created), "task"), "taskId"))
	return cmp.Or(id, created)
}

// outcome polls a task of the client until it has ended, and returns its status and result.
func (s *samplingServer) outcome(id string) string {
	ref := `{"taskId":"` + id + `"}`
	for {
		state := s.ask(protocol.MethodTasksGet, ref)
		status, _ := protocol.Unquote(protocol.Get([]byte(state), "status"))
		switch status {
		case "":
			return state
		case string(client.Working):
			time.Sleep(10 * time.Millisecond) //nolint:forbidigo // polling another process
		default:
			return status + " " + s.ask(protocol.MethodTasksResult, ref)
		}
	}
}

// ask sends the client a request and returns the result, or the error in words.
func (s *samplingServer) ask(method, params string) string {
	_, answer := s.begin(method, params)
	m := <-answer
	if m.Error != nil {
		message, _ := protocol.Unquote(protocol.Get(m.Error, "message"))
		return fmt.Sprintf("error %s %s", protocol.Get(m.Error, "code"), message)
	}
	return string(m.Result)
}

func (s *samplingServer) begin(method, params string) (id string, answer <-chan *protocol.Message) {
	s.mu.Lock()
	s.lastID++
	id = strconv.Itoa(s.lastID)
	waiting := make(chan *protocol.Message, 1)
	s.waiting[id] = waiting
	s.mu.Unlock()
	s.say(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params)
	return id, waiting
}

func (s *samplingServer) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Printf(format+"\n", args...)
}

// awaitFile waits until another process has made a file.
func awaitFile(name string) {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(name); err == nil {
			return
		}
		if time.Now().After(deadline) {
			panic("nobody made " + name)
		}
	}
}

// TestSampled: a text is wrapped, what begins with { must be a CreateMessageResult.
func TestSampled(t *testing.T) {
	const whole = `{"role":"assistant","content":{"type":"text","text":"x"},"model":"m"}`
	text := func(json string) string {
		return `{"role":"assistant","content":{"type":"text","text":` + json + `},"model":"host-sampling"}`
	}
	for _, c := range []struct{ out, result, err string }{
		{"Hello,\n \"you\"\n\n", text(`"Hello,\n \"you\""`), ""},
		{"  - <one>\n", text(`"  - <one>"`), ""},
		{"[1,2]", text(`"[1,2]"`), ""},
		{"\n" + strings.ReplaceAll(whole, ",", ",\n\t") + "\n", whole, ""},
		{`{"odd":1.50,` + whole[1:], `{"odd":1.50,` + whole[1:], ""},
		{`{"role":"assistant","content":[{"type":"text","text":"x"}],"model":"m"}`, `{"role":"assistant","content":[{"type":"text","text":"x"}],"model":"m"}`, ""},
		{" \n", "", "printed no answer"},
		{"\xff", "", "not UTF-8"},
		{"{", "", "begins with { and is no CreateMessageResult"},
		{`{"role":"assistant","model":"m"}`, "", "it needs content"},
		{`{"role":"assistant","content":{"type":"text","text":"x"}}`, "", "it needs model"},
		{`{"role":"assistant","content":"x","model":"m"}`, "", "is no CreateMessageResult"},
		{whole + whole, "", "is no CreateMessageResult"},
	} {
		result, err := sampled([]byte(c.out))
		switch {
		case c.err == "" && (err != nil || string(result) != c.result):
			t.Errorf("%q: %s, %v, want %s", c.out, result, err, c.result)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%q: %s, %v, want %s", c.out, result, err, c.err)
		}
	}
}

// TestSamplers: so many commands run at once; a further request waits until one has ended.
func TestSamplers(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the command is of sh")
	}
	show, shown := onScreen(t)
	s := newSampler("echo busy >&2; exec sleep 600", show)
	said := ""
	await := func(busy int) {
		t.Helper()
		for deadline := time.Now().Add(patience); strings.Count(said, "[sampling] busy") < busy; time.Sleep(10 * time.Millisecond) {
			if said += shown(); time.Now().After(deadline) {
				t.Fatalf("not %d commands run:\n%s", busy, said)
			}
		}
		if n := strings.Count(said, "Running: "); n != busy {
			t.Errorf("%d commands run, want %d", n, busy)
		}
	}
	ended := make(chan error, maxSamplers+2)
	begin := func() context.CancelFunc {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, err := s.sample(ctx, json.RawMessage(`{}`))
			ended <- err
		}()
		return cancel
	}
	first := begin()
	await(1)
	rest := []context.CancelFunc{}
	for range maxSamplers + 1 {
		rest = append(rest, begin())
	}
	await(maxSamplers)
	first()
	await(maxSamplers + 1)
	for _, cancel := range rest {
		cancel()
	}
	for range maxSamplers + 2 { // one of them never ran
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}
