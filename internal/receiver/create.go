package receiver

import (
	"context"
	"encoding/json"
	"math"
	"strconv"
	"time"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// maxKey bounds an idempotency key, in bytes.
const maxKey = 256

// longest caps a ttl to what a time.Duration and a date can hold: 100 years.
const longest = 100 * 365 * 24 * time.Hour

// request answers a request other than tools/call: augmented, or plain where a task is
// insisted on.
func (o *operation) request(ctx context.Context, m *protocol.Message) Answer {
	augmentation := protocol.Get(m.Params, "task")
	if augmentation == nil { // CAP-6, with the code of requirements C.1
		return o.invalid(ctx, protocol.CodeInvalidRequest, "%s must be requested as a task: add params.task", m.Method)
	}
	return o.create(ctx, m, augmentation, 0)
}

// callTool answers tools/call: augmented, or plain where the tool requires a task.
func (o *operation) callTool(ctx context.Context, m *protocol.Message) Answer {
	name, ok := protocol.Unquote(protocol.Get(m.Params, "name"))
	if !ok {
		return o.invalid(ctx, protocol.CodeInvalidParams, "Invalid params: name must be a string")
	}
	augmentation := protocol.Get(m.Params, "task")
	if augmentation == nil { // TOOL-4, with the code of requirements C.1
		return o.invalid(ctx, protocol.CodeMethodNotFound, "Tool '%s' must be called as a task: add params.task", name)
	}
	if o.tools.support(ctx, name) == protocol.Forbidden { // TOOL-2
		return o.invalid(ctx, protocol.CodeMethodNotFound, "Tool '%s' does not support task-augmented calls", name)
	}
	return o.create(ctx, m, augmentation, o.waits[name])
}

// create answers an augmented request with a task. wait is how long that may wait for
// what the model is told for now.
func (o *operation) create(ctx context.Context, m *protocol.Message, augmentation json.RawMessage, wait time.Duration) Answer {
	lifetime, bad := parseAugmentation(augmentation)
	if bad != nil {
		return o.invalid(ctx, bad.Code, "%s", bad.Message)
	}
	key, bad := idempotencyKey(o.from, m.Params)
	if bad != nil {
		return o.invalid(ctx, bad.Code, "%s", bad.Message)
	}
	plain, err := protocol.Delete(m.Params, "task")
	if err != nil {
		return o.invalid(ctx, protocol.CodeInvalidParams, "Invalid params: %v", err)
	}
	t, err := o.engine.Create(ctx, engine.Creation{
		Caller:    &o.from.Caller,
		Request:   task.Request{Method: m.Method, Params: plain},
		Lifetime:  lifetime,
		Key:       key,
		Immediate: wait,
	})
	if err != nil {
		return o.failed(ctx, "create task", err)
	}
	o.about(ctx, t)
	immediate := ""
	if wait > 0 {
		immediate = o.engine.Immediate(ctx, t.Ref, wait)
	}
	return Answer{Result: createResult(t, immediate)}
}

// createResult is the CreateTaskResult of a task (CRE-1), marked as the task's (REL-1), with
// what the model is told for now (CRE-4), if anything.
func createResult(t *task.Task, immediate string) json.RawMessage {
	wire := wireTask(t)
	out := append(make([]byte, 0, 512), `{"task":`...)
	out = wire.AppendJSON(out)
	out = append(out, `,"_meta":{"`+protocol.MetaRelatedTask+`":`...)
	out = append(out, protocol.RelatedTask(t.ID)...)
	if immediate != "" {
		out = append(out, `,"`+protocol.MetaImmediateResponse+`":`...)
		out = protocol.AppendString(out, immediate)
	}
	return append(out, "}}"...)
}

// parseAugmentation reads params.task: {ttl?} (CRE-2, requirements C.3).
func parseAugmentation(raw json.RawMessage) (engine.Lifetime, *protocol.Error) {
	members, err := protocol.Members(raw)
	if err != nil {
		return engine.Lifetime{}, protocol.Errorf(protocol.CodeInvalidParams, "Invalid params: task must be an object")
	}
	var lifetime engine.Lifetime
	for _, m := range members {
		if m.Key == "ttl" {
			if lifetime.TTL, err = parseTTL(m.Value); err != nil {
				return lifetime, protocol.Errorf(protocol.CodeInvalidParams,
					"Invalid params: task.ttl must be a number of milliseconds, at least 1, or null")
			}
			lifetime.Asked = true
		}
	}
	return lifetime, nil
}

// parseTTL reads a ttl in milliseconds; null is 0, which asks for an unlimited one.
func parseTTL(raw json.RawMessage) (time.Duration, error) {
	if string(raw) == "null" {
		return 0, nil
	}
	ms, err := strconv.ParseFloat(string(raw), 64)
	if math.IsInf(ms, 1) {
		err = nil // a number too large even for this is still a large number
	}
	if err != nil {
		return 0, err
	}
	if !(ms >= 1) {
		return 0, strconv.ErrRange
	}
	if ms >= float64(longest.Milliseconds()) {
		return longest, nil
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// idempotencyKey reads the key of requirements C.8 from params._meta. A key leads to a task,
// so it must be nobody else's to use: without an identity it holds within the session.
func idempotencyKey(from *Requestor, params json.RawMessage) (string, *protocol.Error) {
	raw := protocol.Get(protocol.Get(params, "_meta"), protocol.MetaIdempotencyKey)
	if raw == nil {
		return "", nil
	}
	key, ok := protocol.Unquote(raw)
	if !ok || key == "" || len(key) > maxKey {
		return "", protocol.Errorf(protocol.CodeInvalidParams,
			"Invalid params: _meta[%q] must be a string of 1 to %d bytes", protocol.MetaIdempotencyKey, maxKey)
	}
	if from.Identified {
		return key, nil
	}
	if from.Session == "" {
		return "", protocol.Errorf(protocol.CodeInvalidParams,
			"Invalid params: _meta[%q] needs authorization or a session", protocol.MetaIdempotencyKey)
	}
	return from.Session + "/" + key, nil
}
