package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// imagesVariable names, to the process in the bench's namespaces, the state directory whose images were built outside of them, where there is
// a way to the packages.
const imagesVariable = "NEARMETAL_BENCH_IMAGES"

// The parts of the group machines.
const (
	partBuilds    = "builds"
	partBoots     = "boots"
	partRush      = "rush"
	partEnrolment = "enrolment"
	partCycle     = "cycle"
	partWhole     = "whole"
)

// buildOutside makes the images that machines boot, and measures that if asked to; then it tells the process inside where they are.
func buildOutside(ctx context.Context, o options) (cleanup func(), err error) {
	parts, virtual := o.chosen.of(groupMachines), o.chosen.of(groupVM)
	if len(parts) == 0 && (len(virtual) == 0 || withoutMachines() != "") {
		return func() {}, nil
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	work, err := os.MkdirTemp("", "nearmetal-bench-images-")
	if err != nil {
		return nil, err
	}
	cleanup = func() { _ = os.RemoveAll(work) }
	state := filepath.Join(work, "state")
	err = errors.Join(os.Chmod(work, 0o711), os.Mkdir(state, 0o711))
	if o.images != "" && err == nil {
		var out []byte
		if out, err = exec.CommandContext(ctx, "cp", "-a", o.images+"/.", state).CombinedOutput(); err != nil {
			err = fmt.Errorf("take the images of %s: %w: %s", o.images, err, out)
		}
	}
	text := &bytes.Buffer{}
	begin(o, log, stepImages)
	begin(o, log, partBuilds)
	if err == nil {
		err = builds(ctx, o, state, slices.Contains(parts, partBuilds), log, text)
	}
	if err == nil {
		err = os.WriteFile(state+".txt", text.Bytes(), 0o600)
	}
	if err != nil {
		cleanup()
		return nil, err
	}
	return cleanup, os.Setenv(imagesVariable, state)
}

// machines measures what the process inside measures of machines.
func machines(ctx context.Context, o options, work string, log *slog.Logger, text *bytes.Buffer) error {
	parts := o.chosen.of(groupMachines)
	if len(parts) == 0 {
		return nil
	}
	images := os.Getenv(imagesVariable)
	told, err := os.ReadFile(images + ".txt")
	if err != nil {
		return err
	}
	text.Write(told)
	for _, part := range parts {
		dir := filepath.Join(work, part)
		if part == partBuilds {
			continue
		}
		begin(o, log, part)
		if out, err := exec.CommandContext(ctx, "cp", "-a", images, dir).CombinedOutput(); err != nil {
			return fmt.Errorf("cp: %w: %s", err, out)
		}
		run := map[string]func(context.Context, options, string, *slog.Logger, *bytes.Buffer) error{
			partBoots: boots, partRush: rush, partEnrolment: enrolment, partCycle: cycles, partWhole: wholes,
		}[part]
		if err := run(ctx, o, dir, log, text); err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

// load is how busy the machine was with all there is on it, in the last minute.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// startDev starts `nearmetal dev` with one node on a state directory that has images.
func startDev(ctx context.Context, o options, dir string, args ...string) (*site, error) {
	listen, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	program, err := filepath.Abs(o.nearmetal)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(dir+".log", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	s := &site{log: log}
	s.process = exec.Command(program, append([]string{"dev", "--state", dir, "--listen", listen}, args...)...)
	s.process.Stdout, s.process.Stderr = log, log
	if err := s.process.Start(); err != nil {
		return nil, fmt.Errorf("nearmetal dev can't be started (build it first: make build): %w", err)
	}
	if s.client, err = client.New(client.Options{Addr: "unix:" + filepath.Join(dir, "server.sock")}); err == nil {
		err = s.nodesReady(ctx, 1)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nearmetal dev: %w; its log: %s", err, endOf(log.Name())), s.stop())
	}
	return s, nil
}

// endOf is the end of a log.
func endOf(path string) string {
	text, _ := os.ReadFile(path)
	return string(text[max(0, len(text)-3000):])
}

// command is the command line of a site.
func (o options) command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, o.nearmetal, args...)
	cmd.Env = append(os.Environ(), "NEARMETAL_STATE="+dir)
	return cmd
}

// ask runs the command line of a site and returns what it printed.
func (o options) ask(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := o.command(ctx, dir, args...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("nearmetal %s: %w: %s", strings.Join(args, " "), err, problems.String())
	}
	return out, nil
}

// record is what a site knows of a machine; the zero record while that is nothing.
func (o options) record(ctx context.Context, dir, name string) (api.MachinePart, error) {
	out, err := o.ask(ctx, dir, "node", "show", name, "-o", "json")
	if err != nil {
		return api.MachinePart{}, err
	}
	var n api.Node
	if err := json.Unmarshal(out, &n); err != nil || n.Machine == nil {
		return api.MachinePart{}, err
	}
	return *n.Machine, nil
}

// untilRecord waits until a machine's record is as it should be.
func (o options) untilRecord(ctx context.Context, dir, name string, is func(api.MachineRecord) bool) (api.MachinePart, error) {
	for {
		m, err := o.record(ctx, dir, name)
		switch {
		case err != nil || is(m.Record):
			return m, err
		case m.Record.Phase == api.MachineFailed:
			return m, fmt.Errorf("machine %s failed: %s", name, m.Record.Message)
		}
		if err := wait(ctx, 100*time.Millisecond); err != nil {
			return m, fmt.Errorf("machine %s is %s: %w", name, m.Record.Phase, err)
		}
	}
}
