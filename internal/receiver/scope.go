package receiver

import (
	"slices"
	"strings"

	"github.com/coatcheck/coatcheck/protocol"
)

// Operation is what a requestor does with tasks, as far as scopes tell it apart.
type Operation string

// The operations. What a requestor answers to a task's question is a part of creating it.
const (
	Create Operation = "create" // a request that is to run as a task, and answers
	Read   Operation = "read"   // tasks/get, tasks/result, tasks/list
	Cancel Operation = "cancel" // tasks/cancel
)

// answering stands for the method of a response, which has none.
const answering = "response"

func kindOf(method string) Operation {
	switch method {
	case protocol.MethodTasksGet, protocol.MethodTasksResult, protocol.MethodTasksList:
		return Read
	case protocol.MethodTasksCancel:
		return Cancel
	}
	return Create
}

// allowed reports whether a requestor's token has the scopes of the operation that a method
// asks for (SEC-1); if not, the answer says which. One without a token, as over stdio, needs
// none.
func (r *Receiver) allowed(from *Requestor, method string) (Answer, bool) {
	scope := r.scopes[kindOf(method)]
	if scope == "" || from.TokenInfo == nil {
		return Answer{}, true
	}
	for name := range strings.FieldsSeq(scope) {
		if !slices.Contains(from.TokenInfo.Scopes, name) {
			refused := protocol.Errorf(protocol.CodeInsufficientScope, "The token lacks the scope %s", scope)
			refused.Data = protocol.Marshal(map[string]string{"scope": scope})
			return Answer{Error: refused.JSON(), Scope: scope}, false
		}
	}
	return Answer{}, true
}
