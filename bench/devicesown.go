package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/resource/device"
)

// devicesVariable makes the bench a side of device placement (devices.go).
const devicesVariable = "NEARMETAL_BENCH_DEVICES"

// runDevices answers problems by the site's own placement: a problem a line from standard input, an answer a line to standard output. All that
// the controller does for a node is timed, which includes the tree of its devices.
func runDevices() error {
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var t deviceTask
		if err := json.Unmarshal(in.Bytes(), &t); err != nil {
			return err
		}
		machine, requests := t.Problem.own()
		var parts [][]device.Part
		var refusal *device.Refusal
		times := 0
		start := ownProcessorTime()
		for times == 0 || (ownProcessorTime()-start).Seconds() < t.AtLeastSeconds {
			tree, err := device.NewTree(machine)
			if err != nil {
				return fmt.Errorf("%s: %w", t.Problem.Name, err)
			}
			parts, refusal = tree.Place(requests)
			times++
		}
		a := deviceAnswer{Outcome: outcomePlaced, Seconds: (ownProcessorTime() - start).Seconds() / float64(times), Answers: 1}
		switch {
		case refusal != nil && refusal.Undecided:
			a.Outcome = outcomeGaveUp
		case refusal != nil:
			a.Outcome = outcomeRefused
		}
		for _, of := range parts {
			a.Chosen = append(a.Chosen, of[0].Device)
		}
		line, err := json.Marshal(a)
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return in.Err()
}

// own is the problem in the site's words.
func (p deviceProblem) own() (*device.Device, []device.Request) {
	machine := &device.Device{ID: "machine", Kind: &device.Kind{Name: "machine"}}
	for _, d := range p.Devices {
		kind := &device.Kind{Name: "device", Has: d.Has, Ways: map[string]device.Way{}}
		for _, other := range machine.Children {
			if same := other.Kind; len(same.Ways) == len(d.Ways) && equalCounters(same.Has, d.Has) && !slices.ContainsFunc(d.Ways, func(way string) bool { _, ok := same.Ways[way]; return !ok }) {
				kind = same
			}
		}
		for _, way := range d.Ways {
			kind.Ways[way] = device.Way{Takes: p.Ways[way]}
		}
		machine.Children = append(machine.Children, &device.Device{ID: d.ID, Kind: kind})
	}
	requests := make([]device.Request, len(p.Requests))
	for i, r := range p.Requests {
		requests[i] = device.Request{Way: r.Way, Count: 1}
		if len(r.Not) > 0 {
			requests[i].Suits = func(d *device.Device) bool { return !slices.Contains(r.Not, d.ID) }
		}
	}
	return machine, requests
}

func equalCounters(a device.Counters, b map[string]int64) bool {
	if len(a) != len(b) {
		return false
	}
	for name, n := range a {
		if b[name] != n {
			return false
		}
	}
	return true
}

// ownProcessorTime is what this process has used.
func ownProcessorTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
