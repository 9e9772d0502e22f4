package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"

	"charm.land/bubbles/v2/key"
	tea "charm.land/bubbletea/v2"
	"charm.land/huh/v2"
	"golang.org/x/term"

	"github.com/coatcheck/coatcheck/internal/form"
)

// errAside says that the person left the form without an answer.
var errAside = errors.New("the form was left")

// canAsk reports whether a person can fill in a form: both ways must be a terminal that can
// move its cursor.
func canAsk(std streams) bool {
	return isTerminal(std.in) && isTerminal(std.err) && os.Getenv("TERM") != "dumb"
}

// prompt is a question as a form on the terminal. What was typed stays when it is shown again.
type prompt struct {
	question *question
	inputs   []input
	send     bool
}

// input is one field with what was typed into it or chosen.
type input struct {
	field  form.Field
	text   string
	yes    bool
	choice int // index of an option, or unchosen
	chosen []int
}

const unchosen = -1

func newPrompt(q *question) *prompt {
	p := &prompt{question: q, send: q.form != nil}
	if q.form == nil {
		return p
	}
	for _, f := range q.form.Fields {
		in := input{field: f, choice: unchosen}
		typed := f.Typed(f.Default)
		for _, value := range typed {
			i := slices.IndexFunc(f.Options, func(o form.Option) bool { return o.Value == value })
			in.choice = i
			in.chosen = append(in.chosen, i)
		}
		if len(typed) > 0 {
			in.text = typed[0]
			in.yes = in.text == "true"
		}
		if f.Kind == form.Boolean && f.Default != nil {
			in.choice = 0 // it has a value
		}
		p.inputs = append(p.inputs, in)
	}
	return p
}

// screen is a form as a program.
type screen struct{ *huh.Form }

// Update implements tea.Model.
func (s screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	_, cmd := s.Form.Update(msg)
	return s, cmd
}

// View implements tea.Model.
func (s screen) View() tea.View { return tea.NewView(s.Form.View()) }

// run shows the form and returns the answer; errAside if the person leaves it, or ctx's
// error when that ends first.
func (p *prompt) run(ctx context.Context, std streams) (answer, error) {
	var fields []huh.Field
	for i := range p.inputs {
		fields = append(fields, p.inputs[i].show())
	}
	title, send := "Send this answer?", "Send"
	if p.question.form == nil {
		title, send = "Do you agree to open "+brief(p.question.host())+" yourself?", "Agree"
	}
	fields = append(fields, huh.NewConfirm().Title(title).Affirmative(send).Negative("Decline").Value(&p.send))

	keys := huh.NewDefaultKeyMap()
	keys.Quit = key.NewBinding(key.WithKeys("ctrl+c", "esc"))
	filled := huh.NewForm(p.pages(fields, std.err)...).WithKeyMap(keys)
	// Both ends are clean ones: huh's own, with an interrupt and a killed program, leave a
	// goroutine behind that takes the next keys.
	filled.SubmitCmd, filled.CancelCmd = tea.Quit, tea.Quit
	program := tea.NewProgram(screen{filled}, tea.WithInput(std.in), tea.WithOutput(std.err), tea.WithoutSignalHandler())
	stop := context.AfterFunc(ctx, program.Quit)
	defer stop()
	_, err := program.Run()
	switch {
	case err != nil:
		return answer{}, err
	case filled.State == huh.StateNormal:
		return answer{}, context.Cause(ctx)
	case filled.State == huh.StateAborted:
		return answer{}, errAside
	case !p.send:
		return declined, nil
	case p.question.form == nil:
		return accepted, nil
	}
	content, err := p.content()
	if err != nil {
		return answer{}, err
	}
	return acceptedWith(content), nil
}

// pages puts fields on pages that fit the terminal: on one that does not, huh scrolls the
// title of the field with the focus away.
func (p *prompt) pages(fields []huh.Field, w *os.File) []*huh.Group {
	const usual, keys, least = 24, 3, 8
	_, rows, err := term.GetSize(int(w.Fd()))
	if err != nil || rows < least {
		rows = usual
	}
	var pages []*huh.Group
	first, used := 0, 0
	for i := range fields {
		lines := 4 // of the last one, with the line between two
		if i < len(p.inputs) {
			lines = p.inputs[i].lines() + 1
		}
		if i > first && used+lines > rows-keys {
			pages = append(pages, huh.NewGroup(fields[first:i]...))
			first, used = i, 0
		}
		used += lines
	}
	return append(pages, huh.NewGroup(fields[first:]...))
}

// content is what was typed.
func (p *prompt) content() (json.RawMessage, error) {
	values := make([]json.RawMessage, len(p.inputs))
	for i := range p.inputs {
		in := &p.inputs[i]
		var err error
		if values[i], err = in.field.Value(in.typed()...); err != nil {
			return nil, err
		}
	}
	return p.question.form.Content(values), nil
}

// typed is what the field's value is made of.
func (in *input) typed() []string {
	switch in.field.Kind {
	case form.Choice:
		if in.choice == unchosen {
			return nil
		}
		return []string{in.field.Options[in.choice].Value}
	case form.Choices:
		var values []string
		for _, i := range in.chosen {
			values = append(values, in.field.Options[i].Value)
		}
		return values
	case form.Boolean:
		switch {
		case in.asksYesNo():
			if in.yes {
				return []string{"true"}
			}
			return []string{"false"}
		case in.choice == unchosen:
			return nil
		}
		return []string{[]string{"true", "false"}[in.choice]}
	}
	return []string{in.text}
}

// asksYesNo reports whether a boolean always has a value; otherwise it may be left out.
func (in *input) asksYesNo() bool { return in.field.Required || in.field.Default != nil }

// mostShown is how many options are on the screen at once.
const mostShown = 12

// show is the field on the screen.
func (in *input) show() huh.Field {
	f := in.field
	title, about := in.words()
	switch {
	case f.Kind == form.Choice:
		return choose(title, about, titles(f.Options), f.Required, &in.choice)
	case f.Kind == form.Boolean && in.asksYesNo():
		return huh.NewConfirm().Title(title).Description(about).Value(&in.yes)
	case f.Kind == form.Boolean:
		return choose(title, about, []string{"Yes", "No"}, false, &in.choice)
	case f.Kind == form.Choices:
		var options []huh.Option[int]
		for i, name := range titles(f.Options) {
			options = append(options, huh.NewOption(name, i))
		}
		return huh.NewMultiSelect[int]().Title(title).Description(about).Filterable(false).Options(options...).Value(&in.chosen).
			Validate(func(chosen []int) error {
				check := input{field: f, chosen: chosen}
				_, err := f.Value(check.typed()...)
				return err
			}).Height(height(about, len(options)))
	}
	return huh.NewInput().Title(title).Description(about).Value(&in.text).Validate(func(text string) error {
		_, err := f.Value(text)
		return err
	})
}

// lines is how many lines the field takes.
func (in *input) lines() int {
	const simple = 3 // the title, more about it, the value
	_, about := in.words()
	switch {
	case in.field.Kind == form.Choice, in.field.Kind == form.Choices:
		return height(about, len(in.field.Options)+1) // one may be to leave it out
	case in.field.Kind == form.Boolean && !in.asksYesNo():
		return height(about, 3)
	}
	return simple
}

// choose is a field to choose one of several from, or none if it need not be.
func choose(title, about string, names []string, required bool, value *int) huh.Field {
	var options []huh.Option[int]
	if !required {
		options = append(options, huh.NewOption("(leave out)", unchosen))
	}
	for i, name := range names {
		options = append(options, huh.NewOption(name, i))
	}
	return huh.NewSelect[int]().Title(title).Description(about).Options(options...).Value(value).
		Height(height(about, len(options)))
}

// height is how many lines a field with options takes, its title included. huh's own guess
// forgets the title of some.
func height(about string, options int) int {
	lines := 1 + min(options, mostShown)
	if about != "" {
		lines++
	}
	return lines
}

func titles(options []form.Option) []string {
	names := make([]string, len(options))
	for i, o := range options {
		if names[i] = brief(o.Title); names[i] == "" {
			names[i] = "(empty)"
		}
	}
	return names
}

// words are the field's title and what else there is to say of it.
func (in *input) words() (title, about string) {
	f := in.field
	if title = brief(f.Label()); title == "" {
		title = "(no name)"
	}
	if f.Required {
		title += " *"
	}
	var parts []string
	if f.Description != "" {
		parts = append(parts, f.Description)
	}
	if f.Kind == form.Text || f.Kind == form.Number || f.Kind == form.Integer {
		parts = append(parts, f.Takes())
	}
	if limits := f.Limits(); limits != "" {
		parts = append(parts, limits)
	}
	return title, brief(strings.Join(parts, "; "))
}
