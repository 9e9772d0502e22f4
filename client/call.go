package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"

	"github.com/coatcheck/coatcheck/protocol"
)

// Mode says whether a call is to run as a task.
type Mode int

// The modes.
const (
	Auto   Mode = iota // as a task where the server offers it and the tool allows it
	Never              // plainly, unless the tool requires a task
	Always             // as a task, or ErrUnsupported
	Plain              // plainly, whatever the tool requires, which is not asked for
)

// CallOptions configures CallTool. A nil *CallOptions means all defaults.
type CallOptions struct {
	Mode Mode
	// TTL is how long the server shall keep the task, from its creation, in whole
	// milliseconds (CRE-2). Default 0: the server decides.
	TTL time.Duration
	// Key makes a repeated call the same task, where the server knows such keys
	// (requirements C.8). Default: none.
	Key string
}

// CallTool calls a tool and returns a handle on the call. With a task at the server it
// returns as soon as that has made one; see Task.ID. A plain call goes on in the background,
// and ends with the session.
//
// The error is the server's refusal, a *jsonrpc.Error, ErrUnsupported, ErrProtocol, ErrClosed,
// or ctx's.
func (s *Session) CallTool(ctx context.Context, params *mcp.CallToolParams, opts *CallOptions) (*Task, error) {
	var o CallOptions
	if opts != nil {
		o = *opts
	}
	asTask, err := s.asTask(ctx, params.Name, o.Mode)
	if err != nil {
		return nil, err
	}
	t := newTask(s, "")
	raw, err := t.prepare(params, o)
	if err != nil {
		return nil, err
	}
	if asTask {
		augmentation := []byte("{}")
		if ms := o.TTL.Milliseconds(); ms > 0 {
			augmentation = []byte(`{"ttl":` + strconv.FormatInt(ms, 10) + `}`)
		}
		if raw, err = protocol.Set(raw, "task", augmentation); err != nil {
			return nil, err
		}
	}
	ctx, span := s.begin(ctx, protocol.MethodToolsCall, raw)
	raw = withTrace(ctx, raw)
	t.origin = origin{params.Name, span.SpanContext()}
	s.enter(t) // progress may come before the answer
	if !asTask {
		s.work.Go(func() { t.runPlainly(span, raw) })
		return t, nil
	}
	answer, err := s.conn.call(ctx, protocol.MethodToolsCall, raw)
	if err == nil {
		err = t.created(ctx, answer, raw)
	}
	span.end(answer, err)
	if err != nil {
		s.leave(t)
		t.cancel(err)
		return nil, err
	}
	return t, nil
}

// asTask decides whether a call is augmented (CAP-4, TOOL-1..4).
func (s *Session) asTask(ctx context.Context, name string, mode Mode) (bool, error) {
	if mode == Plain {
		return false, nil
	}
	support, err := s.tools.of(ctx, name)
	if err != nil {
		return false, fmt.Errorf("reading the server's tools: %w", err)
	}
	switch {
	case support == protocol.Required:
		return true, nil
	case mode == Always && support != protocol.Optional:
		return false, fmt.Errorf("calling %s as a task: %w", name, ErrUnsupported)
	}
	return support == protocol.Optional && mode != Never, nil
}

// prepare returns the params of a call, with a progress token.
func (t *Task) prepare(params *mcp.CallToolParams, o CallOptions) (json.RawMessage, error) {
	raw, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	t.token = string(protocol.Get(protocol.Get(raw, "_meta"), "progressToken"))
	out := json.RawMessage(raw)
	if t.token == "" {
		t.token = string(protocol.AppendString(nil, rand.Text()))
		if out, err = protocol.SetMeta(out, "progressToken", []byte(t.token)); err != nil {
			return nil, err
		}
	}
	if o.Key != "" {
		if out, err = protocol.SetMeta(out, protocol.MetaIdempotencyKey, protocol.AppendString(nil, o.Key)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// created reads what the server answered to an augmented call.
func (t *Task) created(ctx context.Context, answer, request json.RawMessage) error {
	raw := protocol.Get(answer, "task")
	if raw == nil { // a server may run it normally (CAP-5)
		t.settle(outcome{result: answer})
		t.session.leave(t)
		return nil
	}
	state, err := readState(raw)
	if err != nil {
		return err
	}
	t.session.mu.Lock()
	t.id = state.ID
	t.session.tasks[t.id] = append(t.session.tasks[t.id], t)
	t.session.mu.Unlock()
	t.answer = answer
	t.immediate, _ = protocol.Unquote(protocol.Get(protocol.Get(answer, "_meta"), protocol.MetaImmediateResponse))
	t.session.opts.Logger.InfoContext(ctx, "task created", "task", t.id, "tool", t.origin.tool, "server", t.session.opts.Server)
	t.record(request, state)
	if err := t.saw(state); err != nil {
		return err
	}
	t.follow()
	return nil
}

// runPlainly waits for the answer to a plain call.
func (t *Task) runPlainly(span *span, params json.RawMessage) {
	defer t.session.leave(t)
	ctx, cancel := context.WithCancel(trace.ContextWithSpan(t.session.ctx, span))
	defer cancel()
	stop := context.AfterFunc(t.ctx, cancel)
	defer stop()
	result, err := t.session.conn.call(ctx, protocol.MethodToolsCall, params)
	if t.session.ctx.Err() != nil {
		err = ErrClosed
	}
	if t.ctx.Err() != nil {
		err = context.Cause(t.ctx)
	}
	span.end(result, err)
	t.settle(outcome{result: result, err: err})
}

// Attach returns a handle on a task that exists at the server: one of an earlier session, or
// of another process of the same user. The error is ErrNotFound, ErrExpired, or that of the
// exchange.
func (s *Session) Attach(ctx context.Context, id string) (*Task, error) {
	return s.attach(ctx, id, origin{})
}

func (s *Session) attach(ctx context.Context, id string, of origin) (*Task, error) {
	t := newTask(s, id)
	t.origin = of
	s.enter(t)
	state, err := s.Get(ctx, id)
	if err == nil {
		err = t.saw(state)
	}
	if err != nil {
		s.leave(t)
		t.cancel(err)
		return nil, err
	}
	s.opts.Logger.InfoContext(ctx, "task attached", "task", id, "tool", of.tool, "server", s.opts.Server)
	t.follow()
	return t, nil
}

// Resume re-attaches all tasks that the ledger has for this server. Those that the server no
// longer has are taken from the ledger and left out.
func (s *Session) Resume(ctx context.Context) ([]*Task, error) {
	if s.opts.Ledger == nil {
		return nil, nil
	}
	entries, err := s.opts.Ledger.List(ctx, s.opts.Server)
	if err != nil {
		return nil, fmt.Errorf("reading the ledger: %w", err)
	}
	var all []*Task
	for _, entry := range entries {
		t, err := s.attach(ctx, entry.ID, originOf(entry.Params))
		switch {
		case err == nil:
			t.recorded = true
			all = append(all, t)
		case isGone(err):
			s.opts.Logger.Info("task is gone", "task", entry.ID, "server", s.opts.Server, "error", err)
			if err := s.opts.Ledger.Remove(ctx, s.opts.Server, entry.ID); err != nil {
				return all, fmt.Errorf("writing the ledger: %w", err)
			}
		default:
			return all, err
		}
	}
	return all, nil
}
