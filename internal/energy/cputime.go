package energy

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of /proc/stat (USER_HZ, fixed for programs; proc_stat(5)).
const tick = 10 * time.Millisecond

// BusyTime reads how long the machine's CPUs have worked, in nanoseconds of CPU time, and how many there are, from a file like /proc/stat. Waiting
// for disks is idle; time that a hypervisor took is nobody's here.
func BusyTime(file string) (busy int64, cpus int, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, 0, fmt.Errorf("the CPU time of the machine can't be read: %w", err)
	}
	found := false
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, " ")
		switch {
		case name == "cpu":
			// user nice system idle iowait irq softirq steal guest guest_nice: what guests use is in user.
			for i, word := range strings.Fields(rest) {
				if i == 3 || i == 4 || i > 6 {
					continue
				}
				n, err := strconv.ParseInt(word, 10, 64)
				if err != nil {
					return 0, 0, fmt.Errorf("%s: %q is no number of ticks", file, word)
				}
				busy, found = busy+n*int64(tick), true
			}
		case strings.HasPrefix(name, "cpu"):
			cpus++
		default:
			if found {
				return busy, cpus, checkCPUs(file, cpus)
			}
		}
	}
	if !found {
		return 0, 0, errors.New(file + " has no line of all CPUs")
	}
	return busy, cpus, checkCPUs(file, cpus)
}

func checkCPUs(file string, cpus int) error {
	if cpus == 0 {
		return errors.New(file + " lists no CPU")
	}
	return nil
}

// ProcessorName reads the model of the machine's processors from a file like /proc/cpuinfo; empty: it does not say.
func ProcessorName(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
