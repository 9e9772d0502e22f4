package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/client"
	"github.com/coatcheck/coatcheck/protocol"
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

// during does something, and answers questions until it is done. Its error may be what
// somebody decided meanwhile, which ends the context.
func (a *attendance) during(do func(context.Context) error) (err error) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = do(ctx)
	}()
	if decided := a.await(done); decided != nil {
		stop()
		<-done
		return decided
	}
	return err
}

// attend shows the task's states until it is terminal, prints its result, and returns the
// error that ends the program.
func (a *attendance) attend(ctx context.Context, t *client.Task) error {
	var e ending
	err := a.during(func(ctx context.Context) error {
		e = a.remote.follow(ctx, t, a.status.polled)
		return nil
	})
	open, isOpen := errors.AsType[*unanswered](err)
	switch {
	case errors.Is(err, errLeft):
		return a.leave()
	case errors.Is(err, errToCancel):
		return a.cancel(ctx, t)
	case isOpen:
		a.remote.show.end()
		a.ticket.sayHowToAnswer(a.std)
		return exitf(codeOther, "%w", open.why)
	}
	return a.finish(e)
}

// finish prints what a task came to.
func (a *attendance) finish(e ending) error {
	a.remote.show.end()
	answer, answered := errors.AsType[*jsonrpc.Error](e.err)
	switch {
	case e.err == nil:
		return printResult(a.std, e.result, a.raw)
	case errors.Is(e.err, client.ErrCancelled):
		return exitf(codeCancelled, "task %s was cancelled", a.ticket.id)
	case errors.Is(e.err, client.ErrNotFound), errors.Is(e.err, client.ErrExpired), !answered, e.status != client.Failed:
		return a.ticket.failure(e.err)
	}
	return printError(a.std, codeFailed, answer, a.raw)
}

// cancel cancels the task. If it has ended meanwhile, that is its end.
func (a *attendance) cancel(ctx context.Context, t *client.Task) error {
	defer a.remote.show.end()
	_, err := a.ticket.cancel(ctx)
	switch {
	case err == nil:
		return exitf(codeCancelled, "task %s was cancelled", a.ticket.id)
	case errors.As(err, new(*terminalError)):
		return a.finish(a.remote.follow(ctx, t, func(protocol.Task) {}))
	}
	return err
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
