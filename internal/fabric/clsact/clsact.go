// Package clsact prepares links for programs that see their frames, and undoes that (clsact of tc-bpf(8)).
//
// Several programs can be at one link, each with a priority of its own. The package must never remove what others need.
package clsact

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Prepare prepares a link for programs. Preparing a link again is no error.
func Prepare(link netlink.Link) error {
	err := netlink.QdiscAdd(qdisc(link.Attrs().Index))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("preparing %s for a program: %w", link.Attrs().Name, err)
	}
	return nil
}

// Unprepare removes from a link what Prepare added, unless there is a program.
func Unprepare(link netlink.Link) error {
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		list, err := netlink.FilterList(link, parent)
		if IsAbsent(err) {
			return nil
		}
		if err != nil || len(list) > 0 {
			return err
		}
	}
	if err := netlink.QdiscDel(qdisc(link.Attrs().Index)); err != nil && !IsAbsent(err) {
		return fmt.Errorf("removing what was prepared at %s: %w", link.Attrs().Name, err)
	}
	return nil
}

func qdisc(index int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}}
}

// IsAbsent reports whether an error says that a link, or the filters of a link, are not there.
func IsAbsent(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL)
}
