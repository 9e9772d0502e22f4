//go:build unix

package main

import (
	"context"
	"os/exec"
	"syscall"
)

// detached keeps a terminal's Ctrl-C from reaching the command: what it means is for this
// process to decide.
func detached(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// shell is a command line of the shell. When ctx ends it is killed, with all that it started.
func shell(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	detached(cmd)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}
