// Package protocol is the wire vocabulary of MCP Tasks, revision 2025-11-25:
// method names, metadata keys, error codes, capability and task shapes, and the
// means to read and edit JSON objects without changing the bytes around the edit.
// It has no behaviour beyond encoding.
package protocol

// Version20251125 is the protocol revision whose core has (experimental) Tasks.
const Version20251125 = "2025-11-25"

// Methods that Coatcheck handles or looks at.
const (
	MethodInitialize   = "initialize"
	MethodInitialized  = "notifications/initialized"
	MethodPing         = "ping"
	MethodToolsList    = "tools/list"
	MethodToolsCall    = "tools/call"
	MethodTasksGet     = "tasks/get"
	MethodTasksResult  = "tasks/result"
	MethodTasksCancel  = "tasks/cancel"
	MethodTasksList    = "tasks/list"
	MethodCancelled    = "notifications/cancelled"
	MethodProgress     = "notifications/progress"
	MethodLogMessage   = "notifications/message"
	MethodTasksStatus  = "notifications/tasks/status"
	MethodToolsChanged = "notifications/tools/list_changed"

	MethodPromptsChanged   = "notifications/prompts/list_changed"
	MethodResourcesChanged = "notifications/resources/list_changed"
	MethodResourceUpdated  = "notifications/resources/updated"

	MethodElicit         = "elicitation/create"
	MethodElicitComplete = "notifications/elicitation/complete"
	MethodCreateMessage  = "sampling/createMessage"
	MethodListRoots      = "roots/list"
	MethodSetLevel       = "logging/setLevel"
)

// Keys in _meta.
const (
	// MetaRelatedTask marks a message as part of a task; its value is {"taskId": …} (REL-1).
	MetaRelatedTask = "io.modelcontextprotocol/related-task"
	// MetaImmediateResponse, on a CreateTaskResult, is a string for the model to read
	// while the task runs (CRE-4).
	MetaImmediateResponse = "io.modelcontextprotocol/model-immediate-response"
	// MetaIdempotencyKey, on a task-augmented request, makes a repeated create return
	// the task of the first one (requirements C.8).
	MetaIdempotencyKey = "coatcheck/idempotency-key"
	// MetaTicket, on the result of a call that goes on or of a tool about such calls, is
	// {"ticket": …, "status": …} and, while there is something to collect, "collect": the
	// name of the tool for that. The status is "working" or "input_required"; on other
	// results "cancelled", "ended", "interrupted", "expired" or "unknown".
	MetaTicket = "coatcheck/ticket"
	// MetaTickets, on the result of the tool that lists such calls, is {"tickets": [{"ticket":
	// …, "tool": …, "status": …}, …]} and, if they are not all, "more": true.
	MetaTickets = "coatcheck/tickets"
)

// TaskSupport is a tool's execution.taskSupport.
type TaskSupport string

// The values of execution.taskSupport; an absent one means Forbidden (TOOL-2).
const (
	Forbidden TaskSupport = "forbidden"
	Optional  TaskSupport = "optional"
	Required  TaskSupport = "required"
)

// ServerTasks is the value of a server's capabilities.tasks (CAP-1..3).
type ServerTasks struct {
	List     *struct{}          `json:"list,omitempty"`
	Cancel   *struct{}          `json:"cancel,omitempty"`
	Requests *ServerTaskRequest `json:"requests,omitempty"`
}

// ServerTaskRequest lists, exhaustively, the request types a server runs as tasks (CAP-2).
type ServerTaskRequest struct {
	Tools *ToolTaskRequest `json:"tools,omitempty"`
}

// ToolTaskRequest says that tools/call may be task-augmented.
type ToolTaskRequest struct {
	Call *struct{} `json:"call,omitempty"`
}

// ClientTasks is the value of a client's capabilities.tasks (CAP-1..3).
type ClientTasks struct {
	List     *struct{}          `json:"list,omitempty"`
	Cancel   *struct{}          `json:"cancel,omitempty"`
	Requests *ClientTaskRequest `json:"requests,omitempty"`
}

// ClientTaskRequest lists, exhaustively, the request types a client runs as tasks (CAP-2).
type ClientTaskRequest struct {
	Sampling    *SamplingTaskRequest    `json:"sampling,omitempty"`
	Elicitation *ElicitationTaskRequest `json:"elicitation,omitempty"`
}

// SamplingTaskRequest says that sampling/createMessage may be task-augmented.
type SamplingTaskRequest struct {
	CreateMessage *struct{} `json:"createMessage,omitempty"`
}

// ElicitationTaskRequest says that elicitation/create may be task-augmented.
type ElicitationTaskRequest struct {
	Create *struct{} `json:"create,omitempty"`
}
