package nodespace

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// ensureNode makes one node's namespaces and joins it to the underlay.
func (s *site) ensureNode(name string, egress bool, u underlay) (Space, error) {
	network, err := s.ensureNetNS(name)
	if err != nil {
		return Space{}, err
	}
	defer network.Close()
	failpoint.Hit("nodespace.after-network")
	space := Space{Name: name, NetNS: s.pin(name, "net"), MountNS: s.pin(name, "mnt"), UTSNS: s.pin(name, "uts")}
	if err := network.Do(func() (err error) {
		space.Address, err = s.ensureNodeLink(egress, u)
		return err
	}); err != nil {
		return Space{}, err
	}
	failpoint.Hit("nodespace.after-link")
	mountPinned, err := isPinned(space.MountNS)
	if err != nil {
		return Space{}, err
	}
	utsPinned, err := isPinned(space.UTSNS)
	if err != nil {
		return Space{}, err
	}
	if !mountPinned || !utsPinned {
		err = s.makeMountNS(space, network)
	}
	return space, err
}

// ensureNodeLink joins a node to the switch, in the node's network namespace, and returns its address there.
func (s *site) ensureNodeLink(egress bool, u underlay) (netip.Addr, error) {
	link, err := netlink.LinkByName(nodeLink)
	if err == nil {
		address, err := mendNodeLink(link, egress, u)
		if err != nil || address.IsValid() {
			return address, err
		}
		// Joined to a switch that is gone, or not to the end.
		if err := netlink.LinkDel(link); err != nil {
			return netip.Addr{}, err
		}
	} else if !isGone(err) {
		return netip.Addr{}, err
	}
	number, err := u.freeNumber()
	if err != nil {
		return netip.Addr{}, err
	}
	if link, err = s.joinSwitch(nodeLink, nil, nodePort+strconv.Itoa(number), u.sw); err != nil {
		return netip.Addr{}, err
	}
	return mendNodeLink(link, egress, u)
}

// mendNodeLink sets a node's link up with the address that its port's number stands for; the zero address means that
// the link leads nowhere.
func mendNodeLink(link netlink.Link, egress bool, u underlay) (netip.Addr, error) {
	port := ""
	err := u.sw.Do(func() error {
		there, err := netlink.LinkByIndex(link.Attrs().ParentIndex)
		if err == nil && there.Attrs().ParentIndex == link.Attrs().Index {
			port = there.Attrs().Name
		}
		return nil
	})
	if err != nil {
		return netip.Addr{}, err
	}
	digits, ok := strings.CutPrefix(port, nodePort)
	number, err := strconv.Atoi(digits)
	if !ok || err != nil {
		return netip.Addr{}, nil
	}
	if err := plug(u.sw, port); err != nil {
		return netip.Addr{}, err
	}
	address := u.nodeAddress(number)
	if err := addAddress(link, netip.PrefixFrom(address, u.prefix.Bits())); err != nil {
		return netip.Addr{}, err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return netip.Addr{}, err
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: u.prefix.Addr().AsSlice()}
	if egress {
		return address, netlink.RouteReplace(route)
	}
	if err := netlink.RouteDel(route); err != nil && !errors.Is(err, unix.ESRCH) {
		return netip.Addr{}, err
	}
	return address, nil
}

// makeMountNS makes and pins the mount and UTS namespaces of a node.
//
// The kernel lets a mount namespace be pinned only in one with a smaller ID, so that none can hold itself (mnt_ns_loop,
// fs/namespace.c). Linux 6.18 deals IDs out to each CPU in batches, so a new namespace may have a smaller ID than the one dev runs
// in, unless that is the first of the host. On the CPU where the latter was made IDs are larger: each CPU is tried.
func (s *site) makeMountNS(space Space, network netns.Handle) error {
	err := s.makeMountNSOn(nil, space, network)
	var allowed unix.CPUSet
	if !errors.Is(err, unix.EINVAL) || unix.SchedGetaffinity(0, &allowed) != nil {
		return err
	}
	for cpu := 0; cpu < len(allowed)*64 && errors.Is(err, unix.EINVAL); cpu++ {
		if allowed.IsSet(cpu) {
			var one unix.CPUSet
			one.Set(cpu)
			err = s.makeMountNSOn(&one, space, network)
		}
	}
	return err
}

// makeMountNSOn makes and pins the namespaces on one of the CPUs, any when nil. The thread that makes them ends up in them, so it
// stays while another one, which is still on the host, pins them.
func (s *site) makeMountNSOn(cpus *unix.CPUSet, space Space, network netns.Handle) error {
	type pins struct{ mount, uts string }
	made := make(chan pins)
	pinned := make(chan struct{})
	result := make(chan error, 1)
	go func() {
		defer close(made)
		result <- netns.OnThrowawayThread(func() error {
			if cpus != nil {
				if err := unix.SchedSetaffinity(0, cpus); err != nil {
					return fmt.Errorf("moving to another CPU: %w", err)
				}
			}
			if err := s.becomeNode(space.Name, network); err != nil {
				return err
			}
			task := fmt.Sprintf("/proc/%d/task/%d/ns/", os.Getpid(), unix.Gettid())
			made <- pins{task + "mnt", task + "uts"}
			<-pinned
			return nil
		})
	}()
	var err error
	if p, ok := <-made; ok {
		for _, pin := range []struct{ source, path string }{{p.uts, space.UTSNS}, {p.mount, space.MountNS}} {
			if err == nil {
				err = repin(pin.source, pin.path)
			}
			failpoint.Hit("nodespace.after-pin")
		}
		close(pinned)
	}
	return errors.Join(<-result, err)
}

// repin pins a namespace in place of one that may be pinned already.
func repin(source, path string) error {
	pinned, err := isPinned(path)
	if err != nil {
		return err
	}
	if pinned {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("releasing %s: %w", path, err)
		}
	}
	return pinNamespace(source, path)
}

// becomeNode turns the calling thread, which is not used again, into one of the node's: host name, mounts, network.
func (s *site) becomeNode(name string, network netns.Handle) error {
	if err := network.Enter(); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWUTS); err != nil {
		return fmt.Errorf("making a mount namespace: %w", err)
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	// The copies of the pins would keep other nodes' namespaces alive.
	if err := unix.Unmount(s.dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("hiding the pins from the node: %w", err)
	}
	if err := remountSys(); err != nil {
		return fmt.Errorf("mounting the node's network in /sys: %w", err)
	}
	return nil
}
