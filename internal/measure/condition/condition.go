// Package condition gives paths between network namespaces a delay, jitter, loss, duplication, corruption, reordering and a rate, without the kernel's
// netem: a process forwards IP packets between two TUN devices (Link).
//
// What happens to each packet is decided by a pure model with a seed (fate.go), so a run can be repeated. The devices go with the process that holds
// them, whatever happens to it, and so do the conditions. A condition must never be taken on trust: Verify measures a link before a run counts. Start
// with Open.
package condition

import (
	"errors"
	"fmt"
	"time"
)

// Condition is what happens to packets in one direction. The zero value changes nothing.
type Condition struct {
	// Delay is how much longer each packet takes, and Jitter by how much that varies either way, evenly. Packets keep their order.
	Delay  time.Duration `json:"delay,omitempty"`
	Jitter time.Duration `json:"jitter,omitempty"`
	// Loss, Duplicate, Corrupt and Reorder are the fractions of packets, from 0 to 1, that are lost, come twice, have one bit turned over, and overtake
	// those that wait for Delay.
	Loss      float64 `json:"loss,omitempty"`
	Duplicate float64 `json:"duplicate,omitempty"`
	Corrupt   float64 `json:"corrupt,omitempty"`
	Reorder   float64 `json:"reorder,omitempty"`
	// BitsPerSecond is the rate, counted with IP headers; 0 is none. QueueBytes wait for it at most, and what comes then is lost; 0 is what the rate sends
	// in 50 ms, and at least 32 full packets.
	BitsPerSecond int64 `json:"bits_per_second,omitempty"`
	QueueBytes    int64 `json:"queue_bytes,omitempty"`
	// Seed repeats a run.
	Seed uint64 `json:"seed,omitempty"`
}

// maxDelay bounds what waits: a minute is longer than programs of the network wait for an answer.
const maxDelay = time.Minute

// Validate returns what is wrong with a condition.
func (c Condition) Validate() error {
	var errs []error
	if c.Delay < 0 || c.Delay > maxDelay {
		errs = append(errs, fmt.Errorf("a delay of %v: it must be between 0 and %v", c.Delay, maxDelay))
	}
	if c.Jitter < 0 || c.Jitter > c.Delay {
		errs = append(errs, fmt.Errorf("a jitter of %v: it must be between 0 and the delay, %v", c.Jitter, c.Delay))
	}
	for _, f := range []struct {
		name  string
		value float64
	}{{"loss", c.Loss}, {"duplication", c.Duplicate}, {"corruption", c.Corrupt}, {"reordering", c.Reorder}} {
		if !(f.value >= 0 && f.value <= 1) { // NaN is neither
			errs = append(errs, fmt.Errorf("a %s of %v: it must be a fraction from 0 to 1", f.name, f.value))
		}
	}
	if c.Reorder > 0 && c.Delay == 0 {
		errs = append(errs, errors.New("reordering without a delay: packets overtake those that wait, and none do"))
	}
	if c.BitsPerSecond < 0 || c.QueueBytes < 0 {
		errs = append(errs, fmt.Errorf("a rate of %d bit/s with a queue of %d B: neither can be negative", c.BitsPerSecond, c.QueueBytes))
	}
	if c.QueueBytes > 0 && c.BitsPerSecond == 0 {
		errs = append(errs, errors.New("a queue without a rate: nothing would wait in it"))
	}
	return errors.Join(errs...)
}

// whole reports whether the kernel may hand over several packets of a TCP stream as one. It may where they all have the same fate, and come so fast that
// nobody can tell.
func (c Condition) whole() bool {
	return c.Loss == 0 && c.Duplicate == 0 && c.Corrupt == 0 && c.Reorder == 0 && (c.BitsPerSecond == 0 || c.BitsPerSecond >= 1e9)
}

// Counters are what became of packets in one direction. Lost were lost by chance, Overflowed because the queue was full.
type Counters struct {
	Packets    int64 `json:"packets"`
	Bytes      int64 `json:"bytes"`
	Lost       int64 `json:"lost"`
	Overflowed int64 `json:"overflowed"`
	Duplicated int64 `json:"duplicated"`
	Corrupted  int64 `json:"corrupted"`
	Reordered  int64 `json:"reordered"`
	// Refused could not be handed to the kernel on the other side, which was down, for example.
	Refused int64 `json:"refused"`
	// Late is how much longer packets waited in this process than the condition says, in all and at most. Divide the sum by Sent.
	Sent     int64         `json:"sent"`
	LateSum  time.Duration `json:"late_sum"`
	LateMost time.Duration `json:"late_most"`
}
