// Package shaper holds ports of members to rates, and marks their packets.
//
// All packets that members with rates send pass one device of the node, an intermediate functional block (ifb), on their way from the port to its
// bridge. A tree of queues there (tc-htb(8)) has one class for each port. A kernel program at the node's end of the port chooses the class and
// writes the mark, and the device gives the packet back to the port, before the bridge and all rules. Packets to the port wait at the node's end
// of the port (tc-tbf(8)). Everything is in the kernel and named there, so another process finds it.
//
// The package must never decide which ports have rates: the plan decides that. Its functions belong in the node's network namespace. Start with
// Shaper.
package shaper

import (
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/clsact"
)

// Device is the name of the node's device.
const Device = "nmifb"

// Limit is what a port is held to. Rates are in bits per second.
type Limit struct {
	// Class is the minor number of the port's class, a multiple of 16: the kernel chooses queues of other links by the lowest four bits of a packet's
	// priority, and none are to be preferred. 0: what the port sends is not limited.
	Class uint16
	// Min and Max are what the class gets if others want more, and if nobody wants anything.
	Min, Max int64
	// In bounds what the port receives, 0 for no limit.
	In int64
	// DSCP marks packets from the port, "" leaves them as they are.
	DSCP string
	// Broken: the kernel's state is not whole, or somebody else's.
	Broken bool
}

// The handles of the tree and its parent class, and of the queue at ports. The major numbers keep them apart from those of others: packets
// have the class as their priority when they are sent by other links.
const (
	treeMajor   = 0x6e6d
	parentMinor = 1
	portMajor   = 0x6e6e
)

// Shaper sets and reads limits. Several goroutines may call its methods at once.
type Shaper struct {
	mu   sync.Mutex
	tags map[work]string
}

// New returns a shaper. Nothing is changed.
func New() *Shaper { return &Shaper{tags: map[work]string{}} }

// Set holds a port to a limit, whatever it was held to before. The device must exist.
func (*Shaper) Set(port string, limit Limit) error {
	link, err := netlink.LinkByName(port)
	if err != nil {
		return err
	}
	device, err := netlink.LinkByName(Device)
	if err != nil {
		return fmt.Errorf("finding the device of rates, %s: %w", Device, err)
	}
	if limit.Class != 0 {
		if err := setClass(device.Attrs().Index, limit); err != nil {
			return fmt.Errorf("limiting what %s sends: %w", port, err)
		}
	}
	if err := setIn(link, limit.In); err != nil {
		return fmt.Errorf("limiting what %s receives: %w", port, err)
	}
	if err := setFilter(link, device.Attrs().Index, limit); err != nil {
		return fmt.Errorf("attaching the program of rates to %s: %w", port, err)
	}
	return nil
}

// Clear removes the limits of a port, but for its class. A port that is gone, or has none, is no error.
func (*Shaper) Clear(port string) error {
	link, err := netlink.LinkByName(port)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := deleteFilter(link); err != nil {
		return fmt.Errorf("removing the program of rates from %s: %w", port, err)
	}
	if err := clsact.Unprepare(link); err != nil {
		return err
	}
	return setIn(link, 0)
}

// setIn bounds what a link's other end receives; 0 removes the bound.
func setIn(link netlink.Link, rate int64) error {
	index := link.Attrs().Index
	if rate == 0 {
		err := modify(unix.RTM_DELQDISC, 0, object{index: index, parent: netlink.HANDLE_ROOT, handle: handle(portMajor, 0)}, nil)
		if clsact.IsAbsent(err) {
			return nil
		}
		return err
	}
	want := tbfOf(rate)
	want.QdiscAttrs = netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT, Handle: handle(portMajor, 0)}
	err := netlink.QdiscReplace(want)
	if errors.Is(err, unix.EINVAL) { // somebody's queue of another kind has the handle
		return errors.Join(deleteRoot(index), netlink.QdiscReplace(want))
	}
	return err
}

// tbfOf returns the queue for a rate.
func tbfOf(rate int64) *netlink.Tbf {
	bytes := uint64(rate / 8)
	return &netlink.Tbf{Rate: bytes, Buffer: ticks(bytes), Limit: uint32(burst(bytes) + backlog(bytes))}
}

// SetParent makes the tree of queues, and gives all its classes a rate together.
func (*Shaper) SetParent(rate int64) error {
	device, err := netlink.LinkByName(Device)
	if err != nil {
		return err
	}
	index := device.Attrs().Index
	parent := object{kind: "htb", index: index, parent: handle(treeMajor, 0), handle: handle(treeMajor, parentMinor)}
	set := func() error { return modify(unix.RTM_NEWTCLASS, unix.NLM_F_CREATE, parent, classOptions(rate, rate)) }
	if set() == nil {
		return nil
	}
	// There is no tree, or what somebody put in its place.
	if err := deleteRoot(index); err != nil {
		return err
	}
	tree := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT, Handle: handle(treeMajor, 0)})
	tree.Defcls = 0
	if err := netlink.QdiscAdd(tree); err != nil {
		return fmt.Errorf("making the queues of %s: %w", Device, err)
	}
	return set()
}

// deleteRoot removes the queue of a link, whosever it is. The kernel's own is no error.
func deleteRoot(index int) error {
	err := modify(unix.RTM_DELQDISC, 0, object{index: index, parent: netlink.HANDLE_ROOT}, nil)
	if clsact.IsAbsent(err) {
		return nil
	}
	return err
}

// setClass makes or changes a class and its queue.
func setClass(device int, limit Limit) error {
	class := object{kind: "htb", index: device, parent: handle(treeMajor, parentMinor), handle: handle(treeMajor, limit.Class)}
	if err := modify(unix.RTM_NEWTCLASS, unix.NLM_F_CREATE, class, classOptions(limit.Min, limit.Max)); err != nil {
		return err
	}
	queue := object{kind: "bfifo", index: device, parent: class.handle, handle: handle(limit.Class, 0)}
	return modify(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, queue, queueOptions(limit.Max))
}

// DeleteClass removes the class of a port that is gone or has no rates any more. A class that is gone is no error.
func (*Shaper) DeleteClass(class uint16) error {
	device, err := netlink.LinkByName(Device)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return err
	}
	err = modify(unix.RTM_DELTCLASS, 0, object{index: device.Attrs().Index, handle: handle(treeMajor, class)}, nil)
	if clsact.IsAbsent(err) {
		return nil
	}
	return err
}
