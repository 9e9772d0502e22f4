package form

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/mail"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/coatcheck/coatcheck/protocol"
)

// Value makes a JSON value of what was typed or chosen: one text, for Choices the values of
// any number of options. Nothing, or an empty text, is nil, unless the field is required.
func (f Field) Value(typed ...string) (json.RawMessage, error) {
	if f.Kind == Choices {
		return f.chosen(typed)
	}
	if len(typed) > 1 {
		return nil, errors.New("takes one value")
	}
	if len(typed) == 0 || typed[0] == "" {
		if f.Required {
			return nil, errors.New("is required")
		}
		return nil, nil
	}
	var value json.RawMessage
	switch text := typed[0]; f.Kind {
	case Number, Integer:
		value = json.RawMessage(strings.TrimPrefix(strings.TrimSpace(text), "+"))
		if f.Kind == Integer && strings.Trim(strings.TrimPrefix(string(value), "-"), "0123456789") != "" || !json.Valid(value) {
			return nil, f.unlike()
		}
	case Boolean:
		switch strings.ToLower(strings.TrimSpace(text)) {
		case "true", "yes", "y":
			value = json.RawMessage("true")
		case "false", "no", "n":
			value = json.RawMessage("false")
		default:
			return nil, f.unlike()
		}
	default:
		value = protocol.AppendString(nil, text)
	}
	return value, f.Check(value)
}

func (f Field) chosen(values []string) (json.RawMessage, error) {
	if len(values) == 0 && !f.Required {
		return nil, nil
	}
	value := protocol.Marshal(append([]string{}, values...))
	return value, f.Check(value)
}

// Typed is the inverse of Value for a value that fits.
func (f Field) Typed(value json.RawMessage) []string {
	if value == nil {
		return nil
	}
	if f.Kind == Choices {
		var values []string
		_ = json.Unmarshal(value, &values) // it fits
		return values
	}
	if text, ok := protocol.Unquote(value); ok {
		return []string{text}
	}
	return []string{string(value)}
}

// Check reports what is wrong with a JSON value.
func (f Field) Check(value json.RawMessage) error {
	switch f.Kind {
	case Number, Integer:
		var n float64
		if len(value) == 0 || value[0] != '-' && (value[0] < '0' || value[0] > '9') || json.Unmarshal(value, &n) != nil ||
			f.Kind == Integer && n != math.Trunc(n) {
			return f.unlike()
		}
		return bounds(n, f.minimum, f.maximum, "must be at least %v", "must be at most %v")
	case Boolean:
		if s := string(value); s != "true" && s != "false" {
			return f.unlike()
		}
		return nil
	case Choices:
		var values []string
		if len(value) == 0 || value[0] != '[' || json.Unmarshal(value, &values) != nil {
			return f.unlike()
		}
		return f.checkChoices(values)
	}
	text, ok := protocol.Unquote(value)
	if !ok {
		return f.unlike()
	}
	if f.Kind == Choice {
		if !f.offers(text) {
			return f.unlike()
		}
		return nil
	}
	return f.checkText(text)
}

func (f Field) offers(value string) bool {
	return slices.ContainsFunc(f.Options, func(o Option) bool { return o.Value == value })
}

func (f Field) checkChoices(values []string) error {
	for i, value := range values {
		if !f.offers(value) {
			return f.unlike()
		}
		if slices.Contains(values[:i], value) {
			return fmt.Errorf("has %.100q twice", value)
		}
	}
	return bounds(float64(len(values)), f.minItems, f.maxItems, "choose at least %v", "choose at most %v")
}

func (f Field) checkText(text string) error {
	length := float64(utf8.RuneCountInString(text))
	if err := bounds(length, f.minLength, f.maxLength, "must have at least %v characters", "must have at most %v characters"); err != nil {
		return err
	}
	ok := true
	switch f.format {
	case "email":
		address, err := mail.ParseAddress(text)
		ok = err == nil && address.Address == text
	case "uri":
		u, err := url.Parse(text)
		ok = err == nil && u.IsAbs()
	case "date":
		_, err := time.Parse(time.DateOnly, text)
		ok = err == nil
	case "date-time":
		_, err := time.Parse(time.RFC3339, text)
		ok = err == nil
	}
	if !ok {
		return f.unlike()
	}
	if f.pattern != nil && !f.pattern.MatchString(text) {
		return fmt.Errorf("must match the pattern %s", f.pattern)
	}
	return nil
}

func bounds(n float64, low, high *float64, least, most string) error {
	switch {
	case low != nil && n < *low:
		return fmt.Errorf(least, *low)
	case high != nil && n > *high:
		return fmt.Errorf(most, *high)
	}
	return nil
}

// unlike says that a value is not of the field's kind.
func (f Field) unlike() error { return fmt.Errorf("must be %s", f.Takes()) }

// Takes says in words what the field takes, such as "a whole number".
func (f Field) Takes() string {
	switch f.Kind {
	case Number:
		return "a number"
	case Integer:
		return "a whole number"
	case Boolean:
		return "true or false"
	case Choice:
		return "one of " + f.listed()
	case Choices:
		return "some of " + f.listed()
	}
	switch f.format {
	case "email":
		return "an email address"
	case "uri":
		return "a URI such as https://example.com/"
	case "date":
		return "a date such as 2025-11-25"
	case "date-time":
		return "a date and time such as 2025-11-25T08:30:00Z"
	}
	return "a text"
}

// listed names the options, as far as that can be read.
func (f Field) listed() string {
	const most = 20
	var names []string
	for i, o := range f.Options {
		if i == most {
			names = append(names, fmt.Sprintf("%d more", len(f.Options)-most))
			break
		}
		name := fmt.Sprintf("%.100q", o.Value)
		if o.Title != o.Value {
			name += fmt.Sprintf(" (%.100s)", o.Title)
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// Limits says in words what else holds for the field's value, "" if nothing does.
func (f Field) Limits() string {
	var parts []string
	add := func(value *float64, before, after string) {
		if value != nil {
			parts = append(parts, before+strconv.FormatFloat(*value, 'g', -1, 64)+after)
		}
	}
	switch f.Kind {
	case Text:
		add(f.minLength, "at least ", " characters")
		add(f.maxLength, "at most ", " characters")
		if f.pattern != nil && f.pattern.String() != "" {
			parts = append(parts, fmt.Sprintf("pattern %.200s", f.pattern))
		}
	case Number, Integer:
		add(f.minimum, "at least ", "")
		add(f.maximum, "at most ", "")
	case Choices:
		add(f.minItems, "at least ", "")
		add(f.maxItems, "at most ", "")
	}
	return strings.Join(parts, ", ")
}
