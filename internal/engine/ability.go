package engine

import (
	"encoding/json"
	"strings"

	"github.com/coatcheck/coatcheck/protocol"
)

// unsupportedMethod is what the SDK's client answers where it has no handler.
const unsupportedMethod = -31001

// refusal returns the error for a question that a client cannot be asked: the one that the
// SDK's client gives. initialize has the client's capabilities; unknown ones refuse nothing,
// the client then does it itself.
func refusal(initialize json.RawMessage, method string, params json.RawMessage) *protocol.Error {
	switch method {
	case protocol.MethodElicit, protocol.MethodCreateMessage, protocol.MethodListRoots:
	case protocol.MethodTasksGet, protocol.MethodTasksResult, protocol.MethodTasksCancel, protocol.MethodTasksList:
	default:
		return protocol.Errorf(protocol.CodeMethodNotFound, "Method not found: %s", method)
	}
	if initialize == nil {
		return nil
	}
	capabilities := protocol.Get(initialize, "capabilities")
	switch method {
	case protocol.MethodElicit:
		elicitation := protocol.Get(capabilities, "elicitation")
		if !declared(elicitation) {
			return protocol.Errorf(protocol.CodeInvalidParams, "client does not support elicitation")
		}
		form, url := declared(protocol.Get(elicitation, "form")), declared(protocol.Get(elicitation, "url"))
		if mode := elicitMode(params); mode == "url" && !url || mode != "url" && !form && url { // {} alone means form
			return protocol.Errorf(protocol.CodeInvalidParams, "unsupported elicitation mode: %q", mode)
		}
	case protocol.MethodCreateMessage:
		if !declared(protocol.Get(capabilities, "sampling")) {
			return protocol.Errorf(unsupportedMethod, "client does not support CreateMessage")
		}
	case protocol.MethodListRoots:
		if !declared(protocol.Get(capabilities, "roots")) {
			return protocol.Errorf(protocol.CodeMethodNotFound, "client does not support roots")
		}
	default: // CAP-1, CAP-3
		tasks := protocol.Get(capabilities, "tasks")
		if !declared(tasks) ||
			method == protocol.MethodTasksCancel && !declared(protocol.Get(tasks, "cancel")) ||
			method == protocol.MethodTasksList && !declared(protocol.Get(tasks, "list")) {
			return protocol.Errorf(protocol.CodeMethodNotFound, "client does not support %s", method)
		}
	}
	return nil
}

// Hosts reports whether a client runs requests of a kind as tasks (CAP-2, CAP-4). initialize
// has its capabilities; unknown ones are none.
func Hosts(initialize json.RawMessage, method string) bool {
	kind, action, _ := strings.Cut(method, "/")
	requests := protocol.Get(protocol.Get(protocol.Get(initialize, "capabilities"), "tasks"), "requests")
	return declared(protocol.Get(protocol.Get(requests, kind), action))
}

// KnowsTasks reports whether a client declared tasks in any form (CAP-1).
func KnowsTasks(initialize json.RawMessage) bool {
	return declared(protocol.Get(protocol.Get(initialize, "capabilities"), "tasks"))
}

// HostsAny reports whether a client runs any request as a task.
func HostsAny(initialize json.RawMessage) bool {
	return Hosts(initialize, protocol.MethodCreateMessage) || Hosts(initialize, protocol.MethodElicit)
}

func declared(capability json.RawMessage) bool {
	return capability != nil && string(capability) != "null"
}

func elicitMode(params json.RawMessage) string {
	if mode, ok := protocol.Unquote(protocol.Get(params, "mode")); ok && mode != "" {
		return mode
	}
	return "form"
}

// Capabilities are those of a client that its requests can be answered with from inside a
// task: elicitation, sampling and roots, and which it runs as tasks, as it declared them, or
// all of the former if what it declared is not known.
func (c *Caller) Capabilities() json.RawMessage {
	if c == nil || c.Initialize == nil {
		return json.RawMessage(`{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{}},"roots":{}}`)
	}
	declares := protocol.Get(c.Initialize, "capabilities")
	out := json.RawMessage("{}")
	for _, name := range []string{"elicitation", "sampling", "roots", "tasks"} {
		value := protocol.Get(declares, name)
		if !declared(value) || name == "tasks" && !HostsAny(c.Initialize) {
			continue
		}
		if name == "roots" {
			value = json.RawMessage("{}") // a task is not told that they changed
		}
		if with, err := protocol.Set(out, name, value); err == nil {
			out = with
		}
	}
	return out
}
