package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// attendance is one person's waiting for a task, with what they may decide meanwhile.
type attendance struct {
	ticket ticket
	std    streams
	status *status
	raw    bool
	// mayCancel says that Ctrl-C offers to cancel; otherwise it only leaves.
	mayCancel bool
}

// errLeft says that the watching was stopped, not the task.
var errLeft = errors.New("no longer watched")

// attend shows the task's states until it is terminal, prints its result, and returns the
// error that ends the program.
func (a *attendance) attend(ctx context.Context, state protocol.Task) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	final, err := a.watch(ctx, state, signals)
	switch {
	case errors.Is(err, errLeft):
		return a.leave()
	case err != nil:
		a.ticket.remote.show.end()
		return err
	case task.Status(final.Status) == task.Cancelled:
		a.ticket.remote.show.end()
		return exitf(codeCancelled, "task %s was cancelled", a.ticket.id)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-signals:
			stop()
		case <-ctx.Done():
		}
	}()
	if err = a.ticket.collect(ctx, a.std, a.raw); errors.Is(err, context.Canceled) {
		return a.leave()
	}
	return err
}

// watch polls until the task is terminal. errLeft is the answer to a wish to leave.
func (a *attendance) watch(ctx context.Context, state protocol.Task, signals <-chan os.Signal) (protocol.Task, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	type end struct {
		state protocol.Task
		err   error
	}
	ended := make(chan end, 1)
	go func() {
		final, err := a.ticket.watch(ctx, state, a.status.polled)
		ended <- end{final, err}
	}()
	answers := (<-chan string)(nil)
	for {
		select {
		case e := <-ended:
			if answers != nil {
				fmt.Fprintln(a.std.err) // the question needs no answer any more
			}
			return e.state, e.err
		case sig := <-signals:
			if answers != nil || sig != os.Interrupt || !a.mayCancel || !isTerminal(a.std.in) {
				if answers != nil {
					fmt.Fprintln(a.std.err)
				}
				stop()
				<-ended
				return state, errLeft
			}
			a.ticket.remote.show.hold()
			fmt.Fprintf(a.std.err, "Task %s is running. [c]ancel it, [d]etach and leave it running (as another Ctrl-C does), or Enter to go on: ", a.ticket.id)
			answers = readLine(a.std.in)
		case answer := <-answers:
			answers = nil
			switch {
			case strings.HasPrefix(answer, "c"):
				stop()
				<-ended // one request at a time
				return a.cancel()
			case strings.HasPrefix(answer, "d"):
				stop()
				<-ended
				return state, errLeft
			}
			a.ticket.remote.show.release()
		}
	}
}

// readLine reads one answer. No more input means to leave.
func readLine(from io.Reader) <-chan string {
	line := make(chan string, 1)
	go func() {
		text, err := bufio.NewReader(from).ReadString('\n')
		if text = strings.ToLower(strings.TrimSpace(text)); text == "" && err != nil {
			text = "d"
		}
		line <- text
	}()
	return line
}

// cancel cancels the task. If it has ended meanwhile, that is its end.
func (a *attendance) cancel() (protocol.Task, error) {
	ctx := context.Background()
	_, cancelErr := a.ticket.cancel(ctx)
	if cancelErr == nil {
		return protocol.Task{Status: string(task.Cancelled)}, nil
	}
	if state, _, err := a.ticket.get(ctx); err == nil && task.Status(state.Status).Terminal() {
		return state, nil
	}
	return protocol.Task{}, cancelErr
}

// leave says how to come back to the task.
func (a *attendance) leave() error {
	a.ticket.remote.show.end()
	a.ticket.sayHowToCollect(a.std)
	return &exitError{code: codeOther}
}

func (t ticket) sayHowToCollect(std streams) {
	fmt.Fprintf(std.err, "The task goes on. Collect its result with: coatcheck tasks result %s %s\n", t.remote.target, quote(t.id))
	if t.remote.target.stdio != "" {
		fmt.Fprintln(std.err, "The server ends with this command; whether the task outlives it is up to the server.")
	}
}
