package agent

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/inventory"
)

// buildOOMScore makes the kernel end a build before any member when memory is short (proc(5), oom_score_adj).
const buildOOMScore = 900

// LimitBuild gives the calling process to what a build may use, the CPUs of this list, and starts the program anew as a build's worker: what
// a thread is limited to, only a new program has as a whole. It returns only if that fails.
func LimitBuild(cpus string) error {
	numbers, err := inventory.ParseList(cpus)
	if err != nil {
		return err
	}
	var set unix.CPUSet
	for _, n := range numbers {
		set.Set(n)
	}
	runtime.LockOSThread()
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("keep the build to CPUs %s: %w", cpus, err)
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(buildOOMScore)), 0); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(program, []string{program, BuildCommand}, os.Environ())
}

// cpuList writes CPUs as LimitBuild reads them.
func cpuList(cpus []int) string {
	text := make([]string, len(cpus))
	for i, n := range cpus {
		text[i] = strconv.Itoa(n)
	}
	return strings.Join(text, ",")
}
