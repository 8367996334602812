// Package survey reads what an InfiniBand fabric looks like by the programs of infiniband-diags: ibnetdiscover and ibqueryerrors.
//
// It only reads, and any number of surveys may run beside a subnet manager. It must never clear a counter: others read them as well. Start
// with Survey.
package survey

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/fabric/topology"
)

// Reader surveys a fabric.
type Reader struct {
	// Run makes commands that see the fabric; nil: exec.CommandContext, on a machine of the fabric.
	Run func(ctx context.Context, program string, args ...string) *exec.Cmd
	// Adapter and Port are by which the fabric is read, such as mlx5_0 and 1; "" and 0: the first port that is active.
	Adapter string
	Port    int
	// Config is a file of infiniband-diags' settings, such as the M_Key; "": the machine's own.
	Config string
}

// Survey reads the topology and all counters. Ports whose counters don't answer have none.
func (r Reader) Survey(ctx context.Context) (topology.Reading, error) {
	text, err := r.output(ctx, "ibnetdiscover")
	if err != nil {
		return topology.Reading{}, err
	}
	t, err := topology.Parse(text)
	if err != nil {
		return topology.Reading{}, err
	}
	read := topology.Reading{Topology: t, Counters: topology.Counters{}}
	// Ports with errors, then what every port carried. Both programs end with a status of their own where some port does not answer.
	for _, args := range [][]string{{"--data"}, {"--counters"}} {
		text, err := r.output(ctx, "ibqueryerrors", args...)
		if text == "" && err != nil {
			return read, nil //nolint:nilerr // a topology without counters is still one
		}
		counters, err := topology.ParseCounters(text)
		if err != nil {
			return topology.Reading{}, err
		}
		read.Counters.Add(counters)
	}
	return read, nil
}

// output runs a program and returns what it printed, also when it failed.
func (r Reader) output(ctx context.Context, program string, args ...string) (string, error) {
	run := r.Run
	if run == nil {
		run = exec.CommandContext
	}
	if r.Config != "" {
		args = append(args, "--config", r.Config)
	}
	if r.Adapter != "" {
		args = append(args, "-C", r.Adapter)
	}
	if r.Port > 0 {
		args = append(args, "-P", strconv.Itoa(r.Port))
	}
	cmd := run(ctx, program, args...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%s is not installed; install infiniband-diags", program)
	case err != nil:
		lines := strings.Split(strings.TrimSpace(problems.String()), "\n")
		return string(out), fmt.Errorf("%s: %w: %s", program, err, lines[len(lines)-1])
	}
	return string(out), nil
}
