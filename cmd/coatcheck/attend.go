package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// attendance is somebody's presence while a call or a task runs: they answer questions, and
// may decide to cancel or to leave.
type attendance struct {
	remote *remote
	ticket ticket // its id is "" while the call is not a task
	std    streams
	status *status
	asker  *asker
	script *script // nil if a person answers
	raw    bool
	// mayCancel says that Ctrl-C offers to cancel; otherwise it only leaves.
	mayCancel bool
	signals   chan os.Signal
}

// present begins to hear signals; absent must be called.
func (a *attendance) present() (absent func()) {
	a.signals = make(chan os.Signal, 2)
	signal.Notify(a.signals, os.Interrupt, syscall.SIGTERM)
	return func() { signal.Stop(a.signals) }
}

// call sends a request once, and answers questions until it is answered.
func (a *attendance) call(method string, params json.RawMessage) (result json.RawMessage, err error) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		result, err = a.remote.call(ctx, method, params)
	}()
	if decided := a.await(done); decided != nil {
		stop()
		<-done
		return nil, decided
	}
	return result, err
}

// attend shows the task's states until it is terminal, prints its result, and returns the
// error that ends the program.
func (a *attendance) attend(ctx context.Context, state protocol.Task) error {
	f := a.ticket.follow(ctx, state, a.status.polled, a.asker.opened)
	err := a.await(f.done)
	f.end()
	open, isOpen := errors.AsType[*unanswered](err)
	switch {
	case errors.Is(err, errLeft):
		return a.leave()
	case errors.Is(err, errToCancel):
		return a.cancel(ctx)
	case isOpen:
		a.remote.show.end()
		a.ticket.sayHowToAnswer(a.std)
		return exitf(codeOther, "%w", open.why)
	}
	a.remote.show.end()
	return a.finish(f.state, f.result, f.err)
}

// finish prints what a task came to.
func (a *attendance) finish(state protocol.Task, result json.RawMessage, err error) error {
	var answer *protocol.Error
	switch {
	case task.Status(state.Status) == task.Cancelled:
		return exitf(codeCancelled, "task %s was cancelled", a.ticket.id)
	case err == nil:
		return printResult(a.std, result, a.raw)
	case !errors.As(err, &answer):
		return err
	case task.Status(state.Status) == task.Failed:
		return printError(a.std, codeFailed, answer, a.raw)
	}
	return a.ticket.failure(err)
}

// cancel cancels the task. If it has ended meanwhile, that is its end.
func (a *attendance) cancel(ctx context.Context) error {
	defer a.remote.show.end()
	_, cancelErr := a.ticket.cancel(ctx)
	if cancelErr == nil {
		return exitf(codeCancelled, "task %s was cancelled", a.ticket.id)
	}
	state, _, err := a.ticket.get(ctx)
	if err != nil || !task.Status(state.Status).Terminal() {
		return cancelErr
	}
	result, err := a.remote.ask(ctx, 0, protocol.MethodTasksResult, a.ticket.params())
	a.remote.show.end()
	return a.finish(state, result, err)
}

// leave says how to come back to the task.
func (a *attendance) leave() error {
	a.remote.show.end()
	a.ticket.sayHowToCollect(a.std)
	return &exitError{code: codeOther}
}

func (t ticket) sayHowToCollect(std streams) {
	fmt.Fprintf(std.err, "The task goes on. Collect its result with: coatcheck tasks result %s %s\n", t.remote.target, quote(t.id))
	t.sayWhatEnds(std)
}

func (t ticket) sayHowToAnswer(std streams) {
	fmt.Fprintf(std.err, "The task goes on. Answer with: coatcheck tasks watch %s %s --answer FILE\n", t.remote.target, quote(t.id))
	fmt.Fprintln(std.err, "On a terminal it asks without --answer.")
	t.sayWhatEnds(std)
}

func (t ticket) sayWhatEnds(std streams) {
	if t.remote.target.stdio != "" {
		fmt.Fprintln(std.err, "The server ends with this command; whether the task outlives it is up to the server.")
	}
}
