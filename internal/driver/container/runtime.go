package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// runtimeTimeout ends a runtime that hangs.
const runtimeTimeout = 60 * time.Second

// runtime runs one command of the OCI runtime. output becomes the first process' standard output and error. The runtime's own
// words go to a file, so that they are not mixed with the member's, and come back as the error.
func (d *Driver) runtime(ctx context.Context, h *host, id string, output *os.File, command string, args ...string) error {
	logPath := filepath.Join(h.spawner.memberDir(id), "runtime.log")
	all := append([]string{"--root", h.spawner.runtimeDir(), "--log", logPath, command}, args...)
	cmd := exec.Command(h.runtime, all...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	if output != nil {
		cmd.Stdout, cmd.Stderr = output, output
	}
	if err := h.spawner.start(ctx, cmd); err != nil {
		return fmt.Errorf("running %s %s: %w", filepath.Base(h.runtime), command, err)
	}
	timeout, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	stop := context.AfterFunc(timeout, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	stop()
	if err == nil {
		return nil
	}
	if timeout.Err() != nil {
		err = errors.Join(err, timeout.Err())
	}
	said, _ := os.ReadFile(h.spawner.outside(logPath))
	if len(bytes.TrimSpace(said)) == 0 && output != nil {
		said, _ = os.ReadFile(output.Name())
	}
	return fmt.Errorf("%s %s: %s (%w)", filepath.Base(h.runtime), command, readable(said), err)
}

// readable turns what a program printed into one line that is safe on a terminal.
func readable(text []byte) string {
	const most = 600
	text = bytes.TrimSpace(text)
	if len(text) > most {
		text = text[len(text)-most:]
	}
	line := strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case strconv.IsPrint(r):
			return r
		default:
			return -1
		}
	}, string(text))
	if line == "" {
		return "without any output"
	}
	return line
}
