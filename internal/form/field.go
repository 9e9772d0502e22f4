package form

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"github.com/coatcheck/coatcheck/protocol"
)

// Kind is what a field takes.
type Kind int

// The kinds of fields.
const (
	Text    Kind = iota // a string
	Number              // any number
	Integer             // a whole number
	Boolean             // true or false
	Choice              // one of Options
	Choices             // some of Options
)

// Option is one of those to choose from.
type Option struct {
	Value string // what is answered
	Title string // what is shown
}

// Field is one question of a form. Its texts are the server's.
type Field struct {
	Name        string // its key in the content
	Title       string // "" if the schema has none
	Description string
	Kind        Kind
	Required    bool
	Options     []Option // of Choice and Choices
	// Default is what to begin with, nil for nothing. It fits the field.
	Default json.RawMessage

	format    string
	pattern   *regexp.Regexp
	minLength *float64
	maxLength *float64
	minimum   *float64
	maximum   *float64
	minItems  *float64
	maxItems  *float64
}

// schema is the schema of one property, as far as it matters.
type schema struct {
	Type        string
	Title       string
	Description string
	Format      string
	Pattern     string
	MinLength   *float64
	MaxLength   *float64
	Minimum     *float64
	Maximum     *float64
	MinItems    *float64
	MaxItems    *float64
	Default     json.RawMessage
	choice
	Items choice
}

// choice is how a schema lists what there is to choose from.
type choice struct {
	Enum      []string
	EnumNames []string
	OneOf     []titled
	AnyOf     []titled
}

type titled struct {
	Const *string
	Title string
}

// maxPattern bounds the patterns that are looked at, in bytes. Longer ones are left to the server.
const maxPattern = 1 << 10

func parseField(name string, raw json.RawMessage) (Field, error) {
	if _, err := protocol.Members(raw); err != nil {
		return Field{}, fmt.Errorf("its schema: %w", err)
	}
	var s schema
	if err := json.Unmarshal(raw, &s); err != nil {
		return Field{}, fmt.Errorf("its schema cannot be read: %w", err)
	}
	f := Field{
		Name: name, Title: s.Title, Description: s.Description, format: s.Format,
		minLength: s.MinLength, maxLength: s.MaxLength, minimum: s.Minimum, maximum: s.Maximum,
		minItems: s.MinItems, maxItems: s.MaxItems,
	}
	var err error
	switch s.Type {
	case "string":
		if f.Options, err = s.options(s.OneOf); err != nil {
			return f, err
		}
		if f.Options != nil {
			f.Kind = Choice
		} else if len(s.Pattern) <= maxPattern {
			// What Go's syntax lacks, such as look-ahead, is left to the server to check.
			f.pattern, _ = regexp.Compile(s.Pattern)
		}
	case "number":
		f.Kind = Number
	case "integer":
		f.Kind = Integer
	case "boolean":
		f.Kind = Boolean
	case "array":
		f.Kind = Choices
		if f.Options, err = s.Items.options(s.Items.AnyOf); err != nil {
			return f, err
		}
		if f.Options == nil {
			return f, errors.New("an array of anything but choices cannot be asked for")
		}
	default:
		return f, fmt.Errorf("type %.40q cannot be asked for", s.Type)
	}
	if s.Default != nil && f.Check(s.Default) == nil {
		f.Default = s.Default
	}
	return f, nil
}

// options returns what there is to choose from, nil if the schema is no choice.
func (c choice) options(titles []titled) ([]Option, error) {
	if max(len(c.Enum), len(titles)) > maxOptions {
		return nil, fmt.Errorf("more than %d options", maxOptions)
	}
	var options []Option
	for i, value := range c.Enum {
		option := Option{Value: value, Title: value}
		if i < len(c.EnumNames) && c.EnumNames[i] != "" {
			option.Title = c.EnumNames[i]
		}
		options = append(options, option)
	}
	if options != nil {
		return options, nil
	}
	for _, t := range titles {
		if t.Const == nil {
			return nil, errors.New("an option has no const")
		}
		option := Option{Value: *t.Const, Title: t.Title}
		if option.Title == "" {
			option.Title = option.Value
		}
		options = append(options, option)
	}
	return options, nil
}

// Label is how to name the field: its title, else its name.
func (f Field) Label() string {
	if f.Title != "" {
		return f.Title
	}
	return f.Name
}
