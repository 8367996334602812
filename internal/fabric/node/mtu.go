package node

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// setMTU sets a link's MTU, and first that of the member's end when it is a port: what leaves a member has to fit.
func (f *Fabric) setMTU(link netlink.Link, want plan.Link) error {
	if want.Kind == plan.KindVeth {
		if err := f.setMemberMTU(link, want.MTU); err != nil {
			return fmt.Errorf("member's end: %w", err)
		}
	}
	return netlink.LinkSetMTU(link, want.MTU)
}

// setMemberMTU sets the MTU of the other end of a port. A member whose end can't be found has ended, and its port with it soon.
func (f *Fabric) setMemberMTU(port netlink.Link, mtu int) error {
	path, known := f.spaces.Load(port.Attrs().Name)
	if !known {
		found, err := memberSpace(port.Attrs().NetNsID)
		if err != nil || found == "" {
			return err
		}
		path = found
	}
	member, err := netns.Open(path.(string))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer member.Close()
	if number, err := netlink.GetNetNsIdByFd(member.FD()); err != nil || number != port.Attrs().NetNsID {
		return err // another namespace has the path by now
	}
	return member.Do(func() error {
		link, err := netlink.LinkByIndex(port.Attrs().ParentIndex)
		if isGone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(link, mtu)
	})
}

// memberSpace finds a process in the network namespace that the thread's own has this number for (IFLA_LINK_NETNSID), which
// is how a port tells where its other end is; "" when there is no process in it.
func memberSpace(number int) (string, error) {
	if number < 0 {
		return "", nil
	}
	paths, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return "", err
	}
	seen := map[uint64]bool{}
	for _, path := range paths {
		var stat unix.Stat_t
		if unix.Stat(path, &stat) != nil || seen[stat.Ino] {
			continue // it has ended, or the namespace was looked at
		}
		seen[stat.Ino] = true
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		if err != nil {
			continue
		}
		if got, err := netlink.GetNetNsIdByPid(pid); err == nil && got == number {
			return path, nil
		}
	}
	return "", nil
}
