package inventory

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// UsableCPUs are the CPUs this process may run on (sched_getaffinity(2)): a machine may have more.
func UsableCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read the usable CPUs: %w", err)
	}
	cpus := make([]int, 0, set.Count())
	for cpu := 0; len(cpus) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}
