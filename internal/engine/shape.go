package engine

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// misshapen says what is wrong with the result that a question was answered with. An error
// is an answer, too, and passes.
func misshapen(input task.InputRequest, answer task.Outcome) error {
	if answer.Error != nil {
		return nil
	}
	result := answer.Result
	if _, err := protocol.Members(result); err != nil {
		return fmt.Errorf("the result must be an object")
	}
	if protocol.Get(input.Params, "task") != nil && protocol.Get(result, "task") != nil { // CRE-1
		if id, _ := protocol.Unquote(protocol.Get(protocol.Get(result, "task"), "taskId")); id == "" {
			return fmt.Errorf("task.taskId must be a string")
		}
		return nil
	}
	switch input.Method {
	case protocol.MethodElicit:
		return misshapenElicitation(input.Params, result)
	case protocol.MethodCreateMessage:
		for _, field := range []string{"role", "model"} {
			if _, ok := protocol.Unquote(protocol.Get(result, field)); !ok {
				return fmt.Errorf("%s must be a string", field)
			}
		}
		if c := protocol.Get(result, "content"); len(c) == 0 || c[0] != '{' && c[0] != '[' {
			return fmt.Errorf("content must be an object or an array")
		}
	case protocol.MethodListRoots:
		roots := protocol.Get(result, "roots")
		all, err := protocol.Elements(roots)
		if err != nil {
			return fmt.Errorf("roots must be an array")
		}
		for _, root := range all {
			if _, ok := protocol.Unquote(protocol.Get(root.Value, "uri")); !ok {
				return fmt.Errorf("each root must have a uri")
			}
		}
	}
	return nil
}

func misshapenElicitation(asked, result json.RawMessage) error {
	action, _ := protocol.Unquote(protocol.Get(result, "action"))
	switch action {
	case "decline", "cancel":
		return nil
	case "accept":
	default:
		return fmt.Errorf("action must be accept, decline or cancel")
	}
	requested := protocol.Get(asked, "requestedSchema")
	if elicitMode(asked) != "form" || !declared(requested) {
		return nil
	}
	content := protocol.Get(result, "content")
	if !declared(content) {
		content = json.RawMessage("{}")
	}
	if _, err := protocol.Members(content); err != nil {
		return fmt.Errorf("content must be an object")
	}
	schema := resolve(requested)
	if schema == nil {
		return nil // what the server asks for makes no sense, so it must judge the answer
	}
	var value map[string]any
	if err := json.Unmarshal(content, &value); err != nil {
		return fmt.Errorf("content must be an object")
	}
	if err := schema.Validate(value); err != nil {
		return fmt.Errorf("content does not match the requested schema: %w", err)
	}
	return nil
}

// resolve reads a schema; nil if it is none. One with references, which are not for forms, may
// have no end.
func resolve(raw json.RawMessage) *jsonschema.Resolved {
	schema := &jsonschema.Schema{}
	if json.Unmarshal(raw, schema) != nil {
		return nil
	}
	written, err := json.Marshal(schema)
	if err != nil || bytes.Contains(written, []byte(`"$ref":`)) || bytes.Contains(written, []byte(`"$dynamicRef":`)) {
		return nil
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		return nil
	}
	return resolved
}

// waitingFor says in words what a question waits for (INP-1).
func waitingFor(input task.InputRequest) string {
	switch input.Method {
	case protocol.MethodElicit:
		message, _ := protocol.Unquote(protocol.Get(input.Params, "message"))
		return "Waiting for input: " + cut(message, "the requestor's answer")
	case protocol.MethodCreateMessage:
		return "Waiting for the requestor's model to answer."
	case protocol.MethodTasksResult:
		return "Waiting for a task that the requestor runs."
	}
	return "Waiting for the requestor's roots."
}
