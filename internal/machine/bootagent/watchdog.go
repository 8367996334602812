package bootagent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// watchdogDevice is the machine's first watchdog (Documentation/watchdog/watchdog-api.rst).
const watchdogDevice = "/dev/watchdog0"

// guestWatchdog is the driver of the device that hosts give their guests.
const guestWatchdog = "i6300esb"

// feedsInTime is how often a watchdog is fed in the time after which it fires: a machine may be slow for long before it counts as hanging.
const feedsInTime = 6

// The watchdog of a whole machine fires machineWatchdogTime after the last sign of life. Its driver is waited for a while, and looked for at each pause.
const (
	machineWatchdogTime  = time.Minute
	machineWatchdogWait  = time.Minute
	machineWatchdogPause = time.Second
)

// startWatchdog lets the watchdog of a virtual machine fire once this process has not run for so long. It is fed until ctx ends, and then on no more: a
// machine that ends goes off sooner. An image without its driver goes without.
func (a *Agent) startWatchdog(ctx context.Context, after time.Duration) {
	if after < time.Second {
		return
	}
	err := a.modules.load(guestWatchdog)
	if err == nil {
		err = a.feedWatchdog(ctx, watchdogDevice, after)
	}
	if err != nil {
		a.log.Warn("a hang of this machine will not be noticed", "error", err)
	}
}

// watchMachine lets the hardware watchdog of a whole machine, at this path, reset the machine once its kernel hangs: nobody else might, where the BMC does
// not answer. The driver is the image's. A machine without a watchdog goes without: that its heartbeats are missed is noticed all the same. What opens
// the device has it alone, so that the machine's users can't feed it in the place of a kernel that hangs.
func (a *Agent) watchMachine(ctx context.Context, path string) {
	look := time.NewTicker(machineWatchdogPause)
	defer look.Stop()
	wait, stop := context.WithTimeout(ctx, machineWatchdogWait)
	defer stop()
	for {
		err := a.feedWatchdog(ctx, path, machineWatchdogTime)
		if err == nil {
			return
		}
		if !errors.Is(err, fs.ErrNotExist) {
			a.log.Warn("this machine will not reset itself if it hangs", "error", err)
			return
		}
		select {
		case <-look.C:
		case <-wait.Done():
			a.log.Info("this machine has no watchdog that its environment has a driver for")
			return
		}
	}
}

// feedWatchdog opens a watchdog, which starts it, and feeds it until ctx ends.
func (a *Agent) feedWatchdog(ctx context.Context, path string, after time.Duration) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	after = a.setWatchdog(file, after)
	a.log.Info("watchdog started", "fires_after", after)
	go func() {
		defer func() { _ = file.Close() }()
		feed := time.NewTicker(after / feedsInTime)
		defer feed.Stop()
		for {
			if _, err := file.Write([]byte{0}); err != nil { // any but 'V', which is for a close that stops it
				a.log.Warn("the watchdog is not fed", "error", err)
			}
			select {
			case <-feed.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return nil
}

// setWatchdog sets the time after which a watchdog fires, and returns the time that it has: hardware may know no other, or only shorter ones.
func (a *Agent) setWatchdog(file *os.File, after time.Duration) time.Duration {
	fd := int(file.Fd())
	setErr := unix.IoctlSetPointerInt(fd, unix.WDIOC_SETTIMEOUT, int(after/time.Second))
	has, getErr := unix.IoctlGetInt(fd, unix.WDIOC_GETTIMEOUT)
	if getErr != nil || has <= 0 {
		a.log.Warn("the time of the watchdog is unknown", "error", errors.Join(setErr, getErr, fmt.Errorf("it says %d", has)))
		return shortestWatchdog
	}
	return time.Duration(has) * time.Second
}

// shortestWatchdog is less than what any driver of servers begins with.
const shortestWatchdog = 6 * time.Second
