package coatcheck

import (
	"context"
	"time"

	"github.com/coatcheck/coatcheck/internal/upstream"
)

// Task is what the SDK's session cannot say of the call that a tool's handler runs in. What is
// about the task does nothing in a plain call. A nil *Task, on a server without a Runtime, is
// safe to use, and does nothing.
type Task struct{ running *upstream.Running }

// FromContext returns the call that the handler with this context runs in; nil on a server
// that no Runtime is opened on.
func FromContext(ctx context.Context) *Task {
	if running := upstream.FromContext(ctx); running != nil {
		return &Task{running}
	}
	return nil
}

func (t *Task) isTask() bool { return t != nil && t.running.Job != nil }

// ID returns the task's id; "" in a plain call.
func (t *Task) ID() string {
	if !t.isTask() {
		return ""
	}
	return t.running.Job.Ref.ID
}

// SetStatusMessage stores what the task is at, as its statusMessage, of which 4 KiB are kept.
// From then on progress does not show there. While the task waits for input its message says
// so; this one shows afterwards. The error is the store's, or says that the task is over.
func (t *Task) SetStatusMessage(ctx context.Context, message string) error {
	if !t.isTask() {
		return nil
	}
	return t.running.Job.SetMessage(ctx, message)
}

// Progress reports progress under the requestor's own token, if it gave one (PROG-1); total
// 0 is not known. Of a task, it also shows in the statusMessage until SetStatusMessage is
// called, progress less than before is dropped, and of a flood the last is sent.
func (t *Task) Progress(progress, total float64, message string) {
	if t != nil {
		t.running.Report(progress, total, message)
	}
}

// RespondNow gives the model something to go on with while the task runs (CRE-4). It is sent
// if the answer to the call still waits for it; see Tool.Immediate. The first call counts.
func (t *Task) RespondNow(text string) {
	if t.isTask() {
		t.running.Job.RespondNow(text)
	}
}

// SetPollInterval suggests to the requestor how often to poll this task, in whole
// milliseconds; 0 suggests nothing (TTL-4). The error is the store's, or says that the task
// is over.
func (t *Task) SetPollInterval(ctx context.Context, d time.Duration) error {
	if !t.isTask() {
		return nil
	}
	return t.running.Job.SetPollInterval(ctx, d)
}
