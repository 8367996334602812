package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// A guest's boot agent feeds its watchdog, a device of the machine. When it has not done so for watchdogTime, as its kernel stands still or gives
// it no time, QEMU pauses the machine, and libvirt keeps the reason: a restarted agent finds it, too. The device counts time in which the machine
// runs. So it does not fire while that is paused, saved, or on its way to another host.

// watchdogTime is long enough for emulated machines on a host that is far too busy.
const watchdogTime = time.Minute

var errHung = errors.New("the machine hangs: its watchdog has fired")

// hasFired reports a machine that its watchdog has stopped.
func hasFired(state libvirt.DomainState, reason int32) bool {
	return state == libvirt.DomainPaused && reason == int32(libvirt.DomainPausedWatchdog)
}

// mostLog bounds what is kept of QEMU's own words about one machine: a guest can make it warn without end.
const mostLog = 1 << 20

// boundLogs empties logs that have grown too large. QEMU appends to them.
func (d *Driver) boundLogs(ids []string) {
	for _, id := range ids {
		file := d.logFile(id)
		if info, err := os.Lstat(file); err != nil || !info.Mode().IsRegular() || info.Size() <= mostLog {
			continue
		}
		if err := os.Truncate(file, 0); err != nil {
			d.log.Warn("a machine's log can't be emptied", "file", file, "error", err)
		}
	}
}

// logFile is where libvirt keeps QEMU's words about a machine.
func (d *Driver) logFile(id string) string {
	return filepath.Join(d.cfg.StateDir, "libvirt", "log", "qemu", id+".log")
}

// Hung returns the machines that their watchdogs have stopped; it implements driver.Examiner. libvirt is asked once for all, and only while there
// are machines.
func (d *Driver) Hung(ctx context.Context) (map[string]string, error) {
	ids, err := d.members()
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	d.boundLogs(ids)
	host, done, err := d.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	hung := map[string]string{}
	err = host.call(ctx, func(rpc *libvirt.Libvirt) error {
		paused, _, err := rpc.ConnectListAllDomains(1, libvirt.ConnectListDomainsPaused)
		if err != nil {
			return err
		}
		for _, domain := range paused {
			state, reason, err := rpc.DomainGetState(domain, 0)
			if err == nil && hasFired(libvirt.DomainState(state), reason) {
				hung[domain.Name] = "the virtual machine hangs: its kernel gave no sign of life, and its watchdog has stopped it"
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("asking libvirt for machines that hang: %w", err)
	}
	return hung, nil
}
