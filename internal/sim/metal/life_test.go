// Package metal lives through the lives of machines on a virtual clock: the real controller, provisioner, power gate and boot API, on the
// state in memory, against machines, BMCs and people that are modelled. Everything goes wrong that does with hardware: BMCs that are away,
// lie or are deaf, firmware that hangs, cables, power, kernels that panic, a server that is killed, a leadership that is lost.
//
// What a commit says of a machine is held against what the machine does at that moment (check_test.go), and when nothing goes wrong any more
// every machine must be to be had: on, off, and out of the site. Start with TestNoMachineIsEverLost, then world_test.go.
package metal

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
)

// number is an environment variable's value, or another one.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s is not a number: %v", name, err)
	}
	return n
}

// TestNoMachineIsEverLost lives through NEARMETAL_METAL_SEEDS sites, from NEARMETAL_METAL_FIRST on.
func TestNoMachineIsEverLost(t *testing.T) {
	first, count := number(t, "NEARMETAL_METAL_FIRST", 1), number(t, "NEARMETAL_METAL_SEEDS", 6)
	seen := newCounts()
	for seed := first; seed < first+count; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newWorld(t, seed, seen).live() })
		})
		if t.Failed() {
			t.Fatalf("see it again: NEARMETAL_METAL_FIRST=%d NEARMETAL_METAL_SEEDS=1 go test ./internal/sim/metal -v", seed)
		}
	}
	seen.tell(t)
	if count >= 6 {
		seen.mustHave(t, "commits", "boots", "phase ready", "phase failed", "phase off", "gone", "server killed", "leadership lost", "power lost", "kernel panics")
	}
}
