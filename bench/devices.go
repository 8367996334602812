package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/internal/measure"
)

const (
	sideKubernetes       = "Kubernetes"
	sidePlacement        = "OpenStack Placement"
	sidePlacementTuned   = "OpenStack Placement, tuned"
	devicePeersDirectory = ".build/peers"

	// deviceLoop is the least processor time for which a side repeats a problem that it answers quickly; the value is the mean.
	deviceLoop = 20 * time.Millisecond
	// randomDeviceProblems is how many random problems of each size there are, with one run each.
	randomDeviceProblems = 60
)

// deviceSides are the sides in the order of the first round.
func deviceSides() []string {
	return []string{nearmetal, sideKubernetes, sidePlacementTuned, sidePlacement}
}

// deviceTask is a line to a side.
type deviceTask struct {
	AtLeastSeconds float64       `json:"at_least_seconds"`
	LimitSeconds   float64       `json:"limit_seconds"`
	Problem        deviceProblem `json:"problem"`
}

// buildDevicePeers makes what the other sides run, outside of the bench's namespaces, which have no network: OpenStack Placement in a virtual
// environment of Python, and the program with Kubernetes' allocator.
func buildDevicePeers(ctx context.Context, o options, log *slog.Logger) {
	if !o.chosen[partDevices] {
		return
	}
	dir, err := filepath.Abs(devicePeersDirectory)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		log.Warn("peers of device placement omitted", "error", err)
		return
	}
	venv := filepath.Join(dir, "placement")
	build := exec.CommandContext(ctx, o.goTool, "build", "-o", filepath.Join(dir, "kubernetes"), ".")
	build.Dir = filepath.Join(o.peers, "kubernetes")
	for _, step := range []struct {
		what string
		cmds []*exec.Cmd
	}{
		{sideKubernetes, []*exec.Cmd{build}},
		{sidePlacement, []*exec.Cmd{
			exec.CommandContext(ctx, "python3", "-m", "venv", venv),
			exec.CommandContext(ctx, filepath.Join(venv, "bin/pip"), "install", "--quiet", "--requirement", filepath.Join(o.peers, "placement/requirements.txt")),
		}},
	} {
		for _, cmd := range step.cmds {
			if out, err := cmd.CombinedOutput(); err != nil {
				log.Warn(step.what+" omitted from device placement: it can't be installed", "command", cmd.String(), "error", err, "output", string(out))
				break
			}
		}
	}
}

// deviceSide is a process that answers problems, started anew after it gave up.
type deviceSide struct {
	name    string
	command []string
	env     []string
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

// newDeviceSides returns the sides whose programs are there.
func newDeviceSides(o options, log *slog.Logger) (map[string]*deviceSide, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	serve := filepath.Join(o.peers, "placement/serve.py")
	python := filepath.Join(devicePeersDirectory, "placement/bin/python")
	sides := map[string]*deviceSide{}
	for name, command := range map[string][]string{
		nearmetal:          {self},
		sideKubernetes:     {filepath.Join(devicePeersDirectory, "kubernetes")},
		sidePlacement:      {python, serve, "default"},
		sidePlacementTuned: {python, serve, "tuned"},
	} {
		s := &deviceSide{name: name, command: command}
		if name == nearmetal {
			s.env = []string{devicesVariable + "=1"}
		}
		if err := s.start(); err != nil {
			s.stop()
			log.Warn(name+" omitted from device placement", "error", err)
			continue
		}
		sides[name] = s
	}
	if sides[nearmetal] == nil {
		return nil, errors.New("the bench can't start itself to place devices")
	}
	return sides, nil
}

func (s *deviceSide) start() (err error) {
	s.cmd = exec.Command(s.command[0], s.command[1:]...)
	s.cmd.Env = append(os.Environ(), s.env...)
	s.cmd.Stderr = os.Stderr
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	s.out = bufio.NewReader(out)
	if err := s.cmd.Start(); err != nil {
		s.cmd = nil
		return err
	}
	if line, err := s.out.ReadString('\n'); err != nil || strings.TrimSpace(line) != "ready" {
		return fmt.Errorf("%s did not start: %q: %w", s.name, line, err)
	}
	return nil
}

// stop ends the process.
func (s *deviceSide) stop() {
	if s.cmd == nil {
		return
	}
	_ = s.in.Close()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

// ended returns nil when the process ended because it had used up the processor time or the memory that it may, and else how it ended.
func (s *deviceSide) ended() error {
	const outOfMemory = 3 // serve.py
	_ = s.in.Close()
	err := s.cmd.Wait()
	state := s.cmd.ProcessState
	s.cmd = nil
	if status, ok := state.Sys().(syscall.WaitStatus); ok && (status.Signaled() && status.Signal() == syscall.SIGXCPU || status.ExitStatus() == outOfMemory) {
		return nil
	}
	return fmt.Errorf("%s ended: %s: %w", s.name, state, err)
}

// answer lets the side answer a problem. A process that used up the processor time or the memory that it may gave up; any other end is an error.
func (s *deviceSide) answer(t deviceTask) (deviceAnswer, error) {
	if s.cmd == nil {
		if err := s.start(); err != nil {
			return deviceAnswer{}, err
		}
	}
	line, err := json.Marshal(t)
	if err != nil {
		return deviceAnswer{}, err
	}
	_, err = s.in.Write(append(line, '\n'))
	var told []byte
	if err == nil {
		told, err = s.out.ReadBytes('\n')
	}
	if err != nil {
		if err := s.ended(); err != nil {
			return deviceAnswer{}, err
		}
		return deviceAnswer{Outcome: outcomeGaveUp, Seconds: t.LimitSeconds}, nil
	}
	var a deviceAnswer
	if err := json.Unmarshal(told, &a); err != nil {
		return a, fmt.Errorf("%s answered %q: %w", s.name, told, err)
	}
	if err := t.Problem.check(a); err != nil {
		return a, fmt.Errorf("%s: %w", s.name, err)
	}
	return a, nil
}

// placeDevices measures placement of devices beside the two peers, which answer the same problems in turn.
func placeDevices(o options, log *slog.Logger, text *bytes.Buffer) error {
	sides, err := newDeviceSides(o, log)
	if err != nil {
		return err
	}
	defer func() {
		for _, s := range sides {
			s.stop()
		}
	}()
	var names []string
	for _, name := range deviceSides() {
		if sides[name] != nil {
			names = append(names, name)
		}
	}
	fmt.Fprintf(text, "Placement of devices, on %s at load %s; processor time for one answer, medians of %d rounds; ratios to %s with intervals of 95%% in brackets\n", coresOf(), load(), o.rounds, nearmetal)
	for _, p := range deviceProblems() {
		if err := oneDeviceProblem(o, p, names, sides, text); err != nil {
			return err
		}
	}
	for _, requests := range []int{8, 16} {
		if err := manyDeviceProblems(o, requests, names, sides, text); err != nil {
			return err
		}
	}
	text.WriteString("\n")
	return nil
}

// oneDeviceProblem measures a problem in rounds. A side that gave up once is not asked again.
func oneDeviceProblem(o options, p deviceProblem, names []string, sides map[string]*deviceSide, text *bytes.Buffer) error {
	seconds, last := map[string][]float64{}, map[string]deviceAnswer{}
	for _, order := range measure.Schedule(names, o.rounds) {
		for _, name := range order {
			if last[name].Outcome == outcomeGaveUp {
				continue
			}
			a, err := sides[name].answer(deviceTask{deviceLoop.Seconds(), o.devicePatience.Seconds(), p})
			if err != nil {
				return err
			}
			last[name] = a
			seconds[name] = append(seconds[name], a.Seconds)
		}
	}
	fmt.Fprintf(text, "  %s\n", p.Name)
	for _, name := range names {
		a := last[name]
		if a.Outcome == outcomeGaveUp {
			fmt.Fprintf(text, "    %-28s gave up at %.0f s of processor time or 8 GiB\n", name, a.Seconds)
			continue
		}
		fmt.Fprintf(text, "    %-28s %-8s %10.4f ms (%.4f to %.4f)", name, a.Outcome, 1e3*measure.Median(seconds[name]), 1e3*measure.Quantile(seconds[name], 0), 1e3*measure.Quantile(seconds[name], 1))
		if name != nearmetal {
			ratios := make([]float64, len(seconds[name]))
			for i := range ratios {
				ratios[i] = seconds[name][i] / seconds[nearmetal][i]
			}
			e := measure.MedianInterval(ratios, 0.95)
			fmt.Fprintf(text, "  %.3g times as long", e.Value)
			if e.Bounded() {
				fmt.Fprintf(text, " [%.3g, %.3g]", e.Low, e.High)
			}
		}
		text.WriteString("\n")
	}
	return nil
}

// manyDeviceProblems asks each side each of many random problems once.
func manyDeviceProblems(o options, requests int, names []string, sides map[string]*deviceSide, text *bytes.Buffer) error {
	type tally struct {
		seconds                         []float64
		placed, refused, gaveUp, missed int
	}
	tallies := map[string]*tally{}
	for _, name := range names {
		tallies[name] = &tally{}
	}
	for seed, order := range measure.Schedule(names, randomDeviceProblems) {
		p := randomDeviceProblem(uint64(seed), requests)
		answers, fits := map[string]deviceAnswer{}, false
		for _, name := range order {
			a, err := sides[name].answer(deviceTask{0, min(o.devicePatience, time.Second).Seconds(), p})
			if err != nil {
				return err
			}
			answers[name] = a
			fits = fits || a.Outcome == outcomePlaced
		}
		for name, a := range answers {
			t := tallies[name]
			t.seconds = append(t.seconds, a.Seconds)
			switch {
			case a.Outcome == outcomeGaveUp:
				t.gaveUp++
			case a.Outcome == outcomePlaced:
				t.placed++
			case fits:
				t.missed++
			default:
				t.refused++
			}
		}
	}
	fmt.Fprintf(text, "  %d random problems of %d requests for parts of mixed sizes of 8 devices, each side at most %.0f s for one\n", randomDeviceProblems, requests, min(o.devicePatience, time.Second).Seconds())
	for _, name := range names {
		t := tallies[name]
		fmt.Fprintf(text, "    %-28s %d placed, %d refused, %d gave up, %d refused although there is an answer; median %.3f ms, 90%% %.3f ms, longest %.3f ms\n",
			name, t.placed, t.refused, t.gaveUp, t.missed, 1e3*measure.Median(t.seconds), 1e3*measure.Quantile(t.seconds, 0.9), 1e3*measure.Quantile(t.seconds, 1))
	}
	if tallies[nearmetal].missed > 0 {
		return fmt.Errorf("%d random problems were refused although there is an answer", tallies[nearmetal].missed)
	}
	return nil
}
