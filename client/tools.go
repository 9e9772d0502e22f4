package client

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/coatcheck/coatcheck/protocol"
)

// maxPages bounds how far a server that always has one more page is followed.
const maxPages = 1000

// tools knows which of the server's tools may run as tasks.
type tools struct {
	session *Session

	mu      sync.Mutex
	support map[string]protocol.TaskSupport // nil: to be asked for
	version int                             // counts changes
}

func newTools(s *Session) *tools { return &tools{session: s} }

// changed notes that the server has other tools now.
func (t *tools) changed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.support = nil
	t.version++
}

// of returns a tool's support; a tool that is not there has none (TOOL-1, TOOL-2).
func (t *tools) of(ctx context.Context, name string) (protocol.TaskSupport, error) {
	if !t.session.declares("tasks", "requests", "tools", "call") {
		return protocol.Forbidden, nil
	}
	t.mu.Lock()
	support, version := t.support, t.version
	t.mu.Unlock()
	if support == nil {
		var err error
		if support, err = t.list(ctx); err != nil {
			return "", err
		}
		t.mu.Lock()
		if t.version == version {
			t.support = support
		}
		t.mu.Unlock()
	}
	if s := support[name]; s == protocol.Optional || s == protocol.Required {
		return s, nil
	}
	return protocol.Forbidden, nil
}

func (t *tools) list(ctx context.Context) (map[string]protocol.TaskSupport, error) {
	support := map[string]protocol.TaskSupport{}
	err := t.session.pages(ctx, protocol.MethodToolsList, func(page json.RawMessage) error {
		all, err := protocol.Elements(protocol.Get(page, "tools"))
		if err != nil {
			return fmt.Errorf("%w: tools/list: %w", ErrProtocol, err)
		}
		for _, tool := range all {
			name, _ := protocol.Unquote(protocol.Get(tool.Value, "name"))
			s, _ := protocol.Unquote(protocol.Get(protocol.Get(tool.Value, "execution"), "taskSupport"))
			support[name] = protocol.TaskSupport(s)
		}
		return nil
	})
	return support, err
}

// pages asks for the pages of a list, one after the other, until there are none or each
// returns an error (LST-4).
func (s *Session) pages(ctx context.Context, method string, each func(page json.RawMessage) error) error {
	params := json.RawMessage("{}")
	for range maxPages {
		page, err := s.ask(ctx, method, params)
		if err != nil {
			return err
		}
		if err := each(page); err != nil {
			return err
		}
		cursor, more := protocol.Unquote(protocol.Get(page, "nextCursor"))
		if !more {
			return nil
		}
		params = append(protocol.AppendString([]byte(`{"cursor":`), cursor), '}')
	}
	return fmt.Errorf("%w: %s has no end", ErrProtocol, method)
}
