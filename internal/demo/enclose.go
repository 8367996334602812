package demo

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/hostsnapshot"
)

// formerGroup names in the environment the group that the demo was started with.
const formerGroup = "NEARMETAL_DEMO_GROUP"

// enclose replaces this process by itself, in a network namespace of its own and with a group that no other process has. The
// kernel then shows which files, cgroups, links and rules of a busy host are the demo's. It returns only when that fails.
func enclose() error {
	// Both belong to a thread. The one that calls execve takes the place of the whole process, and keeps them.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("the demo needs a network namespace of its own: %w", err)
	}
	env := append(os.Environ(), stage+"="+proofStage, fmt.Sprintf("%s=%d", formerGroup, os.Getegid()))
	if group := hostsnapshot.OwnGroup(); group != 0 {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETGID, uintptr(group), 0, 0); errno != 0 {
			return fmt.Errorf("the demo needs a group of its own: setgid %d: %w", group, errno)
		}
	}
	return fmt.Errorf("the demo can't restart itself: %w", unix.Exec(self, os.Args, env))
}

// settleIn makes the new network fit for programs, and returns the demo's own group, 0 for none, and the one it had before.
func settleIn() (own, former uint32, err error) {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("the loopback link of the demo's network: %w", err)
	}
	number, err := strconv.ParseUint(os.Getenv(formerGroup), 10, 32)
	if err != nil {
		return 0, 0, fmt.Errorf("%s is not a group ID; remove it from the environment and start the demo again: %w", formerGroup, err)
	}
	if own = uint32(os.Getegid()); own == uint32(number) {
		own = 0
	}
	return own, uint32(number), nil
}

// tourEnvironment returns this process's environment for the inner one.
func tourEnvironment(more ...string) []string {
	var env []string
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); name != stage && name != formerGroup {
			env = append(env, variable)
		}
	}
	return append(append(env, stage+"="+tourStage), more...)
}
