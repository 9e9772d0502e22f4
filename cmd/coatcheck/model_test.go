package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// model stands for a language model in a host that knows nothing of tasks or tickets: it sees the
// server's instructions, the tools, and the texts of their results, and does what those say.
// What is in _meta and structuredContent it is not shown.
type model struct {
	session *mcp.ClientSession
	tools   toolbox

	wants    string // "result", or "stop" once it has changed its mind
	harmless bool   // it knows that doing its call twice does no harm
	subject  string // the tool that it waits for, if it has forgotten the call

	original *modelCall     // the call that it waits for
	given    map[string]any // the arguments that it was last given to call a tool with
	listed   bool           // it has looked what there is
	heard    []string       // the texts, each of one call

	// What the world does before and after the nth call, from 1 on; nil for nothing. Cancelling
	// the call is the host's time limit.
	before func(n int, call *modelCall, cancel context.CancelFunc)
	after  func(n int)
	// How it hears a text; nil: as it is.
	hears func(string) string
}

// modelCall is a tools/call.
type modelCall struct {
	tool      string
	arguments map[string]any
}

// heard is how a call ended.
type heard struct {
	text   string
	result *mcp.CallToolResult // nil for a JSON-RPC error; for the test, not for the model
	err    *jsonrpc.Error
}

// following is how the instructions say what to do with a ticket.
var following = regexp.MustCompile(`\bdo what the ticket says\.`)

// orient reads what a session begins with.
func (m *model) orient(ctx context.Context, session *mcp.ClientSession) error {
	m.session = session
	var tools []*mcp.Tool
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			return err
		}
		tools = append(tools, tool)
	}
	var err error
	if m.tools, err = newToolbox(tools); err != nil {
		return err
	}
	instructions := session.InitializeResult().Instructions
	if !following.MatchString(instructions) {
		return fmt.Errorf("the instructions do not say what to do: %q", instructions)
	}
	return nil
}

// maxCalls is when a model that gets nowhere gives up.
const maxCalls = 40

// work makes a call and does what the answers say until one says nothing to do, which it
// returns. An answer that cannot be followed is an error.
func (m *model) work(ctx context.Context, call *modelCall) (*heard, error) {
	for range maxCalls {
		answer, err := m.call(ctx, call)
		if err != nil {
			return nil, err
		}
		if answer == nil { // none came in time: any model tries that again
			continue
		}
		text := answer.text
		r, err := readText(text, m.tools)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		next, err := m.choose(r, call)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		if next == nil {
			return answer, nil
		}
		call = next
	}
	return nil, fmt.Errorf("no end after %d calls; the last said %q", maxCalls, m.heard[len(m.heard)-1])
}

// call makes one call. It returns nil if the host's time limit ended it.
func (m *model) call(ctx context.Context, call *modelCall) (*heard, error) {
	n := len(m.heard) + 1
	calling, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if m.before != nil {
		m.before(n, call, cancel)
	}
	params := &mcp.CallToolParams{Name: call.tool, Arguments: call.arguments}
	params.SetProgressToken(fmt.Sprint("call ", n)) // as hosts do
	result, err := m.session.CallTool(calling, params)
	answer := &heard{result: result}
	switch refused, ok := errors.AsType[*jsonrpc.Error](err); {
	case ok:
		answer.err = refused
		answer.text = fmt.Sprintf("Error %d: %s", refused.Code, refused.Message)
	case errors.Is(err, context.Canceled) && ctx.Err() == nil:
		answer = nil
	case err != nil:
		return nil, err
	default:
		answer.text = textsOf(result)
		if m.hears != nil {
			answer.text = m.hears(answer.text)
		}
	}
	if answer != nil {
		m.heard = append(m.heard, answer.text)
	} else {
		m.heard = append(m.heard, "")
	}
	if m.after != nil {
		m.after(n)
	}
	return answer, nil
}

func textsOf(result *mcp.CallToolResult) string {
	var texts []string
	for _, c := range result.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			texts = append(texts, text.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// choose takes the first of what a text offers that serves what the model wants. It returns nil
// if there is nothing to do.
func (m *model) choose(r reading, last *modelCall) (*modelCall, error) {
	before := m.given
	for _, o := range r.offers {
		if o.action == callTool && o.arguments != nil {
			m.given = o.arguments
		}
	}
	for _, o := range r.offers {
		next := &modelCall{o.tool, o.arguments}
		switch o.action {
		case callTool:
			if !strings.Contains(o.purpose, m.wants) {
				continue
			}
		case pickEntry:
			if o.entry != m.subject {
				continue
			}
		case listTools:
			if m.listed {
				continue
			}
			m.listed = true
		case useGiven:
			if before == nil || cmp.Equal(before, last.arguments) {
				continue
			}
			next = &modelCall{last.tool, before}
		case callAgain:
			switch met, err := m.met(o.condition); {
			case err != nil:
				return nil, err
			case !met:
				continue
			case m.original == nil || o.tool != "" && o.tool != m.original.tool:
				return nil, errors.New("it does not know that call")
			}
			next = m.original
		}
		if slices.Contains(r.never, next.tool) {
			return nil, fmt.Errorf("the text says both to call %s and not to", next.tool)
		}
		return next, nil
	}
	for _, o := range r.offers {
		if o.action == callTool && m.wants == "stop" { // it is too late: so it takes what there is
			return &modelCall{o.tool, o.arguments}, nil
		}
	}
	return nil, nil
}

// met reports whether a condition holds, so far as the model knows.
func (m *model) met(condition string) (bool, error) {
	knows := map[string]bool{
		"that is still wanted":        m.wants == "result",
		"doing it twice does no harm": m.harmless,
	}
	all := true
	for clause := range strings.SplitSeq(condition, " and ") {
		holds, known := knows[clause]
		if !known {
			return false, fmt.Errorf("who knows whether %q?", clause)
		}
		all = all && holds
	}
	return all, nil
}

// outcome is a call's end in one form for both a result and an error, without _meta.
func (h *heard) outcome() string {
	if h.err != nil {
		data, _ := json.Marshal(h.err)
		return string(data)
	}
	result := *h.result
	result.Meta = nil
	data, _ := json.Marshal(&result)
	return string(data)
}
