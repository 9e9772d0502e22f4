package coatcheck

import (
	"context"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/upstream"
)

// Task is the task that a tool's handler runs in: what the SDK's session cannot say of it.
// A nil *Task is a call that is no task; its methods say nothing and are safe to call.
type Task struct{ running *upstream.Running }

// ErrNoTask is returned for a question of a nil *Task.
var ErrNoTask = errors.New("coatcheck: the call does not run as a task")

// FromContext returns the task that the handler with this context runs in, or nil if it was
// called plainly.
func FromContext(ctx context.Context) *Task {
	if running := upstream.FromContext(ctx); running != nil {
		return &Task{running}
	}
	return nil
}

// ID returns the task's id, or "".
func (t *Task) ID() string {
	if t == nil {
		return ""
	}
	return t.running.Job.Ref.ID
}

// SetStatusMessage stores what the task is at, as its statusMessage, of which 4 KiB are kept.
// From then on progress does not show there. While the task waits for input its message says
// so; this one shows afterwards. The error is the store's, or says that the task is over.
func (t *Task) SetStatusMessage(ctx context.Context, message string) error {
	if t == nil {
		return nil
	}
	return t.running.Job.SetMessage(ctx, message)
}

// Progress reports progress under the requestor's own token, if it gave one (PROG-1); total
// 0 is not known. Until SetStatusMessage is called it also shows in the statusMessage.
// Progress less than before is dropped; of a flood the last is sent.
func (t *Task) Progress(progress, total float64, message string) {
	if t != nil {
		t.running.Job.Report(progress, total, message)
	}
}

// RespondNow gives the model something to go on with while the task runs (CRE-4). It is sent
// if the answer to the call still waits for it; see Tool.Immediate. The first call counts.
func (t *Task) RespondNow(text string) {
	if t != nil {
		t.running.Job.RespondNow(text)
	}
}

// SetPollInterval suggests to the requestor how often to poll this task, in whole
// milliseconds; 0 suggests nothing (TTL-4). The error is the store's, or says that the task
// is over.
func (t *Task) SetPollInterval(ctx context.Context, d time.Duration) error {
	if t == nil {
		return nil
	}
	return t.running.Job.SetPollInterval(ctx, d)
}

// Elicit asks the requestor's user, as the SDK's ServerSession.Elicit does (INP-1). The
// question is stored until it is answered. The error is ErrNoTask for a nil *Task.
func (t *Task) Elicit(ctx context.Context, params *mcp.ElicitParams) (*mcp.ElicitResult, error) {
	if t == nil {
		return nil, ErrNoTask
	}
	return t.running.Session.Elicit(ctx, params)
}

// Sample asks the requestor's model, as the SDK's ServerSession.CreateMessageWithTools does.
// The error is ErrNoTask for a nil *Task.
func (t *Task) Sample(ctx context.Context, params *mcp.CreateMessageWithToolsParams) (*mcp.CreateMessageWithToolsResult, error) {
	if t == nil {
		return nil, ErrNoTask
	}
	return t.running.Session.CreateMessageWithTools(ctx, params)
}
