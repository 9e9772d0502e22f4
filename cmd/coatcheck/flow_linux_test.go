package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestFlow2: a server that somebody else wrote asks in the middle of its own task, through the
// gateway, and a person at a terminal answers (FLOW-2).
func TestFlow2(t *testing.T) {
	script, err := filepath.Abs("../../peers/node_modules/@modelcontextprotocol/server-everything/dist/index.js")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(script); err != nil {
		t.Fatal("server-everything is not installed; run: make peers")
	}
	server := "coatcheck gateway --stdio --poll-interval 50ms --store sqlite:" + quote(filepath.Join(t.TempDir(), "tasks.db")) +
		" -- node " + quote(script) + " stdio"
	term := onTerminal(t, "call", "--stdio", server, "simulate-research-query", "topic=coats", "ambiguous:=true")
	term.see(t, `"coats" could have multiple interpretations`)
	term.see(t, "Send this answer?")
	term.press(t, down+enter) // the second of the interpretations
	term.answers(t, lastKeys)
	term.press(t, enter)
	term.answers(t, "After receiving clarification (")
	term.ends(t, codeDone)
}
