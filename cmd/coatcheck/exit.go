package main

import "fmt"

// The exit codes, as exitCodes tells them.
const (
	codeDone      = 0
	codeOther     = 1
	codeFailed    = 2
	codeCancelled = 3
	codeNoTask    = 4
)

const exitCodes = `
Exit codes:
  0  completed, or left running with --detach
  1  anything else: a wrong command line, an unreachable server, a call that was refused,
     a Ctrl-C that left the task running, a question that was left open
  2  the tool failed: its result says isError, or is a JSON-RPC error
  3  cancelled
  4  no such task, or it has expired`

// exitError ends the program with a code. Without err, all has been said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func exitf(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}
