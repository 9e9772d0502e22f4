package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// sampler answers the server's sampling requests with a shell command: the request's params
// on its stdin, the result on its stdout.
type sampler struct {
	command string
	show    *display
	slots   chan struct{} // taken by those that run
}

const (
	maxSamplers  = 4        // how many commands run at once; further requests wait
	maxSample    = 16 << 20 // of a command's stdout, in bytes
	maxComplaint = 2 << 10  // of a command's stderr in an error, in bytes: its end
	// sampleGrace is how long the output of a command that has ended is still read: what it
	// left behind may hold the pipe open for ever.
	sampleGrace = time.Second
)

// hostSampling has a command answer sampling, plainly or in a task that is hosted here (CAP-2).
// The host must be closed.
func hostSampling(ctx context.Context, command string, show *display, as *peer) error {
	host, err := client.OpenHost(ctx, &client.HostOptions{Sampling: client.Optional, Database: "memory:", Grace: -1})
	if err != nil {
		return err
	}
	s := &sampler{command: command, show: show, slots: make(chan struct{}, maxSamplers)}
	as.host = host
	as.capabilities.Sampling = &mcp.SamplingCapabilities{}
	as.handlers[protocol.MethodCreateMessage] = func(ctx context.Context, params json.RawMessage) client.Answer {
		return func() (json.RawMessage, error) { return s.sample(ctx, params) }
	}
	return nil
}

// sample answers a request once the command has.
func (s *sampler) sample(ctx context.Context, params json.RawMessage) (json.RawMessage, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.show.line("The server asks for a model's answer. Running: %s", brief(s.command))
	result, err := s.run(ctx, params)
	if err != nil && ctx.Err() == nil {
		s.show.line("No answer for the server: %s", brief(err.Error()))
	}
	return result, err
}

func (s *sampler) run(ctx context.Context, params json.RawMessage) (json.RawMessage, error) {
	cmd := shell(ctx, s.command)
	cmd.WaitDelay = sampleGrace
	out := &bounded{most: maxSample}
	said := &complaint{show: s.show}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(append(params, '\n')), out, said
	err := cmd.Run()
	if cmd.Process != nil {
		killGroup(cmd) // what it left behind
	}
	complained := said.end()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case out.over:
		return nil, failedSample("the sampling command's answer is larger than %d bytes", maxSample)
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		message := fmt.Sprintf("the sampling command failed: %v", err)
		if complained != "" {
			message += ": " + complained
		}
		return nil, failedSample("%s", message)
	}
	return sampled(out.Bytes())
}

// sampled checks that a command's output is a CreateMessageResult.
func sampled(out []byte) (json.RawMessage, error) {
	wrong := func(err error) error {
		return failedSample("the sampling command's answer is no CreateMessageResult: %v", err)
	}
	if err := protocol.Valid(out); err != nil {
		return nil, wrong(err)
	}
	var result mcp.CreateMessageWithToolsResult // content may be one or several
	if err := json.Unmarshal(out, &result); err != nil {
		return nil, wrong(err)
	}
	if result.Role == "" || result.Model == "" || len(result.Content) == 0 {
		return nil, wrong(errors.New("it needs role, model and content"))
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, out); err != nil {
		return nil, wrong(err)
	}
	return compact.Bytes(), nil
}

func failedSample(format string, args ...any) error {
	return &jsonrpc.Error{Code: protocol.CodeInternalError, Message: fmt.Sprintf(format, args...)}
}

// bounded is a buffer that takes so much and no more. What is too much ends the command by
// the pipe.
type bounded struct {
	bytes.Buffer
	most int
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.most {
		b.over = true
		return 0, io.ErrShortWrite
	}
	return b.Buffer.Write(p)
}

// complaint shows a command's stderr line by line, and keeps its end.
type complaint struct {
	show *display

	mu   sync.Mutex
	line []byte // begun
	tail []byte
}

func (c *complaint) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tail = append(c.tail, p...)
	c.tail = c.tail[max(0, len(c.tail)-maxComplaint):]
	c.line = append(c.line, p...)
	for {
		line, rest, whole := bytes.Cut(c.line, []byte("\n"))
		if !whole && len(line) < maxLogged {
			return len(p), nil
		}
		c.say(line)
		c.line = rest
	}
}

func (c *complaint) say(line []byte) {
	if text := oneLine(string(line)); text != "" {
		c.show.line("[sampling] %s", text)
	}
}

// end shows what is left and returns the end of what was said.
func (c *complaint) end() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.say(c.line)
	c.line = nil
	return strings.TrimSpace(strings.ToValidUTF8(string(c.tail), ""))
}
