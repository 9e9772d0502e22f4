package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// toolbox is what a model was told of tools by tools/list: their inputSchemas, by name.
type toolbox map[string]*jsonschema.Resolved

// newToolbox reads a tools/list result.
func newToolbox(tools []*mcp.Tool) (toolbox, error) {
	box := toolbox{}
	for _, tool := range tools {
		data, err := json.Marshal(tool.InputSchema)
		if err != nil {
			return nil, err
		}
		var schema jsonschema.Schema
		if err := json.Unmarshal(data, &schema); err != nil {
			return nil, fmt.Errorf("tool %s: %w", tool.Name, err)
		}
		if box[tool.Name], err = schema.Resolve(nil); err != nil {
			return nil, fmt.Errorf("tool %s: %w", tool.Name, err)
		}
	}
	return box, nil
}

// check says why a call is not one that the tool's inputSchema allows.
func (b toolbox) check(name string, arguments map[string]any) error {
	schema := b[name]
	if schema == nil {
		return fmt.Errorf("there is no tool %q", name)
	}
	for property := range arguments {
		if schema.Schema().Properties[property] == nil {
			return fmt.Errorf("tool %s takes no %q", name, property)
		}
	}
	if err := schema.Validate(arguments); err != nil {
		return fmt.Errorf("tool %s: %w", name, err)
	}
	return nil
}

// action is what a text offers to do.
type action int

const (
	callTool  action = iota // call a tool with the arguments given
	pickEntry               // the same, for one entry of a list
	listTools               // call a tool that tells what there is
	callAgain               // make a call again that was made before
	useGiven                // give the ticket as the reader was given it
)

// offer is something that a text says can be done.
type offer struct {
	action    action
	purpose   string // of callTool: "stop the call instead"
	tool      string // "" of callAgain: the original one's; of useGiven: none
	arguments map[string]any
	entry     string // of pickEntry: the tool that was called
	condition string // under which only: "that is still wanted"; "" for none
}

// reading is what a text tells its reader.
type reading struct {
	offers []offer
	never  []string // tools not to be called again for what is told of
}

// The forms of sentences that say what to do. What others wrote, in quotation marks, is no
// sentence: «0» stands for the first such, {0} for the first JSON object.
var (
	purpose   = regexp.MustCompile(`^To ([^,]+), `)
	order     = regexp.MustCompile(`(?i)(?:^|, )(?:call|use) (.*)$`)
	withThis  = regexp.MustCompile(`^(?:the tool )?([\w./-]+) with (?:exactly )?\{(\d+)\}$`)
	withEntry = regexp.MustCompile(`^(?:the tool )?([\w./-]+) with its ticket:$`)
	entry     = regexp.MustCompile(`^\{(\d+)\}: «(\d+)», \w+, `)
	named     = regexp.MustCompile(`^«(\d+)» again, (.*)$`)
	original  = regexp.MustCompile(`^Make the original call again, (.*)$`)
	given     = regexp.MustCompile(`^a ticket exactly as it was given$`)
	lists     = regexp.MustCompile(`^The tool ([\w./-]+) lists those there are$`)
	never     = regexp.MustCompile(`(?i)\bdo not call (?:«(\d+)»|it) again\b`)
	only      = regexp.MustCompile(`\bonly if (.+)$`)
	imperious = regexp.MustCompile(`(?i)^(?:call|use|make|do|get|collect|wait|try|to|the tool)\b`)
	stop      = regexp.MustCompile(`[.;]+(?:\s+|$)|\n`)
	holds     = regexp.MustCompile(`[{}]`)
)

// readText reads a text as somebody who takes it at its word. A sentence that tells to do
// something must say what, in full: a tool that there is, with arguments that it takes. One that
// only says how things are offers nothing.
func readText(text string, tools toolbox) (reading, error) {
	p, err := parse(text)
	if err != nil {
		return reading{}, err
	}
	r := &reader{parts: p, tools: tools}
	for _, s := range stop.Split(p.plain, -1) {
		if err := r.sentence(strings.TrimSpace(s)); err != nil {
			return reading{}, fmt.Errorf("%q: %w", s, err)
		}
	}
	if r.list != nil && !r.picked {
		return reading{}, errors.New("a list is promised and does not follow")
	}
	return r.reading, nil
}

// reader is what has been read of a text.
type reader struct {
	parts
	reading
	tools  toolbox
	list   *offer // what can be done with each of the entries that follow
	picked bool   // there was one
}

// sentence takes in one sentence.
func (r *reader) sentence(s string) error {
	if m := entry.FindStringSubmatch(s); m != nil && r.list != nil {
		r.picked = true
		o := *r.list
		o.arguments, o.entry = r.object(m[1]), r.quoted(m[2])
		return r.offer(o)
	}
	condition := ""
	if m := only.FindStringSubmatch(s); m != nil {
		condition = m[1]
	}
	if m := never.FindStringSubmatch(s); m != nil {
		if m[1] == "" {
			return nil // "it" is what the reader just called
		}
		if name := r.quoted(m[1]); r.tools[name] != nil {
			r.never = append(r.never, name)
			return nil
		}
		return fmt.Errorf("there is no tool %q", r.quoted(m[1]))
	}
	if m := lists.FindStringSubmatch(s); m != nil {
		return r.offer(offer{action: listTools, tool: m[1], arguments: map[string]any{}})
	}
	if original.MatchString(s) {
		return r.offer(offer{action: callAgain, condition: condition})
	}
	if m := order.FindStringSubmatch(s); m != nil {
		o, err := r.order(m[1])
		if err != nil {
			return err
		}
		if m := purpose.FindStringSubmatch(s); m != nil {
			o.purpose = m[1]
		}
		o.condition = condition
		switch {
		case (o.action == callTool || o.action == pickEntry) && o.purpose == "":
			return errors.New("it is not said what for")
		case o.action == pickEntry:
			r.list = &o // the entries follow
			return nil
		}
		return r.offer(o)
	}
	switch {
	case imperious.MatchString(s):
		return errors.New("what to do is not said")
	case holds.MatchString(s):
		return errors.New("what the arguments are for is not said")
	}
	return nil
}

// order reads what follows after "call" or "use".
func (r *reader) order(s string) (offer, error) {
	if m := withThis.FindStringSubmatch(s); m != nil {
		return offer{action: callTool, tool: m[1], arguments: r.object(m[2])}, nil
	}
	if m := withEntry.FindStringSubmatch(s); m != nil {
		return offer{action: pickEntry, tool: m[1]}, nil
	}
	if m := named.FindStringSubmatch(s); m != nil {
		return offer{action: callAgain, tool: r.quoted(m[1])}, nil
	}
	if given.MatchString(s) {
		return offer{action: useGiven}, nil
	}
	return offer{}, errors.New("it is not said which tool to call, and how")
}

// offer takes in what can be done, if it can.
func (r *reader) offer(o offer) error {
	switch {
	case o.arguments != nil:
		if err := r.tools.check(o.tool, o.arguments); err != nil {
			return err
		}
	case o.tool != "" && r.tools[o.tool] == nil:
		return fmt.Errorf("there is no tool %q", o.tool)
	}
	r.offers = append(r.offers, o)
	return nil
}

// parts is a text whose quotations and JSON objects are apart.
type parts struct {
	plain   string
	quotes  []string
	objects []map[string]any
}

func (p *parts) quoted(index string) string         { return p.quotes[number(index)] }
func (p *parts) object(index string) map[string]any { return p.objects[number(index)] }

func number(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil {
		panic(err)
	}
	return n
}

// parse takes a text apart. A quotation is a JSON string.
func parse(text string) (parts, error) {
	var p parts
	var plain strings.Builder
	for text != "" {
		at := strings.IndexAny(text, `"{}«»`)
		if at < 0 {
			at = len(text)
		}
		plain.WriteString(text[:at])
		if text = text[at:]; text == "" {
			break
		}
		dec := json.NewDecoder(strings.NewReader(text))
		var err error
		switch text[0] {
		case '"':
			var quote string
			err = dec.Decode(&quote)
			fmt.Fprintf(&plain, "«%d»", len(p.quotes))
			p.quotes = append(p.quotes, quote)
		case '{':
			var object map[string]any
			err = dec.Decode(&object)
			fmt.Fprintf(&plain, "{%d}", len(p.objects))
			p.objects = append(p.objects, object)
		default:
			err = errors.New("out of place")
		}
		if err != nil {
			return p, fmt.Errorf("%.40q: %w", text, err)
		}
		text = text[dec.InputOffset():]
	}
	p.plain = plain.String()
	return p, nil
}
