//go:build !unix

package main

import (
	"context"
	"os/exec"
)

func detached(*exec.Cmd) {}

// shell is a command line of the shell. When ctx ends it is killed.
func shell(ctx context.Context, line string) *exec.Cmd {
	return exec.CommandContext(ctx, "cmd", "/C", line)
}
