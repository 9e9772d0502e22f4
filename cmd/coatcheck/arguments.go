package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/coatcheck/coatcheck/protocol"
)

// parseArguments turns key=value (a string) and key:=json (any JSON, as it was written)
// into a tool's arguments.
func parseArguments(args []string) (json.RawMessage, error) {
	object := json.RawMessage("{}")
	for _, arg := range args {
		if !utf8.ValidString(arg) {
			return nil, fmt.Errorf("argument %q is not UTF-8", arg)
		}
		key, value, ok := strings.Cut(arg, "=")
		if !ok {
			return nil, fmt.Errorf("argument %q: write key=value for a text, key:=json for anything else", arg)
		}
		raw := protocol.AppendString(nil, value)
		if name, isJSON := strings.CutSuffix(key, ":"); isJSON {
			key, raw = name, []byte(value)
			if err := protocol.Valid(raw); err != nil {
				return nil, fmt.Errorf("argument %q: %w; for a text write %s=%s", arg, err, key, value)
			}
		}
		if key == "" {
			return nil, fmt.Errorf("argument %q: the key is missing", arg)
		}
		if protocol.Get(object, key) != nil {
			return nil, fmt.Errorf("argument %q: %s was given before", arg, key)
		}
		var err error
		if object, err = protocol.Set(object, key, raw); err != nil {
			return nil, fmt.Errorf("argument %q: %w", arg, err)
		}
	}
	return object, nil
}
