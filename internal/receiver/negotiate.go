package receiver

import (
	"encoding/json"

	"github.com/coatcheck/coatcheck/protocol"
)

// Negotiate returns an initialize result with capabilities.tasks as they are here (CAP-1,
// CAP-2), and whether the session has them: only revision 2025-11-25 does.
func (r *Receiver) Negotiate(from *Requestor, result json.RawMessage) (rewritten json.RawMessage, tasks bool) {
	version, _ := protocol.Unquote(protocol.Get(result, "protocolVersion"))
	if version != protocol.Version20251125 || !r.tools.Any() {
		return result, false
	}
	capabilities := protocol.Get(result, "capabilities")
	if _, err := protocol.Members(capabilities); err != nil {
		capabilities = json.RawMessage("{}")
	}
	declared := protocol.ServerTasks{
		Cancel:   &struct{}{},
		Requests: &protocol.ServerTaskRequest{Tools: &protocol.ToolTaskRequest{Call: &struct{}{}}},
	}
	if from.Identified { // SEC-4
		declared.List = &struct{}{}
	}
	capabilities, err := protocol.Set(capabilities, "tasks", protocol.Marshal(declared))
	if err != nil {
		return result, false
	}
	if rewritten, err = protocol.Set(result, "capabilities", capabilities); err != nil {
		return result, false
	}
	return rewritten, true
}

// DeclareTools returns a tools/list result with each tool's taskSupport as it is here.
// A result that cannot be read is returned as it is.
func (r *Receiver) DeclareTools(result json.RawMessage) json.RawMessage {
	if !r.tools.Any() {
		return result
	}
	if declared, err := r.tools.declareTools(result); err == nil {
		return declared
	}
	return result
}

// Declare returns the params of a client's initialize request with capabilities.tasks as they
// are here (CAP-1, CAP-2): those of the requests that run as tasks.
func (r *Receiver) Declare(params json.RawMessage) json.RawMessage {
	if len(r.requests) == 0 {
		return params
	}
	capabilities := protocol.Get(params, "capabilities")
	if _, err := protocol.Members(capabilities); err != nil {
		capabilities = json.RawMessage("{}")
	}
	declared := protocol.ClientTasks{List: &struct{}{}, Cancel: &struct{}{}, Requests: &protocol.ClientTaskRequest{}}
	if _, ok := r.requests[protocol.MethodCreateMessage]; ok {
		declared.Requests.Sampling = &protocol.SamplingTaskRequest{CreateMessage: &struct{}{}}
	}
	if _, ok := r.requests[protocol.MethodElicit]; ok {
		declared.Requests.Elicitation = &protocol.ElicitationTaskRequest{Create: &struct{}{}}
	}
	capabilities, err := protocol.Set(capabilities, "tasks", protocol.Marshal(declared))
	if err != nil {
		return params
	}
	if with, err := protocol.Set(params, "capabilities", capabilities); err == nil {
		return with
	}
	return params
}
