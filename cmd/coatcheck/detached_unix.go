//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// detached keeps a terminal's Ctrl-C from reaching the command: what it means is for this
// process to decide.
func detached(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
