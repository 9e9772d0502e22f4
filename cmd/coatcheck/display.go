package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"unicode"

	"github.com/charmbracelet/x/ansi"
	"github.com/mattn/go-isatty"
	"golang.org/x/term"
)

// display shows what a task is at: on a terminal in one line that changes, below the lines
// that stay; elsewhere in a line for each change.
type display struct {
	mu       sync.Mutex
	w        *os.File
	terminal bool
	current  string // the status shown last
	open     bool   // the terminal's cursor stands in the status line
	held     bool   // a question is on the screen
	ended    bool   // there is no status any more
	waiting  []string
	indent   string
}

// maxWaiting is how many lines are kept for after a question. Older ones are dropped.
const maxWaiting = 1000

func newDisplay(w *os.File) *display {
	return &display{w: w, terminal: isTerminal(w) && os.Getenv("TERM") != "dumb"}
}

func isTerminal(f *os.File) bool { return isatty.IsTerminal(f.Fd()) }

// status shows the present status if it has changed: on a terminal as lively, elsewhere as plain.
func (d *display) status(plain, lively string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := oneLine(plain)
	if d.terminal {
		text = oneLine(lively)
	}
	if text == d.current {
		return
	}
	d.current = text
	if !d.held && !d.ended {
		d.draw()
	}
}

func (d *display) draw() {
	if !d.terminal {
		fmt.Fprintln(d.w, d.indent+d.current)
		return
	}
	// A line that wraps could not be replaced.
	fmt.Fprintf(d.w, "\r\x1b[K%s", ansi.Truncate(d.indent+d.current, d.width(), "…"))
	d.open = true
}

// width is how many cells of a line are used.
func (d *display) width() int {
	const usual, least = 80, 20
	width, _, err := term.GetSize(int(d.w.Fd()))
	if err != nil || width < least {
		width = usual
	}
	return width - 1
}

// line writes a line that stays, above the status. While a question is on the screen it waits.
func (d *display) line(format string, args ...any) {
	text := d.indent + fmt.Sprintf(format, args...)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held {
		d.waiting = append(d.waiting[max(0, len(d.waiting)+1-maxWaiting):], text)
		return
	}
	d.write(text)
}

// write writes a line in the place of the status, and the status below it.
func (d *display) write(text string) {
	if !d.open {
		fmt.Fprintln(d.w, text)
		return
	}
	fmt.Fprintf(d.w, "\r\x1b[K%s\n", text)
	d.draw()
}

// say writes a line of a question, while the display is held.
func (d *display) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.w, d.indent+format+"\n", args...)
}

// hold stops showing anything until release, to leave room for a question.
func (d *display) hold() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.finish()
	d.held = true
}

func (d *display) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.held {
		return
	}
	d.flush()
	if d.current != "" && !d.ended {
		d.draw()
	}
}

func (d *display) flush() {
	d.held = false
	for _, text := range d.waiting {
		fmt.Fprintln(d.w, text)
	}
	d.waiting = nil
}

// end leaves the status line as it is.
func (d *display) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.finish()
	d.flush()
	d.ended = true
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

// lines makes a text of a server fit to be shown in lines of a terminal, each as oneLine.
func lines(s string) []string {
	const mostBytes, mostLines = 8 << 10, 40
	if len(s) > mostBytes {
		s = strings.ToValidUTF8(s[:mostBytes], "") + "…"
	}
	all := strings.Split(strings.TrimSpace(s), "\n")
	if len(all) > mostLines {
		all = append(all[:mostLines], "…")
	}
	for i, line := range all {
		all[i] = oneLine(line)
	}
	return all
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
