// Package form reads the schema of an elicitation: which fields there are, what each of them
// takes, and whether an answer fits. A schema comes from a server and is not trusted. Showing
// the form is up to others.
package form

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/coatcheck/coatcheck/protocol"
)

// What a form may have at most. More is not meant for a person to fill in.
const (
	maxFields  = 200
	maxOptions = 1000
)

// Form is what an elicitation asks for.
type Form struct {
	// Fields are in the order of the schema.
	Fields []Field
}

// Parse reads the requestedSchema of an elicitation of revision 2025-11-25: a flat object of
// texts, numbers, booleans and choices. An absent schema is a form without fields.
func Parse(schema json.RawMessage) (*Form, error) {
	if len(schema) == 0 {
		return &Form{}, nil
	}
	if err := protocol.Valid(schema); err != nil {
		return nil, fmt.Errorf("the schema: %w", err)
	}
	members, err := protocol.Members(schema)
	if err != nil {
		return nil, fmt.Errorf("the schema: %w", err)
	}
	var properties, required json.RawMessage
	for _, m := range members {
		switch m.Key {
		case "type":
			if kind, _ := protocol.Unquote(m.Value); kind != "object" {
				return nil, fmt.Errorf("the schema has type %.40s, not \"object\"", m.Value)
			}
		case "properties":
			properties = m.Value
		case "required":
			required = m.Value
		}
	}
	f := &Form{}
	if properties == nil {
		return f, nil
	}
	if members, err = protocol.Members(properties); err != nil {
		return nil, fmt.Errorf("the schema's properties: %w", err)
	}
	if len(members) > maxFields {
		return nil, fmt.Errorf("the schema has %d fields, more than %d", len(members), maxFields)
	}
	var names []string
	if required != nil && json.Unmarshal(required, &names) != nil {
		return nil, errors.New("the schema's required is no array of names")
	}
	seen := map[string]bool{}
	for _, m := range members {
		if seen[m.Key] {
			return nil, fmt.Errorf("the schema has field %.100q twice", m.Key)
		}
		seen[m.Key] = true
		field, err := parseField(m.Key, m.Value)
		if err != nil {
			return nil, fmt.Errorf("field %.100q: %w", m.Key, err)
		}
		f.Fields = append(f.Fields, field)
	}
	for _, name := range names {
		i := slices.IndexFunc(f.Fields, func(field Field) bool { return field.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("the schema requires field %.100q, which it does not have", name)
		}
		f.Fields[i].Required = true
	}
	return f, nil
}

// Content joins the fields' values, as Field.Value made them, to the content of an answer.
// Fields whose value is nil are left out.
func (f *Form) Content(values []json.RawMessage) json.RawMessage {
	out := []byte{'{'}
	for i, value := range values {
		if value == nil {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = protocol.AppendString(out, f.Fields[i].Name)
		out = append(append(out, ':'), value...)
	}
	return append(out, '}')
}

// Check reports what is wrong with a whole content.
func (f *Form) Check(content json.RawMessage) error {
	if err := protocol.Valid(content); err != nil {
		return fmt.Errorf("the content: %w", err)
	}
	members, err := protocol.Members(content)
	if err != nil {
		return fmt.Errorf("the content: %w", err)
	}
	given := map[string]bool{}
	for _, m := range members {
		if given[m.Key] {
			return fmt.Errorf("the content has field %.100q twice", m.Key)
		}
		given[m.Key] = true
		i := slices.IndexFunc(f.Fields, func(field Field) bool { return field.Name == m.Key })
		if i < 0 {
			return fmt.Errorf("there is no field %.100q; %s", m.Key, f.names())
		}
		if err := f.Fields[i].Check(m.Value); err != nil {
			return fmt.Errorf("field %.100q: %w", m.Key, err)
		}
	}
	for _, field := range f.Fields {
		if field.Required && !given[field.Name] {
			return fmt.Errorf("field %.100q is missing", field.Name)
		}
	}
	return nil
}

func (f *Form) names() string {
	if len(f.Fields) == 0 {
		return "the form has none"
	}
	names := make([]string, len(f.Fields))
	for i, field := range f.Fields {
		names[i] = fmt.Sprintf("%.100q", field.Name)
	}
	return "the form has " + strings.Join(names, ", ")
}
