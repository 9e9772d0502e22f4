package receiver

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// keptWork is the work of calls that got a ticket, or no answer at all, by what was called. A
// repeat of a call is taken to it. It also stands in the tasks' idempotency keys, for the time
// after a restart.
type keptWork struct {
	opened time.Time

	mu     sync.Mutex
	by     map[keptKey]keptTask
	keys   map[task.Ref]keptKey
	loaded map[task.Principal]bool // what was kept before this process is in
	out    map[task.Ref]*keptEntry // dropped, by who may not get to deliver the result
}

type keptKey struct {
	principal task.Principal
	call      string // what is called, and in which session, if the principal tells nobody apart
}

type keptTask struct {
	ref  task.Ref
	lost bool // its requestor got no answer
}

func newKeptWork() *keptWork {
	return &keptWork{opened: time.Now(), by: map[keptKey]keptTask{}, keys: map[task.Ref]keptKey{}, loaded: map[task.Principal]bool{}, out: map[task.Ref]*keptEntry{}}
}

// Idempotency keys of kept work begin so.
const (
	toldKey = "coatcheck ticket told "
	lostKey = "coatcheck ticket lost "
)

func (k keptKey) of(lost bool) string {
	if lost {
		return lostKey + k.call
	}
	return toldKey + k.call
}

func isKept(key string) bool {
	return strings.HasPrefix(key, toldKey) || strings.HasPrefix(key, lostKey)
}

// maxLife is how long before this process began work may have that a repeat is taken to.
const maxLife = 24 * time.Hour

// load takes in what an earlier process kept for a principal, if that is not done yet.
func (k *keptWork) load(ctx context.Context, e *engine.Engine, p task.Principal, reattach time.Duration) error {
	k.mu.Lock()
	loaded := k.loaded[p] || time.Since(k.opened) > reattach
	if loaded && len(k.loaded) > 0 && time.Since(k.opened) > reattach {
		clear(k.loaded)
	}
	k.mu.Unlock()
	if loaded {
		return nil
	}
	tasks, err := e.Keyed(ctx, p, k.opened.Add(-maxLife))
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.loaded[p] { // by another call, and some of it may be collected by now
		return nil
	}
	k.loaded[p] = true
	for _, t := range tasks { // the newest first
		call, lost := strings.CutPrefix(t.Key, lostKey)
		if !lost {
			var told bool
			if call, told = strings.CutPrefix(t.Key, toldKey); !told {
				continue
			}
		}
		if key := (keptKey{p, call}); k.by[key].ref.ID == "" {
			k.put(key, keptTask{t.Ref, lost})
		}
	}
	return nil
}

// maxKept bounds what is remembered; of what is forgotten a repeat starts anew.
const maxKept = 1 << 16

func (k *keptWork) put(key keptKey, kept keptTask) {
	if len(k.by) >= maxKept {
		for other, old := range k.by { // any one
			delete(k.by, other)
			delete(k.keys, old.ref)
			break
		}
	}
	if before, ok := k.by[key]; ok {
		delete(k.keys, before.ref)
	}
	k.by[key], k.keys[kept.ref] = kept, key
}

func (k *keptWork) add(key keptKey, kept keptTask) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.put(key, kept)
}

func (k *keptWork) get(key keptKey) (keptTask, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	kept, ok := k.by[key]
	return kept, ok
}

// lose notes that the requestor did not get its ticket, and returns the idempotency key that says
// so; "" if nothing changes.
func (k *keptWork) lose(ref task.Ref) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, ok := k.keys[ref]
	if !ok || k.by[key].lost {
		return ""
	}
	k.by[key] = keptTask{ref, true}
	return key.of(true)
}

// lose notes that the requestor of a task got no answer, not even a ticket.
func (r *Receiver) lose(ctx context.Context, ref task.Ref) {
	key := r.kept.lose(ref)
	if key == "" {
		return
	}
	if err := r.engine.Rekey(ctx, ref, key); err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrExpired) &&
		!errors.Is(err, store.ErrConflict) { // an equal call, which was lost too, has the key
		r.log.Error("a repeat of a lost call may not be taken to it after a restart", "error", err)
	}
}

// keptEntry is what drop took out.
type keptEntry struct {
	key  keptKey
	kept keptTask
}

// drop takes a task's entry out for as long as its result is on its way to somebody: putBack or
// forget follows. It returns nil if there is none.
func (k *keptWork) drop(ref task.Ref) *keptEntry {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, ok := k.keys[ref]
	if !ok {
		return nil
	}
	dropped := &keptEntry{key, k.by[key]}
	delete(k.by, key)
	delete(k.keys, ref)
	k.out[ref] = dropped
	return dropped
}

// putBack undoes drop, unless the result reached somebody else, or there is another entry by now.
func (k *keptWork) putBack(dropped *keptEntry) {
	if dropped == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.out[dropped.kept.ref] != dropped {
		return
	}
	delete(k.out, dropped.kept.ref)
	if _, ok := k.by[dropped.key]; !ok {
		k.put(dropped.key, dropped.kept)
	}
}

// forget takes a task's entry out for good, and reports whether it had one.
func (k *keptWork) forget(ref task.Ref) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, ok := k.keys[ref]
	if ok {
		delete(k.by, key)
		delete(k.keys, ref)
	}
	_, out := k.out[ref]
	delete(k.out, ref)
	return ok || out
}

// createKept creates the task of a call, in the place of what a repeat of it was taken to until
// then. The same call may be made twice at a time and is two then, one of them without a key.
func (o *operation) createKept(ctx context.Context, c engine.Creation, key keptKey, lost bool) (*task.Task, error) {
	c.Fresh = true
	if key.call != "" {
		if before, ok := o.kept.get(key); ok {
			if t, err := o.engine.Get(ctx, before.ref); err == nil {
				o.letGo(ctx, t)
			}
		}
		c.Key = key.of(lost)
	}
	t, err := o.engine.Create(ctx, c)
	if errors.Is(err, engine.ErrKeyReused) {
		c.Key = ""
		t, err = o.engine.Create(ctx, c)
	}
	return t, err
}

// letGo has repeats of a task's call start anew.
func (r *Receiver) letGo(ctx context.Context, t *task.Task) {
	if !r.kept.forget(t.Ref) && !isKept(t.Key) {
		return
	}
	if err := r.engine.Rekey(ctx, t.Ref, ""); err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrExpired) {
		r.log.Error("a repeat of a collected call may be taken to it after a restart", "error", err)
	}
}

// loadKept is keptWork.load. If it fails, repeats of what was kept start anew.
func (r *Receiver) loadKept(ctx context.Context, p task.Principal) {
	if err := r.kept.load(ctx, r.engine, p, r.tickets.Reattach); err != nil {
		r.log.Error("looking for work of earlier calls failed", "error", err)
	}
}

// joinable returns the work that a repeat of a call is taken to, if there is any: a call that a
// server may get twice is taken to what its first run is at; any other only if nobody was told of
// that one.
func (r *Receiver) joinable(ctx context.Context, key keptKey, repeatable bool) (task.Ref, bool) {
	if r.tickets.Reattach < 0 {
		return task.Ref{}, false
	}
	r.loadKept(ctx, key.principal)
	kept, ok := r.kept.get(key)
	if !ok || !kept.lost && !repeatable {
		return task.Ref{}, false
	}
	t, err := r.engine.Get(ctx, kept.ref)
	switch {
	case err != nil:
		r.kept.forget(kept.ref)
		return task.Ref{}, false
	case !t.Status.Terminal():
		return kept.ref, true
	}
	whole, err := r.engine.Result(ctx, kept.ref)
	if err != nil || whole.Status == task.Cancelled || engine.Interrupted(whole.Outcome) || time.Since(whole.UpdatedAt) > r.tickets.Reattach {
		r.letGo(ctx, t)
		return task.Ref{}, false
	}
	return kept.ref, true
}
