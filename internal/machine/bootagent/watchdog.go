package bootagent

import (
	"context"
	"errors"
	"fmt"
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

// startWatchdog lets the machine's watchdog fire once this process has not run for so long. It is fed until ctx ends, and then on no more: a machine
// that ends goes off sooner. An image without its driver goes without.
func (a *Agent) startWatchdog(ctx context.Context, after time.Duration) {
	if after < time.Second {
		return
	}
	file, err := a.openWatchdog(after)
	if err != nil {
		a.log.Warn("a hang of this machine will not be noticed", "error", err)
		return
	}
	a.log.Info("watchdog started", "fires_after", after)
	go func() {
		defer func() { _ = file.Close() }()
		feed := time.NewTicker(after / feedsInTime)
		defer feed.Stop()
		for {
			if err := unix.IoctlWatchdogKeepalive(int(file.Fd())); err != nil {
				a.log.Warn("the watchdog is not fed", "error", err)
			}
			select {
			case <-feed.C:
			case <-ctx.Done():
				return
			}
		}
	}()
}

func (a *Agent) openWatchdog(after time.Duration) (*os.File, error) {
	if err := a.modules.load(guestWatchdog); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(watchdogDevice, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlSetPointerInt(int(file.Fd()), unix.WDIOC_SETTIMEOUT, int(after/time.Second)); err != nil {
		return nil, errors.Join(fmt.Errorf("setting its time: %w", err), file.Close())
	}
	return file, nil
}
