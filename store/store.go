// Package store says what a place for tasks must offer. Package storetest has the suite
// that every implementation passes.
package store

import (
	"context"
	"errors"
	"time"

	"github.com/coatcheck/coatcheck/task"
)

// Errors a Store returns (possibly wrapped).
var (
	// ErrNotFound: the principal has no such task.
	ErrNotFound = errors.New("task not found")
	// ErrExpired: the principal had such a task, and Expire removed it not long ago.
	ErrExpired = errors.New("task has expired")
	// ErrConflict: the task is not at the revision the change was made from.
	ErrConflict = errors.New("task was changed by another")
	// ErrClosed: the store is closed.
	ErrClosed = errors.New("store is closed")
	// ErrQuota: the principal has stored what its quota allows. It is a *QuotaError.
	ErrQuota = errors.New("quota exceeded")
)

// Quota bounds what a principal may have stored. A field that is zero or negative is no bound.
type Quota struct {
	Tasks int   // tasks, of whatever status
	Bytes int64 // of the params of requests, outcomes, and input requests with their answers
}

// The limits that a QuotaError names.
const (
	QuotaTasks = "tasks"
	QuotaBytes = "bytes"
)

// QuotaError says which bound of a Quota a task would have exceeded: QuotaTasks, also if both, or
// QuotaBytes. It is an ErrQuota.
type QuotaError struct{ Limit string }

func (e *QuotaError) Error() string { return "quota of stored " + e.Limit + " exceeded" }

// Is reports whether target is ErrQuota.
func (e *QuotaError) Is(target error) bool { return target == ErrQuota }

// Exceeded returns the error of a task that would make its principal's stored tasks and bytes
// these; nil if the quota allows them.
func (q Quota) Exceeded(tasks int, bytes int64) error {
	switch {
	case q.Tasks > 0 && tasks > q.Tasks:
		return &QuotaError{QuotaTasks}
	case q.Bytes > 0 && bytes > q.Bytes:
		return &QuotaError{QuotaBytes}
	}
	return nil
}

// Position is a place in a principal's listing: just after the task it names. The zero
// Position is the start.
type Position struct {
	CreatedAt time.Time
	ID        string
}

// Store keeps tasks. All methods may be called concurrently. A change that has returned
// without error is durable, as far as the implementation is. Times come from the caller.
//
// Tasks returned are the caller's to keep and never change afterwards.
type Store interface {
	// Create stores a new task, which has no Inputs. If t.Key is set and the principal already has a task with
	// that key, it stores nothing and returns that one with its Request; otherwise it
	// returns nil. A new task that would exceed its principal's quota is not stored; no number of
	// creates at once, from however many processes, gets past it. What Update stores counts
	// towards the quota, but is never refused, and Expire frees it.
	// Errors: ErrQuota.
	Create(ctx context.Context, t *task.Task, q Quota) (existing *task.Task, err error)

	// Get returns a task without its Request, its Inputs and its Outcome's bytes.
	// Errors: ErrNotFound, ErrExpired.
	Get(ctx context.Context, ref task.Ref) (*task.Task, error)

	// Load returns a whole task, with all its Inputs in the order they were made.
	// Errors: ErrNotFound, ErrExpired.
	Load(ctx context.Context, ref task.Ref) (*task.Task, error)

	// Update stores t, all but its Request, Key and CreatedAt, if the stored task is at
	// revision t.Revision-1 and not terminal. Of t.Inputs it adds those whose Key is new and
	// gives the others their Answer; inputs that t does not name stay as they are.
	// Errors: ErrConflict, ErrNotFound, ErrExpired.
	Update(ctx context.Context, t *task.Task) error

	// Rekey gives a task another Key, or none, whatever its status and without a new revision: a
	// create with the one it had makes a new task.
	// Errors: ErrConflict if another task of the principal has the key, ErrNotFound, ErrExpired.
	Rekey(ctx context.Context, ref task.Ref, key string) error

	// List returns up to limit tasks of the principal after the position, newest first
	// (ties by id, descending), as Get does.
	List(ctx context.Context, p task.Principal, after Position, limit int) ([]*task.Task, error)

	// Due returns up to limit tasks, of any principal, whose lifetime is over at now and that
	// are terminal, owned by owner, or owned by nobody alive at now; soonest first, as Get does.
	Due(ctx context.Context, now time.Time, owner string, limit int) ([]*task.Task, error)

	// NextDue returns when the next task's lifetime ends after the instant given; ok is
	// false if no task has an end after it.
	NextDue(ctx context.Context, after time.Time) (at time.Time, ok bool, err error)

	// Expire deletes those of the tasks whose lifetime is over at now, with all that belongs
	// to them. Until it is called with a now past remember, their refs are answered with
	// ErrExpired. It also forgets earlier refs whose time to be remembered is over.
	Expire(ctx context.Context, now time.Time, refs []task.Ref, remember time.Time) error

	// Renew says that owner is alive until the instant given. An owner that never renewed
	// is not alive.
	Renew(ctx context.Context, owner string, until time.Time) error

	// Release says that owner is gone.
	Release(ctx context.Context, owner string) error

	// Orphans returns up to limit tasks that are not terminal and whose owner is not alive
	// at now, with their Request, without their Inputs.
	Orphans(ctx context.Context, now time.Time, limit int) ([]*task.Task, error)

	// Changed returns a channel that receives (coalesced) when another process may have
	// changed tasks. It is a hint, and nil where no other process can.
	Changed() <-chan struct{}

	// Check verifies the store's integrity and the invariants of its content.
	Check(ctx context.Context) error

	// Close releases the store. Changes in flight are finished first.
	Close() error
}
