// Package storetest is the suite that every store passes. A store's own test is one call:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Harness { … })
//	}
package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// Harness is a store under test.
type Harness struct {
	// Store is new and empty.
	Store store.Store
	// Reopen closes Store and opens what it kept again. nil: the store keeps nothing.
	Reopen func() store.Store
}

// Run runs the suite. open returns a new harness for each test; the suite checks and closes
// its store afterwards.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	for _, test := range []struct {
		name string
		run  func(*fixture)
	}{
		{"RoundTrip", testRoundTrip},
		{"OddBytes", testOddBytes},
		{"Reopen", testReopen},
		{"CompareAndSet", testCompareAndSet},
		{"TerminalIsFinal", testTerminalIsFinal},
		{"RandomEvents", testRandomEvents},
		{"Principals", testPrincipals},
		{"Keys", testKeys},
		{"Rekey", testRekey},
		{"ConcurrentKeys", testConcurrentKeys},
		{"List", testList},
		{"ListProperty", testListProperty},
		{"ListWhileInserting", testListWhileInserting},
		{"Expiry", testExpiry},
		{"ExpiryOfRunning", testExpiryOfRunning},
		{"Owners", testOwners},
		{"Inputs", testInputs},
		{"InputBytes", testInputBytes},
		{"InputsAreLoaded", testInputsAreLoaded},
		{"RefusedInputs", testRefusedInputs},
		{"InputsOfTheEnded", testInputsOfTheEnded},
		{"InputsOfPrincipals", testInputsOfPrincipals},
		{"InputsExpire", testInputsExpire},
		{"ConcurrentAnswers", testConcurrentAnswers},
		{"AnswersOfAll", testAnswersOfAll},
		{"QuotaBounds", testQuotaBounds},
		{"QuotaOfWhatIsAdded", testQuotaOfWhatIsAdded},
		{"QuotaFreed", testQuotaFreed},
		{"QuotaAndKeys", testQuotaAndKeys},
		{"QuotaRaces", testQuotaRaces},
		{"QuotaModel", testQuotaModel},
		{"ConcurrentWriters", testConcurrentWriters},
		{"GivenUp", testGivenUp},
		{"Closed", testClosed},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := open(t)
			f := &fixture{T: t, Harness: h}
			t.Cleanup(func() {
				if err := f.Store.Check(context.Background()); err != nil && !errors.Is(err, store.ErrClosed) && !f.closed {
					t.Errorf("after the test: %v", err)
				}
				if err := f.Store.Close(); err != nil {
					t.Error(err)
				}
			})
			test.run(f)
		})
	}
}

// fixture is a test with its store.
type fixture struct {
	*testing.T
	Harness
	closed bool // by the test itself
	n      int
}

// epoch is when all tests happen.
var epoch = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)

// made returns a new working task.
func (f *fixture) made(p task.Principal) *task.Task {
	f.n++
	return &task.Task{
		Ref:           task.Ref{Principal: p, ID: fmt.Sprintf("task-%05d", f.n)},
		Revision:      1,
		Status:        task.Working,
		StatusMessage: "working",
		CreatedAt:     epoch.Add(time.Duration(f.n) * time.Millisecond),
		UpdatedAt:     epoch.Add(time.Duration(f.n) * time.Millisecond),
		TTL:           time.Hour,
		PollInterval:  time.Second,
		Request:       task.Request{Method: "tools/call", Params: json.RawMessage(`{"name":"x"}`)},
		Owner:         "owner",
	}
}

// created stores a task.
func (f *fixture) created(t *task.Task) *task.Task {
	f.Helper()
	if existing, err := f.Store.Create(f.Context(), t, store.Quota{}); err != nil || existing != nil {
		f.Fatalf("create: %+v, %v", existing, err)
	}
	return t
}

// updated stores a change of a task.
func (f *fixture) updated(t *task.Task, err error) *task.Task {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
	if err := f.Store.Update(f.Context(), t); err != nil {
		f.Fatalf("update: %v", err)
	}
	return t
}

// same compares a task loaded whole with what was stored.
func (f *fixture) same(want *task.Task) {
	f.Helper()
	got, err := f.Store.Load(f.Context(), want.Ref)
	if err != nil {
		f.Fatalf("load: %v", err)
	}
	f.equal("loaded", want, got)
	state, err := f.Store.Get(f.Context(), want.Ref)
	if err != nil {
		f.Fatalf("get: %v", err)
	}
	light := *want
	light.Request, light.Inputs = task.Request{}, nil
	if want.Outcome != nil {
		light.Outcome = &task.Outcome{IsError: want.Outcome.IsError}
	}
	f.equal("state", &light, state)
}

// equal compares tasks; absent bytes and none are the same.
func (f *fixture) equal(what string, want, got *task.Task) {
	f.Helper()
	if !reflect.DeepEqual(normal(want), normal(got)) { // cmp takes a minute for 5 MiB
		f.Errorf("%s (-want +got):\n%s", what, cmp.Diff(want, got))
	}
}

func normal(t *task.Task) *task.Task {
	c := *t
	if len(c.Request.Params) == 0 {
		c.Request.Params = nil
	}
	c.Outcome = normalOutcome(t.Outcome)
	c.Inputs = nil
	for _, in := range t.Inputs {
		if len(in.Params) == 0 {
			in.Params = nil
		}
		in.Answer = normalOutcome(in.Answer)
		c.Inputs = append(c.Inputs, in)
	}
	return &c
}

func normalOutcome(o *task.Outcome) *task.Outcome {
	if o == nil {
		return nil
	}
	c := *o
	if len(c.Error) == 0 {
		c.Error = nil
	}
	if len(c.Result) == 0 {
		c.Result = nil
	}
	return &c
}

func (f *fixture) wants(err, want error, what string) {
	f.Helper()
	if !errors.Is(err, want) {
		f.Errorf("%s: %v, want %v", what, err, want)
	}
}

var completed = task.Outcome{Result: json.RawMessage(`{"content":[]}`)}
