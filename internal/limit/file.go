package limit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/coatcheck/coatcheck/task"
)

// Parse reads a policy as a file has it, in YAML (docs/limits.md). Each thing in it that is not
// understood is an error of its own (errors.Join), which names the line and the key.
func Parse(text []byte) (*Policy, error) {
	file, err := document(text)
	if err != nil {
		return nil, fmt.Errorf("this is not one YAML document: %w", err)
	}
	p := &Policy{}
	if file == nil {
		return p, nil // nothing is set
	}
	f := &faults{}
	f.section(file, "", keys{
		"default":    func(n *yaml.Node, path string) { p.Limits = f.limits(n, path) },
		"in_all":     func(n *yaml.Node, path string) { f.inAll(n, path, p) },
		"tools":      func(n *yaml.Node, path string) { p.Tools = f.tools(n, path) },
		"principals": func(n *yaml.Node, path string) { p.Principals = f.principals(n, path) },
	})
	if err := errors.Join(f.found...); err != nil {
		return nil, err
	}
	return p, p.Validate()
}

// document returns the root of the one document there is, if there is any.
func document(text []byte) (*yaml.Node, error) {
	loader, err := yaml.NewLoader(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	var first, more yaml.Node
	switch err := loader.Load(&first); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, err
	}
	switch err := loader.Load(&more); {
	case err == nil:
		return nil, fmt.Errorf("line %d begins another", more.Line)
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	return first.Content[0], nil
}

// faults are what was found wrong.
type faults struct{ found []error }

func (f *faults) add(n *yaml.Node, path, format string, args ...any) {
	if path == "" {
		path = "the file"
	}
	f.found = append(f.found, fmt.Errorf("line %d: %s: %s", n.Line, path, fmt.Sprintf(format, args...)))
}

// keys are what a section may have: what to do with the value of each.
type keys map[string]func(value *yaml.Node, path string)

// section reads a mapping that has some keys and no others. One without a value is empty.
func (f *faults) section(n *yaml.Node, path string, known keys) {
	f.entries(n, path, func(key, value *yaml.Node) (name string) {
		if key.Kind != yaml.ScalarNode {
			f.add(key, path, "a key must be a word")
			return ""
		}
		read, ok := known[key.Value]
		if !ok {
			f.add(key, below(path, key.Value), "unknown key; there are %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
			return ""
		}
		read(value, below(path, key.Value))
		return key.Value
	})
}

// entries reads a mapping. read returns the name that must be there only once, or "".
func (f *faults) entries(n *yaml.Node, path string, read func(key, value *yaml.Node) (name string)) {
	n = target(n)
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		f.add(n, path, "must have keys with values")
		return
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := target(n.Content[i])
		name := read(key, target(n.Content[i+1]))
		if name == "" {
			continue
		}
		if line, again := lines[name]; again {
			f.add(key, below(path, name), "is there already, in line %d", line)
		}
		lines[name] = key.Line
	}
}

func target(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func below(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func (f *faults) limits(n *yaml.Node, path string) (l Limits) {
	f.section(n, path, keys{
		"running": value(f, &l.Running, Count),
		"queued":  f.queued(&l),
		"tasks":   value(f, &l.Tasks, Count),
		"bytes":   value(f, &l.Bytes, size),
		"request": value(f, &l.Request, size),
		"result":  value(f, &l.Result, size),
		"max_ttl": value(f, &l.MaxTTL, lifetime),
		"inputs":  value(f, &l.Inputs, Count),
		"waits":   value(f, &l.Waits, Count),
		"creates": f.rate(&l.Creates),
		"gets":    f.rate(&l.Gets),
		"lists":   f.rate(&l.Lists),
		"misses":  f.rate(&l.Misses),
		"polls":   value(f, &l.Polls, polls),
	})
	return l
}

func (f *faults) inAll(n *yaml.Node, path string, p *Policy) {
	f.section(n, path, keys{
		"running": value(f, &p.RunningInAll, Count),
		"queued":  value(f, &p.QueuedInAll, Count),
	})
}

func (f *faults) tools(n *yaml.Node, path string) map[string]Tool {
	tools := map[string]Tool{}
	f.entries(n, path, func(key, section *yaml.Node) string {
		if key.Kind != yaml.ScalarNode || key.Value == "" || key.Tag == "!!null" {
			f.add(key, path, "a tool's name is missing")
			return ""
		}
		var t Tool
		f.section(section, below(path, key.Value), keys{
			"running": value(f, &t.Running, Count),
			"request": value(f, &t.Request, size),
			"result":  value(f, &t.Result, size),
			"max_ttl": value(f, &t.MaxTTL, toolLifetime),
			"inputs":  value(f, &t.Inputs, Count),
			"creates": f.rate(&t.Creates),
		})
		tools[key.Value] = t
		return key.Value
	})
	return tools
}

func (f *faults) principals(n *yaml.Node, path string) map[task.Principal]Limits {
	principals := map[task.Principal]Limits{}
	f.entries(n, path, func(key, section *yaml.Node) string {
		who, ok := f.principal(key, path)
		if !ok {
			return ""
		}
		at := below(path, string(who))
		if who == "" {
			at = below(path, `""`)
		}
		if _, again := principals[who]; again {
			f.add(key, at, "is there already")
			return ""
		}
		principals[who] = f.limits(section, at)
		return ""
	})
	return principals
}

// principal reads who a principal is: as Identity.Principal prints it, or the identity in parts.
func (f *faults) principal(key *yaml.Node, path string) (who task.Principal, ok bool) {
	switch {
	case key.Kind == yaml.ScalarNode && key.Tag != "!!null":
		return task.Principal(key.Value), true
	case key.Kind != yaml.MappingNode:
		f.add(key, path, `a principal is a name, or {issuer, subject, client}; that of all who have none is ""`)
		return "", false
	}
	var id task.Identity
	before := len(f.found)
	f.section(key, path, keys{
		"issuer":  value(f, &id.Issuer, part),
		"subject": value(f, &id.Subject, part),
		"client":  value(f, &id.Client, part),
	})
	if id == (task.Identity{}) && len(f.found) == before {
		f.add(key, path, "names nobody")
	}
	return id.Principal(), len(f.found) == before
}

func part(text string) (string, error) {
	if text == "" {
		return "", errors.New("is empty: leave it out")
	}
	return text, nil
}

// value reads a single value as parse understands it.
func value[T any](f *faults, to *T, parse func(string) (T, error)) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.ScalarNode {
			f.add(n, path, "must be a single value")
			return
		}
		if n.Tag == "!!null" {
			f.add(n, path, "has no value")
			return
		}
		v, err := parse(n.Value)
		if err != nil {
			f.add(n, path, "%v", err)
			return
		}
		*to = v
	}
}

// queued reads how many tasks may wait: 0 is NoQueue.
func (f *faults) queued(l *Limits) func(*yaml.Node, string) {
	return value(f, l, func(text string) (Limits, error) {
		out := *l
		var err error
		out.Queued, out.NoQueue, err = Queue(text)
		return out, err
	})
}

// rate reads "20/s burst 200", or the two in parts.
func (f *faults) rate(to *Rate) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.MappingNode {
			value(f, to, rateOf)(n, path)
			return
		}
		var r Rate
		before := len(f.found)
		f.section(n, path, keys{
			"per_second": value(f, &r.PerSecond, perSecond),
			"burst":      value(f, &r.Burst, atLeastOne),
		})
		if len(f.found) > before {
			return
		}
		if r.PerSecond == 0 || r.Burst == 0 {
			f.add(n, path, "needs both per_second and burst")
			return
		}
		*to = r
	}
}

func lifetime(text string) (time.Duration, error) {
	if text == none {
		return None, nil
	}
	return toolLifetime(text)
}
