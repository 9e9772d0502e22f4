//go:build !unix

package main

import (
	"context"
	"os/exec"
)

func detached(*exec.Cmd) {}

func shell(ctx context.Context, line string) *exec.Cmd {
	return exec.CommandContext(ctx, "cmd", "/C", line)
}

func killGroup(*exec.Cmd) {}
