// Package health checks that what a machine has also works, before anyone is given it.
//
// Every check ends by itself or at its deadline, and ends with a sentence for people; one that hangs in a driver has failed. Checks look, and never
// repair or write. Which failures keep a machine from being used is Policy's to say. Start with Run.
package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/devices"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/sysfs"
)

// Machine is what is checked.
type Machine struct {
	Tree     sysfs.Tree
	Hardware api.Hardware
	// InstalledBytes is the memory that the firmware's tables name; 0: they name none.
	InstalledBytes int64
	// BootMAC is of the NIC it booted from; may be empty.
	BootMAC string
	Disks   Disks
	Now     func() time.Time
}

// Disks reads disks and asks them how they are.
type Disks interface {
	// Open opens a disk for reading, past the page cache where that is possible.
	Open(name string) (io.ReadSeekCloser, error)
	Wear(disk api.Disk) (devices.Wear, error)
}

// Check is one check. A nil error is success; the text is told in either case, before the error's.
type Check struct {
	Name string
	Run  func(ctx context.Context, m Machine) (string, error)
}

// Checks are all checks, in the order of their results.
func Checks() []Check {
	return []Check{
		{"memory", checkMemory},
		{"ecc", checkECC},
		{"cpu", checkCPU},
		{"disks", checkDisks},
		{"nics", checkNICs},
		{"clock", checkClock},
		{"hcas", checkHCAs},
		{"gpus", checkGPUs},
		{"pcie", checkPCIe},
		{"temperature", checkTemperature},
	}
}

// Run runs the checks all at once, each until the deadline, and returns their results in their order.
func Run(ctx context.Context, m Machine, checks []Check, deadline time.Duration) []api.HealthResult {
	results := make([]api.HealthResult, len(checks))
	done := make(chan int, len(checks))
	for i, c := range checks {
		go func() {
			results[i] = runOne(ctx, m, c, deadline)
			done <- i
		}()
	}
	for range checks {
		<-done
	}
	return results
}

// runOne runs a check in a goroutine of its own, which is left behind when it hangs in the kernel: there is no way to end it.
func runOne(ctx context.Context, m Machine, c Check, deadline time.Duration) api.HealthResult {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	type answer struct {
		text string
		err  error
	}
	answers := make(chan answer, 1)
	start := time.Now()
	go func() {
		defer func() {
			if r := recover(); r != nil {
				answers <- answer{err: fmt.Errorf("the check crashed: %v", r)}
			}
		}()
		text, err := c.Run(ctx, m)
		answers <- answer{text, err}
	}()
	result := api.HealthResult{Check: c.Name}
	select {
	case a := <-answers:
		result.OK, result.Message = a.err == nil, a.text
		switch {
		case errors.Is(a.err, context.DeadlineExceeded):
			result.Message = tooLong(deadline)
		case a.err != nil:
			result.Message = a.err.Error()
		}
	case <-ctx.Done():
		result.Message = tooLong(deadline)
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			result.Message = "the check was abandoned: " + ctx.Err().Error()
		}
	}
	result.DurationSeconds = time.Since(start).Seconds()
	return result
}

func tooLong(deadline time.Duration) string {
	return fmt.Sprintf("no result within %v; the device or its driver hangs", deadline)
}

// Policy says which failed checks keep a machine from being used.
type Policy struct {
	// Blocking are the names of the checks that do; a check that is not named does not.
	Blocking map[string]bool `json:"blocking"`
}

// DefaultPolicy blocks a machine for what would break or slow its users' work, and lets it be used with what a machine is often left with on purpose
// (a NIC without a cable, a card in a narrower slot).
func DefaultPolicy() Policy {
	return Policy{Blocking: map[string]bool{
		"memory": true, "ecc": true, "cpu": true, "disks": true, "clock": true, "hcas": true, "gpus": true, "temperature": true,
	}}
}

// Blocks returns the failed results that keep a machine from being used; nil when it can be.
func (p Policy) Blocks(results []api.HealthResult) []api.HealthResult {
	var out []api.HealthResult
	for _, r := range results {
		if !r.OK && p.Blocking[r.Check] {
			out = append(out, r)
		}
	}
	return out
}
