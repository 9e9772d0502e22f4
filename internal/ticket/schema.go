package ticket

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strings"

	"github.com/coatcheck/coatcheck/protocol"
)

// answerSchema is what the structuredContent of a ticket is valid against: see Names.Waiting.
const answerSchema = `{"type":"object","properties":{"ticket":{"type":"string"},` +
	`"status":{"type":"string","enum":["` + working + `","` + inputRequired + `"]},` +
	`"message":{"type":"string"}},"required":["ticket","status","message"]}`

// Adapt returns a tool of a tools/list result with an outputSchema against which both its own
// results and a ticket's structuredContent are valid; every other byte stays. A tool without an
// outputSchema is returned as it is, and so is one whose outputSchema is no object.
//
// The adapted schema is anyOf of the original and the ticket's. Definitions move to the top, so
// that references to them hold. An original whose references would not survive the move gives way
// to one that only says that results are objects. A type other than "object", which revision
// 2025-11-25 does not have, is not promised.
func Adapt(tool json.RawMessage) json.RawMessage {
	schema := protocol.Get(tool, "outputSchema")
	members, err := protocol.Members(schema)
	if err != nil {
		return tool
	}
	adapted, err := protocol.Set(tool, "outputSchema", adapt(schema, members))
	if err != nil {
		return tool
	}
	return adapted
}

// adapt returns what an outputSchema with these members becomes.
func adapt(schema json.RawMessage, members []protocol.Member) json.RawMessage {
	top := map[string]json.RawMessage{}
	for _, m := range members { // the last of a repeated one counts
		top[m.Key] = m.Value
	}
	out := []byte{'{'}
	add := func(key string, value []byte) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(protocol.AppendString(out, key), ':'), value...)
	}
	if kind, _ := protocol.Unquote(top["type"]); kind == "object" {
		add("type", top["type"])
	}
	movable := movable(schema) && !isString(top["id"]) // the $id of draft 4
	rest := schema
	for _, key := range []string{"$schema", "title", "description", "$defs", "definitions"} {
		value, ok := top[key]
		if !ok {
			continue
		}
		if defines := key == "$defs" || key == "definitions"; !defines || movable {
			add(key, value)
		}
		var err error
		if rest, err = protocol.Delete(rest, key); err != nil {
			movable = false
		}
	}
	if movable {
		add("anyOf", bytes.Join([][]byte{[]byte("["), rest, []byte(","), []byte(answerSchema), []byte("]")}, nil))
	}
	return append(out, '}')
}

func isString(value json.RawMessage) bool { return len(value) > 0 && value[0] == '"' }

// movable reports whether a schema means the same one level down, with its definitions left at
// the top: whether it has no name of its own and all its references are to those definitions or
// absolute. It takes anything named like a reference for one.
func movable(schema json.RawMessage) bool {
	dec := json.NewDecoder(bytes.NewReader(schema))
	dec.UseNumber()
	var open []json.Delim // the objects and arrays around what is read
	key, isKey := "", false
	for {
		token, err := dec.Token()
		if err != nil {
			return false
		}
		inObject := len(open) > 0 && open[len(open)-1] == '{'
		switch token := token.(type) {
		case json.Delim:
			if token == '{' || token == '[' {
				open = append(open, token)
				isKey = token == '{'
				continue
			}
			if open = open[:len(open)-1]; len(open) == 0 {
				return true
			}
			isKey = open[len(open)-1] == '{'
			continue
		case string:
			if isKey {
				key, isKey = token, false
				continue
			}
			if inObject && !holds(key, token) {
				return false
			}
		}
		isKey = inObject
	}
}

// holds reports whether a schema that has value, a string, under key means the same elsewhere.
func holds(key, value string) bool {
	switch key {
	case "$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef":
		return false
	case "$ref":
		if strings.HasPrefix(value, "#/$defs/") || strings.HasPrefix(value, "#/definitions/") {
			return true
		}
		target, err := url.Parse(value)
		return err == nil && target.IsAbs()
	}
	return true
}
