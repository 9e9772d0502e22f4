package telemetry

import (
	"sync"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"

	"github.com/coatcheck/coatcheck/protocol"
)

const (
	maxLabels = 100 // values that one label may have, beside other
	maxLabel  = 128 // bytes of a value
	other     = "other"
)

// labels bounds the values of a label: they come from clients, and each is a series kept for
// good. Once there are enough, a new one counts as "other".
type labels struct {
	mu   sync.RWMutex
	seen map[string]struct{}
}

func newLabels(first ...string) *labels {
	l := &labels{seen: map[string]struct{}{}}
	for _, value := range first {
		l.bound(value)
	}
	return l
}

// bound returns the value, or other.
func (l *labels) bound(value string) string {
	l.mu.RLock()
	_, seen := l.seen[value]
	full := len(l.seen) >= maxLabels
	l.mu.RUnlock()
	switch {
	case seen:
		return value
	case full, len(value) > maxLabel, !utf8.ValidString(value):
		return other
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, seen := l.seen[value]; !seen {
		if len(l.seen) >= maxLabels {
			return other
		}
		l.seen[value] = struct{}{}
	}
	return value
}

// attribute returns the label with its bounded value; none for "". There is room for more.
func (l *labels) attribute(key attribute.Key, value string) []attribute.KeyValue {
	all := make([]attribute.KeyValue, 0, 3)
	if value == "" {
		return all
	}
	return append(all, key.String(l.bound(value)))
}

// methods are those that a label may name, and what the audit calls the answer to a question.
// Any other is a client's invention.
var methods = map[string]struct{}{
	protocol.MethodInitialize: {}, protocol.MethodToolsList: {}, protocol.MethodToolsCall: {},
	protocol.MethodTasksGet: {}, protocol.MethodTasksResult: {}, protocol.MethodTasksCancel: {}, protocol.MethodTasksList: {},
	protocol.MethodElicit: {}, protocol.MethodCreateMessage: {}, protocol.MethodListRoots: {}, protocol.MethodSetLevel: {},
	protocol.MethodPing: {}, "resources/list": {}, "resources/read": {}, "resources/templates/list": {},
	"resources/subscribe": {}, "resources/unsubscribe": {}, "prompts/list": {}, "prompts/get": {}, "completion/complete": {},
	"response": {},
}

func methodAttribute(method string) []attribute.KeyValue {
	all := make([]attribute.KeyValue, 0, 3)
	if method == "" {
		return all
	}
	if _, known := methods[method]; !known {
		method = other
	}
	return append(all, keyMethod.String(method))
}
