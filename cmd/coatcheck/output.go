package main

import (
	"bytes"
	"errors"
	"strings"
	"sync"
)

// bounded is a writer that keeps so much and no more.
type bounded struct {
	taken    []byte
	most     int    // in bytes
	exceeded func() // called when there is more
	over     bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if len(b.taken)+len(p) > b.most {
		b.over = true
		b.exceeded()
		return 0, errors.New("more output than is taken")
	}
	b.taken = append(b.taken, p...)
	return len(p), nil
}

// complaint shows a command's stderr line by line, and keeps the last that is not empty.
type complaint struct {
	show *display

	mu   sync.Mutex
	line []byte // begun
	last string
}

func (c *complaint) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.line = append(c.line, p...)
	for {
		line, rest, whole := bytes.Cut(c.line, []byte("\n"))
		if !whole {
			if len(line) < maxLogged {
				return len(p), nil
			}
			rest = nil
		}
		c.say(line)
		c.line = rest
	}
}

func (c *complaint) say(line []byte) {
	if text := oneLine(strings.ToValidUTF8(string(line), "")); text != "" {
		c.last = brief(text)
		c.show.line("[sampling] %s", text)
	}
}

// end shows what is left and returns the last line.
func (c *complaint) end() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.say(c.line)
	c.line = nil
	return c.last
}
