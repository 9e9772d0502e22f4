package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/coatcheck/coatcheck/internal/session"
	"github.com/coatcheck/coatcheck/protocol"
)

const (
	// refreshAfter is how soon tools/list is asked again because of a name that was not in it.
	refreshAfter = 5 * time.Second
	// maxAge is how long an answer is good if the server says nothing of a change.
	maxAge = time.Minute
)

// maxPages bounds how far a server that always has one more page is followed.
const maxPages = 1000

// toolSupport remembers what a server says of its tools' support for tasks.
type toolSupport struct {
	asking chan struct{} // held while the server is asked

	mu     sync.Mutex
	byName map[string]protocol.TaskSupport // never changed; nil before the first answer
	known  map[string]bool                 // all names, also those without taskSupport
	at     time.Time                       // of byName
	stale  bool
}

func newToolSupport() *toolSupport { return &toolSupport{asking: make(chan struct{}, 1)} }

// changed notes that the server has other tools now.
func (t *toolSupport) changed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stale = true
}

// cached returns what is known, if it is still good.
func (t *toolSupport) cached() (map[string]protocol.TaskSupport, bool) {
	return t.current("")
}

func (t *toolSupport) current(name string) (map[string]protocol.TaskSupport, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	age := time.Since(t.at)
	if t.byName == nil || t.stale || age > maxAge {
		return nil, false
	}
	return t.byName, name == "" || t.known[name] || age < refreshAfter
}

// get returns what the server says, asking it if name is unknown. Unless the server declares
// that it runs tools/call as tasks, no tool does (TOOL-1).
func (t *toolSupport) get(ctx context.Context, s *session.Session, name string) (map[string]protocol.TaskSupport, error) {
	if !declaresTasks(s.Server()) {
		t.fresh()
		t.set(map[string]protocol.TaskSupport{}, nil)
		return nil, nil
	}
	if tools, ok := t.current(name); ok {
		return tools, nil
	}
	select {
	case t.asking <- struct{}{}:
		defer func() { <-t.asking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if tools, ok := t.current(name); ok {
		return tools, nil
	}
	t.fresh()
	byName, known, err := listTools(ctx, s)
	if err != nil {
		t.changed()
		return nil, err
	}
	t.set(byName, known)
	return byName, nil
}

// fresh notes that the server is asked: a change from here on makes the answer stale.
func (t *toolSupport) fresh() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stale = false
}

func (t *toolSupport) set(byName map[string]protocol.TaskSupport, known map[string]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byName, t.known, t.at = byName, known, time.Now()
}

func declaresTasks(initialized json.RawMessage) bool {
	value := initialized
	for _, key := range []string{"capabilities", "tasks", "requests", "tools", "call"} {
		if value = protocol.Get(value, key); value == nil || string(value) == "null" {
			return false
		}
	}
	return true
}

func listTools(ctx context.Context, s *session.Session) (byName map[string]protocol.TaskSupport, known map[string]bool, err error) {
	byName, known = map[string]protocol.TaskSupport{}, map[string]bool{}
	var params json.RawMessage
	for range maxPages {
		result, err := s.Call(ctx, protocol.MethodToolsList, params)
		if err != nil {
			return nil, nil, err
		}
		page, names, next, err := toolsOn(result)
		if err != nil {
			return nil, nil, err
		}
		maps.Copy(byName, page)
		for _, name := range names {
			known[name] = true
		}
		if next == nil {
			return byName, known, nil
		}
		params = protocol.Marshal(map[string]json.RawMessage{"cursor": next})
	}
	return nil, nil, errors.New("tools/list has no end")
}

// toolsOn reads one page of tools/list.
func toolsOn(result json.RawMessage) (byName map[string]protocol.TaskSupport, names []string, next json.RawMessage, err error) {
	tools, err := protocol.Elements(protocol.Get(result, "tools"))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("the answer to tools/list: %w", err)
	}
	byName = map[string]protocol.TaskSupport{}
	for _, tool := range tools {
		name, ok := protocol.Unquote(protocol.Get(tool.Value, "name"))
		if !ok {
			continue
		}
		names = append(names, name)
		support, _ := protocol.Unquote(protocol.Get(protocol.Get(tool.Value, "execution"), "taskSupport"))
		switch support := protocol.TaskSupport(support); support {
		case protocol.Optional, protocol.Required:
			byName[name] = support
		}
	}
	if cursor := protocol.Get(result, "nextCursor"); len(cursor) > 0 && cursor[0] == '"' {
		next = cursor
	}
	return byName, names, next, nil
}
