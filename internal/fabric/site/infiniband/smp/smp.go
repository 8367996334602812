// Package smp reads attributes of subnet management from the ports of an InfiniBand fabric, many in one process (reader/reader.c), and decodes
// them.
//
// It sends nothing but Get, so it can't change a fabric. Building it needs `make smp`. Running it needs the library libibumad and an adapter, or
// a simulated fabric of internal/ibsim. Start with Reader.
package smp

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// The attributes (InfiniBand Architecture Specification 1.2.1, table 126).
const (
	AttributeNodeInfo   = 0x11
	AttributeSwitchInfo = 0x12
	AttributePortInfo   = 0x15
	AttributePKeyTable  = 0x16
	AttributeSMInfo     = 0x20
)

// OwnPort is the LID of a request to the port that the reader is attached to.
const OwnPort = 0

// Request asks the port with a LID for an attribute.
type Request struct {
	LID       int
	Attribute int
	Modifier  uint32
}

// Answer is the data of an attribute, 64 bytes, or why there is none.
type Answer struct {
	Data []byte
	Err  error
}

// Runner makes a command that sees the fabric: exec.CommandContext, or Fabric.Command of internal/ibsim.
type Runner func(ctx context.Context, program string, args ...string) *exec.Cmd

// Reader reads attributes. Its methods may be called at once by several goroutines.
type Reader struct {
	// Program is the path that Install returned.
	Program string
	Run     Runner
	// Adapter and Port are the adapter, such as mlx5_0, and its port, from 1, that the fabric is reached by; "": the first that is active.
	Adapter string
	Port    int
	// Key is the M_Key that ports ask for; 0: none.
	Key uint64
}

// keyVariable is how the program gets the M_Key: arguments can be seen by everybody on the machine.
const keyVariable = "NEARMETAL_M_KEY"

// window is how many requests are under way at once: what ibnetdiscover has by default is 2, and a switch answers in microseconds.
const window = 16

//go:embed embedded
var embedded embed.FS

// ErrMissing means that this build has no reader.
var ErrMissing = errors.New("this build of nearmetal embeds no reader of InfiniBand tables; build it with `make build`")

// Install writes the program to a folder, mode 0755, and returns its path.
func Install(dir string) (string, error) {
	data, err := embedded.ReadFile("embedded/nearmetal-smp")
	if err != nil {
		return "", ErrMissing
	}
	path := filepath.Join(dir, "nearmetal-smp")
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
		return path, nil
	}
	file, err := os.CreateTemp(dir, ".nearmetal-smp")
	if err != nil {
		return "", err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Chmod(0o755), file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return path, nil
}

// Read returns an answer for each request. An error means that nothing could be read.
func (r Reader) Read(ctx context.Context, requests []Request) ([]Answer, error) {
	if len(requests) == 0 {
		return nil, ctx.Err()
	}
	args := []string{strconv.Itoa(window)}
	if r.Adapter != "" {
		args = append(args, r.Adapter, strconv.Itoa(max(r.Port, 1)))
	}
	var in, out, problem bytes.Buffer
	for _, q := range requests {
		fmt.Fprintf(&in, "%d 0x%x 0x%x\n", q.LID, q.Attribute, q.Modifier)
	}
	cmd := r.Run(ctx, r.Program, args...)
	if r.Key != 0 {
		if cmd.Env == nil {
			cmd.Env = os.Environ()
		}
		cmd.Env = append(cmd.Env, fmt.Sprintf("%s=0x%x", keyVariable, r.Key))
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, &out, &problem
	if err := cmd.Run(); err != nil {
		return nil, errors.Join(ctx.Err(), fmt.Errorf("the fabric can't be read: %w: %s", err, lastLine(problem.String())))
	}
	return parse(&out, len(requests))
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// parse reads what the program writes: INDEX ok HEX, or INDEX error REASON. A request without an answer is an error of its own.
func parse(out io.Reader, count int) ([]Answer, error) {
	answers := make([]Answer, count)
	for i := range answers {
		answers[i].Err = errors.New("no answer")
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		number, rest, _ := strings.Cut(lines.Text(), " ")
		index, err := strconv.Atoi(number)
		if err != nil || index < 0 || index >= count {
			return nil, fmt.Errorf("the reader of the fabric wrote %q", lines.Text())
		}
		kind, rest, _ := strings.Cut(rest, " ")
		data, err := hex.DecodeString(rest)
		switch {
		case kind == "ok" && err == nil && len(data) == attributeBytes:
			answers[index] = Answer{Data: data}
		case kind == "error":
			answers[index] = Answer{Err: errors.New(rest)}
		default:
			return nil, fmt.Errorf("the reader of the fabric wrote %q", lines.Text())
		}
	}
	return answers, lines.Err()
}
