package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
)

// samplingFlags say what answers a server's sampling requests.
type samplingFlags struct {
	HostSampling string `placeholder:"'COMMAND'" help:"Answer the server's sampling requests, plain ones and tasks, with this shell command: the request's params as JSON on its stdin, the answer on its stdout."`
	HostStore    string `default:"memory:" help:"Where the tasks of --host-sampling are kept: sqlite:FILE, or memory: (lost with the process)."`
}

const samplingHelp = `
With --host-sampling the server may also ask for a model's answer (sampling), as a task if it
wants one. The command runs once for each request, at most 4 at a time. What it prints is the
text of the answer, or, if it begins with {, a whole CreateMessageResult as JSON. Any other
exit code than 0 is an error for the server, with the last line of the command's stderr. When
the server cancels, the command and all that it started are killed. Such tasks are kept in
--host-store; what still runs when this program ends has failed.
`

// modelName is the model of an answer that is a text alone.
const modelName = "host-sampling"

const (
	maxSamplers = 4        // how many commands run at once; further requests wait
	maxSample   = 16 << 20 // of a command's stdout, in bytes
	// sampleGrace is how long the output of a command that has ended is still read: what it
	// left behind may hold the pipe open for ever.
	sampleGrace = time.Second
)

// host has the command answer sampling, plainly or in a task that is hosted here (CAP-2).
func (f samplingFlags) host(ctx context.Context, show *display, as *peer) error {
	if f.HostSampling == "" {
		return nil
	}
	if err := checkStore("--host-store", f.HostStore); err != nil {
		return err
	}
	if err := checkFolder("--host-store", f.HostStore); err != nil {
		return err
	}
	host, err := client.OpenHost(ctx, &client.HostOptions{Sampling: client.Optional, Database: f.HostStore, Grace: -1})
	if err != nil {
		return fmt.Errorf("--host-store %s: %w", f.HostStore, err)
	}
	s := newSampler(f.HostSampling, show)
	as.host = host
	as.capabilities.Sampling = &mcp.SamplingCapabilities{}
	as.handlers[protocol.MethodCreateMessage] = func(ctx context.Context, params json.RawMessage) client.Answer {
		return func() (json.RawMessage, error) { return s.sample(ctx, params) }
	}
	return nil
}

// sampler answers sampling requests with a shell command.
type sampler struct {
	command string
	show    *display
	slots   chan struct{} // taken by those that run
}

func newSampler(command string, show *display) *sampler {
	return &sampler{command: command, show: show, slots: make(chan struct{}, maxSamplers)}
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
	switch {
	case ctx.Err() != nil:
		s.show.line("The request for a model's answer was withdrawn.")
	case err != nil:
		s.show.line("No answer for the server: %s", brief(err.Error()))
	}
	return result, err
}

func (s *sampler) run(ctx context.Context, params json.RawMessage) (json.RawMessage, error) {
	running, kill := context.WithCancel(ctx)
	defer kill()
	cmd := shell(running, s.command)
	cmd.WaitDelay = sampleGrace
	out := &bounded{most: maxSample, exceeded: kill}
	said := &complaint{show: s.show}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(append(bytes.Clone(params), '\n')), out, said
	err := cmd.Run()
	last := said.end()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case out.over:
		return nil, unsampled("the sampling command printed more than %d bytes", maxSample)
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		if last != "" {
			return nil, unsampled("the sampling command failed: %v: %s", err, last)
		}
		return nil, unsampled("the sampling command failed: %v", err)
	}
	return sampled(out.taken)
}

// sampled makes a command's output a CreateMessageResult.
func sampled(out []byte) (json.RawMessage, error) {
	text := bytes.TrimSpace(out)
	switch {
	case len(text) == 0:
		return nil, unsampled("the sampling command printed no answer")
	case !utf8.Valid(text):
		return nil, unsampled("the sampling command's answer is not UTF-8")
	case text[0] == '{':
		return sampledRaw(text)
	}
	said := protocol.AppendString(nil, strings.TrimRight(string(out), "\r\n"))
	return fmt.Appendf(nil, `{"role":"assistant","content":{"type":"text","text":%s},"model":%q}`, said, modelName), nil
}

// sampledRaw checks a CreateMessageResult.
func sampledRaw(out []byte) (json.RawMessage, error) {
	wrong := func(err error) (json.RawMessage, error) {
		return nil, unsampled("the sampling command's answer begins with { and is no CreateMessageResult: %v", err)
	}
	if err := protocol.Valid(out); err != nil {
		return wrong(err)
	}
	for _, key := range []string{"role", "content", "model"} {
		if protocol.Get(out, key) == nil {
			return wrong(fmt.Errorf("it needs %s", key))
		}
	}
	var result mcp.CreateMessageWithToolsResult // content may be one or several
	if err := json.Unmarshal(out, &result); err != nil {
		return wrong(err)
	}
	var line bytes.Buffer // a message over stdio is one line
	if err := json.Compact(&line, out); err != nil {
		return wrong(err)
	}
	return line.Bytes(), nil
}

func unsampled(format string, args ...any) error {
	return &jsonrpc.Error{Code: protocol.CodeInternalError, Message: fmt.Sprintf(format, args...)}
}
