package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// What a person, or the lack of one, makes of waiting.
var (
	errLeft     = errors.New("no longer watched")
	errToCancel = errors.New("to be cancelled")
)

// unanswered says that a question is left open, and why.
type unanswered struct{ why error }

func (e *unanswered) Error() string { return e.why.Error() }

// dialogue is what goes on between a person and the command while that waits: at most one
// form or one choice at a time.
type dialogue struct {
	*attendance
	prompt *prompt // the question being asked, on the screen or behind a choice

	filled chan outcome       // the form's end, nil while none is shown
	close  context.CancelFunc // ends the form
	line   <-chan string      // the choice's answer, nil while none is to be made
}

// outcome is a form's end.
type outcome struct {
	answer answer
	err    error
}

// await asks the server's questions and hears Ctrl-C until done is closed. Its errors are
// errLeft, errToCancel, or an *unanswered.
func (a *attendance) await(done <-chan struct{}) error {
	d := &dialogue{attendance: a}
	defer d.end()
	for {
		var wake <-chan struct{}
		if d.filled == nil && d.line == nil {
			if q := a.asker.next(); q != nil {
				if err := d.ask(q); err != nil {
					return err
				}
				continue
			}
			wake = a.asker.wake
		}
		var gone <-chan struct{}
		if d.prompt != nil {
			gone = d.prompt.question.gone
		}
		var err error
		select {
		case <-done:
			if d.filled != nil {
				d.withdrawn()
			}
			return nil
		case <-wake:
		case <-gone:
			d.withdrawn()
		case form := <-d.filled:
			err = d.formEnded(form)
		case line := <-d.line:
			err = d.chosen(line)
		case sig := <-a.signals:
			err = d.interrupted(sig)
		}
		if err != nil {
			return err
		}
	}
}

// end leaves the screen to others.
func (d *dialogue) end() {
	if d.filled != nil {
		d.close()
		<-d.filled
	}
	if d.line != nil {
		fmt.Fprintln(d.std.err) // it needs no answer any more
	}
	d.show().release()
}

func (d *dialogue) show() *display { return d.asker.show }

// ask begins with a question: a script answers it at once.
func (d *dialogue) ask(q *question) error {
	say := d.show().line
	if d.script == nil && canAsk(d.std) {
		d.show().hold()
		say = d.show().say
	}
	q.show(say, d.server())
	if d.script == nil && canAsk(d.std) {
		d.prompt = newPrompt(q)
		d.open()
		return nil
	}
	q.showFields(say)
	if d.script != nil {
		answer, err := d.script.answer(q)
		if err != nil {
			return &unanswered{err}
		}
		d.asker.answer(q, answer)
		say("Answered: %s", brief(string(answer.result)))
		return nil
	}
	const missing = "there is no terminal to ask on; --answer FILE or --decline answers it"
	if d.ticket.id != "" {
		return &unanswered{errors.New("the question is not answered: " + missing)}
	}
	say("Dismissed: %s.", missing)
	d.asker.answer(q, dismiss)
	return nil
}

// server says who asks: what we know of it, and what it says of itself.
func (d *dialogue) server() string {
	text := d.remote.target.String()
	if name := d.remote.name(); name != "" {
		text += " (" + brief(name) + ")"
	}
	return text
}

// open shows the form.
func (d *dialogue) open() {
	var ctx context.Context
	ctx, d.close = context.WithCancel(context.Background())
	filled, prompt := make(chan outcome, 1), d.prompt
	d.filled = filled
	go func() {
		answer, err := prompt.run(ctx, d.std)
		filled <- outcome{answer, err}
	}()
}

func (d *dialogue) formEnded(form outcome) error {
	d.close()
	d.filled = nil
	switch {
	case errors.Is(form.err, errAside):
		d.choose("[r]efuse to answer (decline), ")
	case form.err != nil:
		return &unanswered{fmt.Errorf("the form cannot be shown: %w", form.err)}
	default:
		d.settle(form.answer)
	}
	return nil
}

// settle answers the question.
func (d *dialogue) settle(with answer) {
	d.asker.answer(d.prompt.question, with)
	d.show().say("Answered: %s", brief(string(with.result)))
	d.prompt = nil
	d.show().release()
}

// withdrawn ends a question that nobody waits for any more.
func (d *dialogue) withdrawn() {
	if d.filled != nil {
		d.close()
		<-d.filled
		d.filled = nil
	}
	d.prompt = nil
	if d.line != nil {
		fmt.Fprintln(d.std.err)
		d.show().say("The question was withdrawn.")
		d.sayChoice("")
		return
	}
	d.show().say("The question was withdrawn.")
	d.show().release()
}

// interrupted is a signal. On a terminal Ctrl-C offers a choice where there is one.
func (d *dialogue) interrupted(sig os.Signal) error {
	switch {
	case d.ticket.id == "":
		return errToCancel
	case d.filled != nil, d.line != nil, sig != os.Interrupt, !d.mayCancel, !isTerminal(d.std.in):
		return errLeft
	}
	d.show().hold()
	d.choose("")
	return nil
}

// choose lets the person choose what is to happen; more is what else they can.
func (d *dialogue) choose(more string) {
	d.sayChoice(more)
	d.line = readLine(d.std.in)
}

func (d *dialogue) sayChoice(more string) {
	if d.ticket.id == "" {
		fmt.Fprintf(d.std.err, "The call waits for an answer. %s[c]ancel the call, or Enter to go on: ", more)
		return
	}
	fmt.Fprintf(d.std.err, "Task %s is running. %s[c]ancel it, [d]etach and leave it running (as another Ctrl-C does), or Enter to go on: ",
		oneLine(d.ticket.id), more)
}

// chosen is the answer to choose.
func (d *dialogue) chosen(line string) error {
	d.line = nil
	switch {
	case strings.HasPrefix(line, "c"), strings.HasPrefix(line, "d") && d.ticket.id == "":
		return errToCancel
	case strings.HasPrefix(line, "d"):
		return errLeft
	case d.prompt == nil:
		d.show().release()
	case strings.HasPrefix(line, "r"):
		d.settle(declined)
	default:
		d.open()
	}
	return nil
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
