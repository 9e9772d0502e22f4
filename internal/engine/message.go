package engine

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// maxMessage bounds a statusMessage that is taken from a result, in bytes.
const maxMessage = 500

// statusMessage says in words how a task ended (EXE-3).
func statusMessage(o task.Outcome) string {
	switch {
	case o.Error != nil:
		message, _ := protocol.Unquote(protocol.Get(o.Error, "message"))
		return cut(message, "The request failed.")
	case o.IsError:
		return cut(firstText(o.Result), "The tool reported an error.")
	}
	return "The operation completed."
}

// maxSaid bounds what work may put into the statusMessage by itself, in bytes.
const maxSaid = 4 << 10

func bounded(text string) string {
	if len(text) <= maxSaid {
		return text
	}
	return strings.ToValidUTF8(text[:maxSaid], "") + "…"
}

func cut(s, otherwise string) string {
	if s = strings.TrimSpace(s); s == "" {
		return otherwise
	}
	if len(s) <= maxMessage {
		return s
	}
	end := maxMessage
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// firstText returns the first text in a tool result's content.
func firstText(result json.RawMessage) string {
	var content []struct{ Type, Text string }
	if json.Unmarshal(protocol.Get(result, "content"), &content) == nil {
		for _, c := range content {
			if c.Type == "text" {
				return c.Text
			}
		}
	}
	return ""
}

// How a task's work ended with its process, after the role.
const (
	wasStopped = " stopped before the task finished, and started again without it."
	wasShut    = " was shut down before the task finished."
)

// interrupted is the outcome of a task whose work ended with its process.
func (e *Engine) interrupted(how string) task.Outcome {
	return task.Outcome{Error: protocol.Errorf(protocol.CodeInternalError, "The %s%s", e.opts.Role, how).JSON()}
}

// Interruption is the outcome of work that ends with its connection, as it would with the process.
func (e *Engine) Interruption() task.Outcome { return e.interrupted(wasShut) }

// Interrupted reports whether an outcome says that the work ended with its process.
func Interrupted(o *task.Outcome) bool {
	if o == nil || o.Error == nil {
		return false
	}
	message, _ := protocol.Unquote(protocol.Get(o.Error, "message"))
	return strings.HasSuffix(message, wasStopped) || strings.HasSuffix(message, wasShut)
}
