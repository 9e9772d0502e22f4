package ticket

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/coatcheck/coatcheck/protocol"
)

// What stands in every conversation, and so is counted in tokens (TestTokens in peers).
const (
	collectRest = `"description":"Waits for a call that was answered with a ticket and returns its result, or, if it is still running, how it stands: then collect again.",` +
		`"inputSchema":{"type":"object","properties":{"ticket":{"type":"string"},"wait_seconds":{"type":"number"}},"required":["ticket"]},` +
		`"annotations":{"readOnlyHint":true}}`
	cancelRest = `"description":"Stops the call of a ticket; it then has no result.",` +
		`"inputSchema":{"type":"object","properties":{"ticket":{"type":"string"}},"required":["ticket"]},` +
		`"annotations":{"destructiveHint":true,"idempotentHint":true}}`
	listRest = `"description":"Lists tickets and how their calls stand.",` +
		`"inputSchema":{"type":"object"},` +
		`"annotations":{"readOnlyHint":true}}`
)

// Tools returns the definitions of the tools for a tools/list result.
func (n Names) Tools() []json.RawMessage {
	tools := []json.RawMessage{define(n.Collect, collectRest), define(n.Cancel, cancelRest)}
	if n.List != "" {
		tools = append(tools, define(n.List, listRest))
	}
	return tools
}

func define(name, rest string) json.RawMessage {
	return append(append(protocol.AppendString([]byte(`{"name":`), name), ','), rest...)
}

// Instruct returns a server's instructions, "" for none, and one sentence more. That names no tool:
// a session begins before it is known what the server's own are called.
func Instruct(instructions string) string {
	if instructions != "" {
		instructions += "\n\n"
	}
	return instructions + "A tool that takes long may answer with a ticket: its work goes on, so do not call it again, do what the ticket says."
}

// Tool is what matters of a tool in a tools/list result.
type Tool struct {
	Name string
	// Output: it has an outputSchema, so its results, and its tickets, have structuredContent.
	Output bool
	// Repeatable: it is annotated as idempotent or read-only.
	Repeatable bool
}

// Describe reads a tool of a tools/list result; ok is false for what has no name.
func Describe(tool json.RawMessage) (t Tool, ok bool) {
	if t.Name, ok = protocol.Unquote(protocol.Get(tool, "name")); !ok {
		return Tool{}, false
	}
	schema := protocol.Get(tool, "outputSchema")
	t.Output = schema != nil && string(schema) != "null"
	annotations := protocol.Get(tool, "annotations")
	t.Repeatable = string(protocol.Get(annotations, "idempotentHint")) == "true" ||
		string(protocol.Get(annotations, "readOnlyHint")) == "true"
	return t, true
}

// Append returns a tools/list result with tools at the end of its tools, and every other byte as
// it was. The result must be valid JSON; one without an array of tools is an error of protocol.
func Append(result json.RawMessage, tools []json.RawMessage) (json.RawMessage, error) {
	array := protocol.Get(result, "tools")
	elements, err := protocol.Elements(array)
	if err != nil {
		return nil, err
	}
	body := bytes.TrimRight(bytes.TrimSuffix(array, []byte("]")), " \t\r\n")
	end := array[len(body):]
	if len(elements) == 0 {
		body, end = array[:1], array[1:]
	}
	out := slices.Clone(body)
	for i, tool := range tools {
		if i > 0 || len(elements) > 0 {
			out = append(out, ',')
		}
		out = append(out, tool...)
	}
	return protocol.Set(result, "tools", append(out, end...))
}
