package coatcheck

import "github.com/coatcheck/coatcheck/internal/receiver"

// Operation is what a requestor does with tasks, as far as scopes tell it apart.
type Operation = receiver.Operation

// The operations.
const (
	Create = receiver.Create // a request that is to run as a task, and answers to its questions
	Read   = receiver.Read   // tasks/get, tasks/result, tasks/list
	Cancel = receiver.Cancel // tasks/cancel
)
