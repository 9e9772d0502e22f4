// Package memory is a store that lasts as long as its process: for tests, and for servers
// that do not need more.
package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// Store keeps tasks in memory.
type Store struct {
	mu      sync.Mutex
	closed  bool
	tasks   map[task.Ref]*task.Task
	keys    map[key]task.Ref
	expired map[task.Ref]time.Time // until when they are remembered
	owners  map[string]time.Time   // until when they count as alive
	usage   map[task.Principal]usage
}

type key struct {
	principal task.Principal
	key       string
}

var _ store.Store = (*Store)(nil)

// New returns an empty store.
func New() *Store {
	return &Store{
		tasks:   map[task.Ref]*task.Task{},
		keys:    map[key]task.Ref{},
		expired: map[task.Ref]time.Time{},
		owners:  map[string]time.Time{},
		usage:   map[task.Principal]usage{},
	}
}

func (s *Store) lock() (unlock func(), err error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, store.ErrClosed
	}
	return s.mu.Unlock, nil
}

// Create implements store.Store.
func (s *Store) Create(_ context.Context, t *task.Task, q store.Quota) (*task.Task, error) {
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if t.Key != "" {
		if ref, ok := s.keys[key{t.Principal, t.Key}]; ok {
			return whole(s.tasks[ref]), nil
		}
	}
	if s.tasks[t.Ref] != nil {
		return nil, fmt.Errorf("task %s exists", t.ID)
	}
	used := s.usage[t.Principal].with(t)
	if err := q.Exceeded(used.tasks, used.bytes); err != nil {
		return nil, err
	}
	s.usage[t.Principal] = used
	s.tasks[t.Ref] = whole(t)
	if t.Key != "" {
		s.keys[key{t.Principal, t.Key}] = t.Ref
	}
	return nil, nil
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, ref task.Ref) (*task.Task, error) {
	t, err := s.Load(ctx, ref)
	if err != nil {
		return nil, err
	}
	return light(t), nil
}

// Load implements store.Store.
func (s *Store) Load(_ context.Context, ref task.Ref) (*task.Task, error) {
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	t, err := s.find(ref)
	return whole(t), err
}

func (s *Store) find(ref task.Ref) (*task.Task, error) {
	if t := s.tasks[ref]; t != nil {
		return t, nil
	}
	if _, ok := s.expired[ref]; ok {
		return nil, store.ErrExpired
	}
	return nil, store.ErrNotFound
}

// Update implements store.Store.
func (s *Store) Update(_ context.Context, t *task.Task) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	old, err := s.find(t.Ref)
	if err != nil {
		return err
	}
	if old.Revision != t.Revision-1 || old.Status.Terminal() {
		return store.ErrConflict
	}
	next := whole(t)
	next.Request, next.Key, next.CreatedAt = old.Request, old.Key, old.CreatedAt
	next.Inputs = merged(old.Inputs, t.Inputs)
	s.tasks[t.Ref] = next
	s.usage[t.Principal] = s.usage[t.Principal].without(old).with(next)
	return nil
}

// Rekey implements store.Store.
func (s *Store) Rekey(_ context.Context, ref task.Ref, to string) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	t, err := s.find(ref)
	if err != nil {
		return err
	}
	if to != "" {
		if other, ok := s.keys[key{t.Principal, to}]; ok && other != ref {
			return store.ErrConflict
		}
		s.keys[key{t.Principal, to}] = ref
	}
	if t.Key != "" && t.Key != to {
		delete(s.keys, key{t.Principal, t.Key})
	}
	next := *t
	next.Key = to
	s.tasks[ref] = &next
	return nil
}

// merged returns the stored inputs with those that an update names.
func merged(stored, named []task.InputRequest) []task.InputRequest {
	all := slices.Clone(stored)
	for _, input := range named {
		i := slices.IndexFunc(all, func(in task.InputRequest) bool { return in.Key == input.Key })
		if i < 0 {
			all = append(all, input)
		} else {
			all[i].Answer = input.Answer
		}
	}
	return all
}

// List implements store.Store.
func (s *Store) List(_ context.Context, p task.Principal, after store.Position, limit int) ([]*task.Task, error) {
	return s.pick(limit, newestFirst, light, func(t *task.Task) bool {
		return t.Principal == p && (after.ID == "" && after.CreatedAt.IsZero() ||
			newestFirst(&task.Task{Ref: task.Ref{ID: after.ID}, CreatedAt: after.CreatedAt}, t) < 0)
	})
}

func newestFirst(a, b *task.Task) int {
	return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.ID, a.ID))
}

// Due implements store.Store.
func (s *Store) Due(_ context.Context, now time.Time, owner string, limit int) ([]*task.Task, error) {
	return s.pick(limit, soonestFirst, light, func(t *task.Task) bool {
		return t.Expired(now) && (t.Status.Terminal() || t.Owner == owner || !s.alive(t.Owner, now))
	})
}

func soonestFirst(a, b *task.Task) int {
	at, _ := a.ExpiresAt()
	bt, _ := b.ExpiresAt()
	return at.Compare(bt)
}

func (s *Store) alive(owner string, now time.Time) bool { return s.owners[owner].After(now) }

// NextDue implements store.Store.
func (s *Store) NextDue(_ context.Context, after time.Time) (time.Time, bool, error) {
	next, err := s.pick(1, soonestFirst, light, func(t *task.Task) bool {
		at, ok := t.ExpiresAt()
		return ok && at.After(after)
	})
	if err != nil || len(next) == 0 {
		return time.Time{}, false, err
	}
	at, _ := next[0].ExpiresAt()
	return at, true, nil
}

// Expire implements store.Store.
func (s *Store) Expire(_ context.Context, now time.Time, refs []task.Ref, remember time.Time) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	for ref, until := range s.expired {
		if !until.After(now) {
			delete(s.expired, ref)
		}
	}
	for _, ref := range refs {
		if t := s.tasks[ref]; t != nil && t.Expired(now) {
			delete(s.tasks, ref)
			s.free(t)
			delete(s.keys, key{t.Principal, t.Key})
			s.expired[ref] = remember
		}
	}
	return nil
}

// Renew implements store.Store.
func (s *Store) Renew(_ context.Context, owner string, until time.Time) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	s.owners[owner] = until
	return nil
}

// Release implements store.Store.
func (s *Store) Release(_ context.Context, owner string) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	delete(s.owners, owner)
	return nil
}

// Orphans implements store.Store.
func (s *Store) Orphans(_ context.Context, now time.Time, limit int) ([]*task.Task, error) {
	withRequest := func(t *task.Task) *task.Task {
		c := whole(t)
		c.Inputs = nil
		return c
	}
	return s.pick(limit, soonestFirst, withRequest, func(t *task.Task) bool {
		return !t.Status.Terminal() && !s.alive(t.Owner, now)
	})
}

// pick returns the tasks that match, in order, up to limit, each as view makes it.
func (s *Store) pick(limit int, order func(a, b *task.Task) int, view func(*task.Task) *task.Task, match func(*task.Task) bool) ([]*task.Task, error) {
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	var found []*task.Task
	for _, t := range s.tasks {
		if match(t) {
			found = append(found, t)
		}
	}
	slices.SortFunc(found, order)
	found = found[:min(limit, len(found))]
	for i, t := range found {
		found[i] = view(t)
	}
	return found, nil
}

// Changed implements store.Store: no other process can change it.
func (s *Store) Changed() <-chan struct{} { return nil }

// Check implements store.Store.
func (s *Store) Check(context.Context) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	var faults []error
	for ref, t := range s.tasks {
		switch {
		case t.Ref != ref || t.Revision < 1:
			faults = append(faults, fmt.Errorf("task %v is stored as %v at revision %d", ref, t.Ref, t.Revision))
		case t.Status.Terminal() != (t.Owner == ""):
			faults = append(faults, fmt.Errorf("%s task %s is owned by %q", t.Status, t.ID, t.Owner))
		case (t.Status == task.Completed || t.Status == task.Failed) != (t.Outcome != nil):
			faults = append(faults, fmt.Errorf("%s task %s: outcome %v", t.Status, t.ID, t.Outcome != nil))
		case !t.Status.Terminal() && t.Asked > 0 && (t.Status == task.InputRequired) != slices.ContainsFunc(t.Inputs, open):
			faults = append(faults, fmt.Errorf("%s task %s: open input requests %v", t.Status, t.ID, t.Inputs))
		case t.Asked != len(t.Inputs):
			faults = append(faults, fmt.Errorf("task %s has made %d input requests, %d are stored", t.ID, t.Asked, len(t.Inputs)))
		}
		if _, gone := s.expired[ref]; gone {
			faults = append(faults, fmt.Errorf("task %s is stored and expired", t.ID))
		}
	}
	if stored := s.stored(); !maps.Equal(stored, s.usage) {
		faults = append(faults, fmt.Errorf("%v is stored, %v is counted", stored, s.usage))
	}
	for k, ref := range s.keys {
		if t := s.tasks[ref]; t == nil || t.Key != k.key || t.Principal != k.principal {
			faults = append(faults, fmt.Errorf("key %q names task %s", k.key, ref.ID))
		}
	}
	return errors.Join(faults...)
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

func open(in task.InputRequest) bool { return in.Answer == nil }

// whole copies a task; light does without its request, its inputs and its outcome's bytes.
func whole(t *task.Task) *task.Task {
	if t == nil {
		return nil
	}
	c := *t
	c.Inputs = slices.Clone(t.Inputs)
	if t.Outcome != nil {
		o := *t.Outcome
		c.Outcome = &o
	}
	return &c
}

func light(t *task.Task) *task.Task {
	c := *t
	c.Request, c.Inputs = task.Request{}, nil
	if t.Outcome != nil {
		c.Outcome = &task.Outcome{IsError: t.Outcome.IsError}
	}
	return &c
}
