package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"unicode"

	"github.com/mattn/go-isatty"
)

// display shows what a task is at: on a terminal in one line that changes, elsewhere in a
// line for each change.
type display struct {
	mu       sync.Mutex
	w        *os.File
	terminal bool
	current  string // the status shown last
	open     bool   // the terminal's cursor stands in the status line
	held     bool   // a question is on the screen
	indent   string
}

func newDisplay(w *os.File) *display { return &display{w: w, terminal: isTerminal(w)} }

func isTerminal(f *os.File) bool { return isatty.IsTerminal(f.Fd()) }

// status shows text as the present status.
func (d *display) status(text string) {
	text = oneLine(text)
	d.mu.Lock()
	defer d.mu.Unlock()
	if text == d.current {
		return
	}
	d.current = text
	if !d.held {
		d.draw()
	}
}

func (d *display) draw() {
	if !d.terminal {
		fmt.Fprintln(d.w, d.indent+d.current)
		return
	}
	// A line that wraps could not be replaced.
	const width = 79
	text := d.indent + d.current
	if runes := []rune(text); len(runes) > width {
		text = string(runes[:width-1]) + "…"
	}
	fmt.Fprintf(d.w, "\r\x1b[K%s", text)
	d.open = true
}

// line writes a line that stays.
func (d *display) line(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.finish()
	fmt.Fprintf(d.w, d.indent+format+"\n", args...)
}

// hold stops showing the status until release, to leave room for a question.
func (d *display) hold() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.finish()
	d.held = true
}

func (d *display) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = false
	if d.current != "" {
		d.draw()
	}
}

// end leaves the status line as it is.
func (d *display) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.finish()
	d.held = true
}

func (d *display) finish() {
	if d.open {
		fmt.Fprintln(d.w)
		d.open = false
	}
}

// oneLine makes a text of a server fit to be shown in a line of a terminal.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
}

// harmless drops from a text what could control a terminal.
func harmless(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || !unicode.IsControl(r) {
			return r
		}
		return -1
	}, s)
}

// quote quotes a word for a POSIX shell.
func quote(word string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=@,+%"
	if word != "" && strings.Trim(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
