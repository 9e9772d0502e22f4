package receiver

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/coatcheck/coatcheck/protocol"
)

// Tools says which tools run as tasks.
type Tools struct {
	// Default holds for tools that ByName does not name and the server itself does not
	// mark as required. "" is Forbidden (TOOL-2).
	Default protocol.TaskSupport
	// ByName holds for the tools it names, whatever the server says of them.
	ByName map[string]protocol.TaskSupport
	// Server returns what the server says of its own tools. nil: it knows no tasks.
	Server func(context.Context) (map[string]protocol.TaskSupport, error)
}

// Any reports whether any tool may run as a task, so that tasks are declared at all (CAP-1).
func (t Tools) Any() bool {
	for _, s := range t.ByName {
		if s == protocol.Optional || s == protocol.Required {
			return true
		}
	}
	return t.Default == protocol.Optional || t.Default == protocol.Required
}

// of returns the support in force for a tool, given what the server says of it.
func (t Tools) of(name string, server protocol.TaskSupport) protocol.TaskSupport {
	if s, ok := t.ByName[name]; ok {
		return s
	}
	if server == protocol.Required {
		return server
	}
	if t.Default == "" {
		return protocol.Forbidden
	}
	return t.Default
}

// support returns the support in force for a tool that is called.
func (t Tools) support(ctx context.Context, name string) protocol.TaskSupport {
	s := t.of(name, "")
	if s != protocol.Forbidden || t.Server == nil {
		return s
	}
	if _, named := t.ByName[name]; named {
		return s
	}
	server, err := t.Server(ctx)
	if err != nil {
		return s
	}
	return t.of(name, server[name])
}

// declareTools returns a tools/list result with each tool's execution.taskSupport set to
// what is in force. Everything else stays as it was.
func (t Tools) declareTools(result json.RawMessage) (json.RawMessage, error) {
	tools := protocol.Get(result, "tools")
	declared, err := protocol.MapElements(tools, t.declareTool)
	if err != nil || bytes.Equal(declared, tools) {
		return result, err
	}
	return protocol.Set(result, "tools", declared)
}

func (t Tools) declareTool(tool json.RawMessage) (json.RawMessage, error) {
	name, ok := protocol.Unquote(protocol.Get(tool, "name"))
	if !ok {
		return tool, nil
	}
	execution := protocol.Get(tool, "execution")
	server, _ := protocol.Unquote(protocol.Get(execution, "taskSupport"))
	support := t.of(name, protocol.TaskSupport(server))
	if string(support) == server || server == "" && support == protocol.Forbidden {
		return tool, nil
	}
	if _, err := protocol.Members(execution); err != nil {
		execution = json.RawMessage("{}")
	}
	execution, err := protocol.Set(execution, "taskSupport", protocol.AppendString(nil, string(support)))
	if err != nil {
		return nil, err
	}
	return protocol.Set(tool, "execution", execution)
}
