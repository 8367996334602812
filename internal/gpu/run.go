package gpu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Runner runs a program with variables beside its own environment, and returns its standard output. It returns an error that is exec.ErrNotFound
// where there is no such program.
type Runner func(ctx context.Context, env []string, program string, args ...string) ([]byte, error)

const (
	// answerPatience is for one answer of nvidia-smi, which loads the driver's state of each GPU where nothing else has it open.
	answerPatience = 20 * time.Second
	// mostOutput bounds what is read of an answer: that of a machine with 16 GPUs has about 300 KiB.
	mostOutput = 8 << 20
)

// runProgram runs a program of this machine. It returns at the end of its patience even where the kernel keeps the process: one that waits for a GPU
// that hangs can't be ended.
func runProgram(ctx context.Context, env []string, program string, args ...string) ([]byte, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(cmd.Environ(), env...)
	cmd.WaitDelay = time.Second
	var out, said bounded
	cmd.Stdout, cmd.Stderr = &out, &said
	done := make(chan error, 1)
	go func() { done <- cmd.Run() }()
	select {
	case err = <-done:
	case <-afterEnd(ctx, 2*time.Second):
		return nil, fmt.Errorf("%s did not answer within %v, and can't be ended", program, answerPatience)
	}
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s did not answer within %v", program, answerPatience)
	case out.full:
		return nil, fmt.Errorf("%s answered with more than %d MiB", program, mostOutput>>20)
	case err != nil:
		return nil, &failure{program: program, err: err, said: firstLine(said.String() + "\n" + out.String())}
	}
	return out.Bytes(), nil
}

// failure is a program's that ended with an error.
type failure struct {
	program, said string
	err           error
}

func (f *failure) Error() string {
	if f.said == "" {
		return fmt.Sprintf("%s: %v", f.program, f.err)
	}
	return fmt.Sprintf("%s: %s (%v)", f.program, f.said, f.err)
}

func (f *failure) Unwrap() error { return f.err }

// afterEnd is closed some time after the end of ctx.
func afterEnd(ctx context.Context, delay time.Duration) <-chan struct{} {
	late := make(chan struct{})
	context.AfterFunc(ctx, func() { time.AfterFunc(delay, func() { close(late) }) })
	return late
}

// bounded keeps the first bytes of what is written to it.
type bounded struct {
	bytes.Buffer
	full bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > mostOutput {
		b.full = true
		return len(p), nil
	}
	return b.Buffer.Write(p)
}

// firstLine is the first line with words of what a program said, safe on a terminal.
func firstLine(text string) string {
	for line := range strings.Lines(text) {
		line = strings.Map(func(r rune) rune {
			if strconv.IsPrint(r) {
				return r
			}
			return -1
		}, strings.TrimSpace(line))
		if line != "" {
			return line[:min(len(line), 300)]
		}
	}
	return ""
}

func notFound(err error) bool { return errors.Is(err, exec.ErrNotFound) }
