package shaper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/clsact"
)

// State is what the kernel holds the ports of the node to.
type State struct {
	// Parent is the rate of all classes together in bits per second, 0 for none.
	Parent int64
	// Classes are the minor numbers of the classes of ports.
	Classes []uint16
	// Limits are those of ports, by link.
	Limits map[string]Limit
}

// class is a class of the device as it was read.
type class struct {
	minimum, maximum int64
	whole            bool // its own options, and its queue
}

// Read returns what the kernel holds these links to, given as index by name. Without the device, it is nothing.
func (s *Shaper) Read(ports map[string]int) (State, error) {
	state := State{Limits: map[string]Limit{}}
	device, err := netlink.LinkByName(Device)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return state, nil
	}
	if err != nil {
		return state, err
	}
	queues, err := list(unix.RTM_GETQDISC, unix.RTM_NEWQDISC, 0, 0)
	if err != nil {
		return state, fmt.Errorf("reading queues: %w", err)
	}
	index := device.Attrs().Index
	classes, err := readTree(&state, index, queues)
	if err != nil {
		return state, err
	}
	for name, port := range ports {
		limit, err := s.readLimit(port, index, queues, classes)
		if err != nil {
			return state, fmt.Errorf("reading the limits of %s: %w", name, err)
		}
		if limit != (Limit{}) {
			state.Limits[name] = limit
		}
	}
	return state, nil
}

// readTree reads the tree of the device into the state, and returns the classes of ports by their minor numbers.
func readTree(state *State, device int, queues []object) (map[uint16]class, error) {
	tree := false
	lengths := map[uint32]uint32{} // of the queues of classes, by their parents
	for _, q := range queues {
		if q.index != device {
			continue
		}
		tree = tree || q.kind == "htb" && q.handle == handle(treeMajor, 0) && q.parent == netlink.HANDLE_ROOT
		if q.kind == "bfifo" && len(q.options) >= 4 {
			lengths[q.parent] = binary.NativeEndian.Uint32(q.options)
		}
	}
	if !tree {
		return nil, nil
	}
	objects, err := list(unix.RTM_GETTCLASS, unix.RTM_NEWTCLASS, device, 0)
	if err != nil && !clsact.IsAbsent(err) {
		return nil, fmt.Errorf("reading the classes of %s: %w", Device, err)
	}
	classes := map[uint16]class{}
	for _, o := range objects {
		minimum, maximum, whole := readClass(o.options)
		if o.handle == handle(treeMajor, parentMinor) {
			if whole && minimum == maximum {
				state.Parent = maximum
			}
			continue
		}
		length := lengths[o.handle]
		whole = whole && o.parent == handle(treeMajor, parentMinor) && length == binary.NativeEndian.Uint32(queueOptions(maximum))
		minor := uint16(o.handle)
		classes[minor] = class{minimum: minimum, maximum: maximum, whole: whole}
		state.Classes = append(state.Classes, minor)
	}
	return classes, nil
}

// readLimit reads what a port is held to.
func (s *Shaper) readLimit(index, device int, queues []object, classes map[uint16]class) (Limit, error) {
	var limit Limit
	prepared := false
	for _, q := range queues {
		switch {
		case q.index != index:
		case q.kind == "clsact":
			prepared = true
		case q.parent == netlink.HANDLE_ROOT && q.handle>>16 == portMajor:
			rate, whole := readTBF(q)
			limit.In, limit.Broken = rate, limit.Broken || !whole
		}
	}
	if !prepared {
		return limit, nil
	}
	filter, err := s.readFilter(index, device)
	if err != nil || filter == nil {
		return limit, err
	}
	limit.Broken = limit.Broken || !filter.whole
	if filter.dscp >= 0 {
		limit.DSCP = strconv.Itoa(filter.dscp)
	}
	if filter.class != 0 {
		c, exists := classes[filter.class]
		limit.Class, limit.Min, limit.Max = filter.class, c.minimum, c.maximum
		limit.Broken = limit.Broken || !exists || !c.whole
	}
	return limit, nil
}
