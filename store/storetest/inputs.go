package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

// asked stores a question of a whole task and returns the whole task with it.
func (f *fixture) asked(t *task.Task, method, params string) *task.Task {
	f.Helper()
	next, err := t.Ask(method, json.RawMessage(params), "asking", t.UpdatedAt.Add(time.Second))
	return withInputs(t, f.updated(next, err))
}

// answered stores an answer to one of a whole task's open questions and returns the whole
// task with it.
func (f *fixture) answered(t *task.Task, key string, answer task.Outcome) *task.Task {
	f.Helper()
	next, err := answerTo(t, key, answer)
	return withInputs(t, f.updated(next, err))
}

// answerTo returns the change that answers one of a whole task's open questions.
func answerTo(t *task.Task, key string, answer task.Outcome) (*task.Task, error) {
	i := slices.IndexFunc(t.Inputs, func(in task.InputRequest) bool { return in.Key == key })
	return t.Answer(t.Inputs[i], answer, len(open(t)) > 1, "answered", t.UpdatedAt.Add(time.Second))
}

// open returns the keys of a whole task's open questions.
func open(t *task.Task) (keys []string) {
	for _, in := range t.Inputs {
		if in.Answer == nil {
			keys = append(keys, in.Key)
		}
	}
	return keys
}

// withInputs returns what is stored when a change was made of a whole task.
func withInputs(whole, change *task.Task) *task.Task {
	c := *change
	c.Inputs = slices.Clone(whole.Inputs)
	for _, in := range change.Inputs {
		if i := slices.IndexFunc(c.Inputs, func(old task.InputRequest) bool { return old.Key == in.Key }); i >= 0 {
			c.Inputs[i].Answer = in.Answer
		} else {
			c.Inputs = append(c.Inputs, in)
		}
	}
	return &c
}

func result(format string, args ...any) task.Outcome {
	return task.Outcome{Result: fmt.Appendf(nil, format, args...)}
}

// A task asks, several questions are open at once, and it goes on when the last is answered.
func testInputs(f *fixture) {
	t := f.created(f.made("p"))
	for i := range 12 { // enough that the order of the keys as text is another
		t = f.asked(t, "elicitation/create", fmt.Sprintf(`{"n":%d}`, i))
		f.same(t)
	}
	f.same(f.updatedWhole(t, func(t *task.Task) (*task.Task, error) { return t.To(task.InputRequired, "still", t.UpdatedAt) }))
	t = f.load(t.Ref)
	for len(open(t)) > 0 {
		keys := open(t)
		key := keys[len(keys)/2]
		if t.Status != task.InputRequired {
			f.Fatalf("a task with %d open questions is %s", len(keys), t.Status)
		}
		answer := result(`{"to":%q}`, key)
		switch len(keys) % 3 {
		case 1:
			answer = task.Outcome{Error: fmt.Appendf(nil, `{"code":-1,"message":%q}`, key)}
		case 2:
			answer.IsError = true
		}
		t = f.answered(t, key, answer)
		f.same(t)
	}
	if t.Status != task.Working || t.Asked != 12 {
		f.Errorf("after the last answer: %s, asked %d", t.Status, t.Asked)
	}
	t = f.asked(t, "roots/list", "")
	f.same(t)
	f.same(f.updatedWhole(t, func(t *task.Task) (*task.Task, error) { return t.Finish(completed, "done", t.UpdatedAt) }))
}

// updatedWhole stores a change that is made of a whole task without its inputs, and returns
// the whole task.
func (f *fixture) updatedWhole(t *task.Task, change func(*task.Task) (*task.Task, error)) *task.Task {
	f.Helper()
	lean := *t
	lean.Inputs = nil
	return withInputs(t, f.updated(change(&lean)))
}

func (f *fixture) load(ref task.Ref) *task.Task {
	f.Helper()
	t, err := f.Store.Load(f.Context(), ref)
	if err != nil {
		f.Fatalf("load: %v", err)
	}
	return t
}

// Questions and answers are kept byte for byte.
func testInputBytes(f *fixture) {
	t := f.created(f.made("p"))
	for _, params := range []string{
		"", " {\"a\" :\t[1e400, 1.0]} \r\n", `{"ü":"\u00fc\/","世界":"` + "\u2028" + `","b":1,"b":2}`, `{"a":"\u0000'';--"}`, "{\"a\":\"\x00\xff\"}",
		`{"x":"` + strings.Repeat("é", 1<<16) + `"}`,
	} {
		t = f.asked(t, "elicitation/"+params[:min(9, len(params))], params)
		f.same(t)
		t = f.asked(t, "", params)
		answer := task.Outcome{Result: json.RawMessage(`{}` + params)}
		t = f.answered(t, open(t)[0], answer)
		f.same(t)
		t = f.answered(t, open(t)[0], task.Outcome{Error: answer.Result})
		f.same(t)
	}
	if f.Reopen == nil {
		return
	}
	f.Store = f.Reopen()
	f.same(t)
}

// Only Load returns inputs.
func testInputsAreLoaded(f *fixture) {
	ctx := f.Context()
	t := f.made("p")
	t.Key = "k"
	t = f.asked(f.asked(f.created(t), "elicitation/create", `{}`), "elicitation/create", `{}`)
	t = f.answered(t, "1", result(`{}`))
	late := epoch.Add(2 * time.Hour)
	check := func(what string, request bool, tasks []*task.Task, err error) {
		f.Helper()
		if err != nil || len(tasks) != 1 {
			f.Fatalf("%s: %v, %v", what, tasks, err)
		}
		want := *t
		want.Inputs = nil
		if !request {
			want.Request = task.Request{}
		}
		f.equal(what, &want, tasks[0])
	}
	got, err := f.Store.Get(ctx, t.Ref)
	check("get", false, []*task.Task{got}, err)
	tasks, err := f.Store.List(ctx, "p", store.Position{}, 9)
	check("list", false, tasks, err)
	tasks, err = f.Store.Due(ctx, late, "owner", 9)
	check("due", false, tasks, err)
	tasks, err = f.Store.Orphans(ctx, late, 9)
	check("orphans", true, tasks, err)
	f.same(t)
}

// Inputs are part of the change that names them: what is refused adds and answers nothing.
func testRefusedInputs(f *fixture) {
	first := f.created(f.made("p"))
	two := f.asked(f.asked(first, "a", `{}`), "b", `{}`)
	question, err := first.Ask("late", json.RawMessage(`{}`), "", epoch)
	if err != nil {
		f.Fatal(err)
	}
	answer, err := answerTo(two, "1", result(`"late"`))
	if err != nil {
		f.Fatal(err)
	}
	answer.Revision--
	refused := func(t *task.Task, want error) {
		f.Helper()
		f.wants(f.Store.Update(f.Context(), t), want, "update")
	}
	refused(question, store.ErrConflict)
	refused(answer, store.ErrConflict)
	question.Inputs[0].Key = "other"
	refused(question, store.ErrConflict)
	f.same(two)
	missing, err := f.made("p").Ask("nobody", nil, "", epoch)
	if err != nil {
		f.Fatal(err)
	}
	refused(missing, store.ErrNotFound)
	f.same(f.answered(f.answered(two, "2", result(`2`)), "1", result(`1`)))
}

// A task that ended keeps its questions; those still open stay without an answer.
func testInputsOfTheEnded(f *fixture) {
	var ended []*task.Task
	for _, end := range []func(*task.Task) (*task.Task, error){
		func(t *task.Task) (*task.Task, error) { return t.To(task.Cancelled, "", t.UpdatedAt) },
		func(t *task.Task) (*task.Task, error) { return t.Finish(completed, "", t.UpdatedAt) },
		func(t *task.Task) (*task.Task, error) {
			return t.Finish(task.Outcome{Error: json.RawMessage(`{}`)}, "", t.UpdatedAt)
		},
	} {
		t := f.asked(f.asked(f.created(f.made("p")), "a", `{}`), "b", `{}`)
		t = f.answered(t, "1", result(`{}`))
		running := t
		t = f.updatedWhole(t, end)
		f.same(t)
		for _, key := range []string{"2", "1"} {
			late, err := answerTo(&task.Task{Ref: t.Ref, Revision: t.Revision, Status: task.Working, Inputs: []task.InputRequest{{Key: key}}}, key, result(`"late"`))
			if err != nil {
				f.Fatal(err)
			}
			f.wants(f.Store.Update(f.Context(), late), store.ErrConflict, "an answer to a task that ended")
		}
		more, err := running.Ask("c", nil, "", epoch)
		if err != nil {
			f.Fatal(err)
		}
		more.Revision = t.Revision + 1
		f.wants(f.Store.Update(f.Context(), more), store.ErrConflict, "a question of a task that ended")
		f.same(t)
		ended = append(ended, t)
	}
	if f.Reopen == nil {
		return
	}
	f.Store = f.Reopen()
	for _, t := range ended {
		f.same(t)
	}
}

// Questions of two principals' tasks that have the same id are two, and go with their task.
func testInputsOfPrincipals(f *fixture) {
	mine, theirs := f.made("alice"), f.made("bob")
	theirs.ID = mine.ID
	mine = f.asked(f.created(mine), "mine", `{}`)
	theirs = f.asked(f.created(theirs), "theirs", `[]`)
	theirs = f.asked(theirs, "theirs", `[2]`)
	mine = f.answered(mine, "1", result(`"mine"`))
	f.same(mine)
	f.same(theirs)
	late := epoch.Add(2 * time.Hour)
	for _, now := range []time.Time{late, late.Add(time.Hour)} { // the second forgets the ref
		refs := []task.Ref{mine.Ref}
		if err := f.Store.Expire(f.Context(), now, refs, late.Add(time.Hour)); err != nil {
			f.Fatal(err)
		}
	}
	_, err := f.Store.Load(f.Context(), mine.Ref)
	f.wants(err, store.ErrNotFound, "load of what expired and was forgotten")
	f.same(theirs)
	again := f.made("alice") // ids are not used twice; this one shows that nothing is left
	again.ID = mine.ID
	f.same(f.asked(f.created(again), "again", `{"again":true}`))
	f.same(f.answered(theirs, "2", result(`"theirs"`)))
}

// Inputs of a task whose lifetime is not over stay when others expire.
func testInputsExpire(f *fixture) {
	asking := func(ttl time.Duration) *task.Task {
		t := f.made("p")
		t.TTL = ttl
		return f.asked(f.created(t), "a", `{}`)
	}
	soon, later, never, silent := asking(time.Minute), asking(time.Hour), asking(0), f.created(f.made("p"))
	now := epoch.Add(30 * time.Minute)
	if err := f.Store.Expire(f.Context(), now, []task.Ref{soon.Ref, later.Ref, never.Ref, silent.Ref}, now.Add(time.Hour)); err != nil {
		f.Fatal(err)
	}
	_, err := f.Store.Load(f.Context(), soon.Ref)
	f.wants(err, store.ErrExpired, "load")
	late, err := answerTo(soon, "1", result(`{}`))
	if err != nil {
		f.Fatal(err)
	}
	f.wants(f.Store.Update(f.Context(), late), store.ErrExpired, "an answer")
	f.same(later)
	f.same(never)
	f.same(silent)
}

// Of those who answer one question at once, one wins (promise 2).
func testConcurrentAnswers(f *fixture) {
	const rivals = 16
	for range 4 {
		t := f.asked(f.asked(f.created(f.made("p")), "a", `{}`), "b", `{}`)
		var wg sync.WaitGroup
		var mu sync.Mutex
		var won []*task.Task
		for r := range rivals {
			wg.Go(func() {
				next, err := answerTo(t, "1", result(`{"from":%d}`, r))
				if err == nil {
					err = f.Store.Update(f.Context(), next)
				}
				if err == nil {
					mu.Lock()
					defer mu.Unlock()
					won = append(won, next)
				} else if !errors.Is(err, store.ErrConflict) {
					f.Error(err)
				}
			})
		}
		wg.Wait()
		if len(won) != 1 {
			f.Fatalf("%d of %d rivals won", len(won), rivals)
		}
		f.same(withInputs(t, won[0]))
	}
}

// Those who answer a question each, at once and again after a conflict, answer all; what a
// reader sees meanwhile fits together.
func testAnswersOfAll(f *fixture) {
	const questions = 16
	t := f.created(f.made("p"))
	for range questions {
		t = f.asked(t, "a", `{}`)
	}
	var answering, reading sync.WaitGroup
	answered := make(chan struct{})
	for range 2 {
		reading.Go(func() {
			for {
				got, err := f.Store.Load(f.Context(), t.Ref)
				if err != nil {
					f.Error(err)
					return
				}
				n := len(open(got))
				if int64(n) != t.Revision+questions-got.Revision || len(got.Inputs) != questions || (n > 0) != (got.Status == task.InputRequired) {
					f.Errorf("%s at revision %d with %d of %d questions open", got.Status, got.Revision, n, len(got.Inputs))
					return
				}
				select {
				case <-answered:
					return
				default:
				}
			}
		})
	}
	for _, in := range t.Inputs {
		answering.Go(func() {
			for {
				got, err := f.Store.Load(f.Context(), t.Ref)
				if err != nil {
					f.Error(err)
					return
				}
				next, err := answerTo(got, in.Key, result(`{"to":%q}`, in.Key))
				if err == nil {
					err = f.Store.Update(f.Context(), next)
				}
				if err == nil {
					return
				}
				if !errors.Is(err, store.ErrConflict) {
					f.Error(err)
					return
				}
			}
		})
	}
	answering.Wait()
	close(answered)
	reading.Wait()
	got := f.load(t.Ref)
	if got.Status != task.Working {
		f.Errorf("all are answered, the task is %s", got.Status)
	}
	for _, in := range got.Inputs {
		if in.Answer == nil || string(in.Answer.Result) != fmt.Sprintf(`{"to":%q}`, in.Key) {
			f.Errorf("question %s: %+v", in.Key, in.Answer)
		}
	}
}
