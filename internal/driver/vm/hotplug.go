package vm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cgroup"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
)

// A running machine gets processors and memory, and gives them back, by hotplug. The member's control groups admit both sizes meanwhile. The order
// is: widen the groups, plug, narrow the groups, and write the record. An agent that is killed in between leaves the former record, so the next
// one does all of it again, towards whichever size the member is to have by then.

// guestPatience is for a guest to take or to release processors and memory.
const guestPatience = 30 * time.Second

// errGuestKeeps reports that the guest did not take or release what it was asked to.
var errGuestKeeps = errors.New("the guest did not follow in time")

// fitLive gives a machine the processors and the memory of an assignment, or returns ErrNeedsReboot and leaves those of its record. Also a machine
// whose record names the size already is looked at: an agent may have been killed between the two.
func (d *Driver) fitLive(ctx context.Context, seen sight, r *record, has, wants *api.Assignment) error {
	// Nothing is known of memory that is plugged in beside a function or a GPU, which reads and writes all that the machine has.
	runs, c, still := seen.state == driver.StateRunning, r.chassis(), len(passedThrough(has))+len(gpusOf(has)) > 0
	size := has.Held()
	switch {
	case size.Same(wants.Held()) && (c == nil || !runs || still):
		return nil
	case !runs || still || !c.takes(has, wants, d.hardware().NUMANodes):
		return driver.ErrNeedsReboot // a guest that stands still follows nothing
	}
	host, done, err := d.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	err = d.fit(ctx, host, r, has, wants)
	if errors.Is(err, errGuestKeeps) || errors.Is(err, errThreads) {
		d.log.WarnContext(ctx, "a member's size needs a reboot", "member", wants.ID, "error", err)
		return driver.ErrNeedsReboot
	}
	return err
}

// fit makes a machine that had one size have another one. If the guest does not follow, the machine has its former size again.
func (d *Driver) fit(ctx context.Context, host *daemon, r *record, had, wants *api.Assignment) error {
	groups, err := d.groups()
	if err != nil {
		return err
	}
	if err := groups.Make(wants.ID, widest(limitsOf(had, d.cfg.SpareCPUs), limitsOf(wants, d.cfg.SpareCPUs))); err != nil {
		return err
	}
	failpoint.Hit("vm.after-widen")
	if err := d.plug(ctx, host, r, wants); err != nil {
		return errors.Join(err, d.plug(ctx, host, r, had), d.hold(had))
	}
	failpoint.Hit("vm.after-plug")
	return d.hold(wants)
}

// settle returns nil if a machine has the size of its record, which its successor gets. A guest that released a processor when its host had
// stopped waiting gets another one.
func (d *Driver) settle(ctx context.Context, host *daemon, seen sight, r record) error {
	c, a := r.chassis(), &r.Member.Assignment
	if c == nil {
		return nil
	}
	places, err := placesOf(ctx, host, a.ID)
	if err != nil {
		return err
	}
	processors := places.taken()
	plugged := pluggedMemory{Bytes: c.plugged(a), Requested: c.plugged(a)}
	if c.RoomBytes > 0 {
		if plugged, err = pluggedOf(ctx, host, a.ID); err != nil {
			return err
		}
	}
	switch {
	case d.cfg.Accelerate() != nil && max(r.Threads, processors) > len(vcpus(a)):
		return errGaveBack
	case processors == len(vcpus(a)) && plugged.Bytes == c.plugged(a) && plugged.Requested == c.plugged(a):
		return nil
	case seen.state != driver.StateRunning:
		return fmt.Errorf("it has %d processors and %s of memory, not %d and %s, and stands still; resume it first",
			processors, api.Bytes(c.BootBytes+plugged.Bytes), len(vcpus(a)), api.Bytes(a.MemoryBytes()))
	}
	return d.fit(ctx, host, &r, a, a)
}

// hold narrows the control groups of a machine to its size, and keeps each thread on its CPU.
func (d *Driver) hold(a *api.Assignment) error { return errors.Join(d.confine(a), d.join(a)) }

// widest returns limits that admit two sizes.
func widest(x, y cgroup.Limits) cgroup.Limits {
	both := func(x, y []int) []int {
		all := slices.Concat(x, y)
		slices.Sort(all)
		return slices.Compact(all)
	}
	return cgroup.Limits{MemoryBytes: max(x.MemoryBytes, y.MemoryBytes), CPUs: both(x.CPUs, y.CPUs), MemoryNodes: both(x.MemoryNodes, y.MemoryNodes)}
}

// plug gives a machine the processors and the memory of an assignment, whatever it has.
func (d *Driver) plug(ctx context.Context, host *daemon, r *record, a *api.Assignment) error {
	if err := d.plugProcessors(ctx, host, r, len(vcpus(a))); err != nil {
		return err
	}
	if r.chassis().RoomBytes == 0 {
		return nil
	}
	return plugMemory(ctx, host, r.chassis(), a)
}
