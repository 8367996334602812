package nfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/netns"
)

const (
	// tunnelName is the tunnel's name in its namespace.
	tunnelName = "nfs0"
	// tunnelPort is the port that IANA assigned to VXLAN (RFC 7348, section 5). Tenant networks have it, too, with lower identifiers.
	tunnelPort = 4789
	// tunnelOverhead is what a packet gets around it on the underlay: Ethernet, IPv4, UDP and VXLAN headers.
	tunnelOverhead = 14 + 20 + 8 + 8
)

// way is how a node reaches its peers for the volumes of one cluster: a network namespace with a VXLAN tunnel in it, whose packets are sent and
// received on the underlay. Beside it there is at most a port on the cluster's own network (volume.Sharing.Port), so neither members nor other programs of the host reach what listens there. Each node has
// its address of the encrypted underlay in it (fabric.Inside), which follows from that on the underlay.
//
// Where the underlay is encrypted, the tunnel's packets have these addresses outside, too. The host bears its own on the WireGuard device that its
// networks make and keep (fabric.Fabric.Seal). While that is not there, the kernel refuses to send, as it has no such source.
type way struct {
	// pin is a file on which the namespace is mounted.
	pin      string
	host     netns.Handle
	underlay netip.Addr
	mtu      int
	vni      int
	sealed   bool
	// kept: a tunnel that is there stays as it is, since nobody says how it should be.
	kept bool
}

// outer is the address of a node that packets of the tunnel have on the host.
func (w way) outer(node netip.Addr) netip.Addr {
	if w.sealed {
		return fabric.Inside(node)
	}
	return node
}

// tunnelMTU is what goes into the tunnel.
func (w way) tunnelMTU() int {
	if w.sealed {
		return w.mtu - tunnelOverhead - api.CipherOverheadBytes
	}
	return w.mtu - tunnelOverhead
}

// macOf is the address of a node's end of the tunnel, made of its address on the underlay.
func macOf(underlay netip.Addr) net.HardwareAddr {
	a := underlay.As4()
	return net.HardwareAddr{0x02, 0x6e, a[0], a[1], a[2], a[3]} // locally administered
}

// open returns the namespace, or fs.ErrNotExist.
func (w way) open() (netns.Handle, error) {
	pinned, err := isPinned(w.pin)
	if err != nil {
		return netns.Handle{}, err
	}
	if !pinned {
		return netns.Handle{}, fmt.Errorf("%s: %w", w.pin, fs.ErrNotExist)
	}
	return netns.Open(w.pin)
}

// errNotSealed reports that the host has no device yet through which the tunnel could go.
var errNotSealed = errors.New("the underlay is encrypted, and this node has no WireGuard device with its address inside yet: the agent makes it with the node's networks")

// checkSeal returns errNotSealed unless the host's address inside is on a WireGuard device. What is sent before is dropped; this says why.
func (w way) checkSeal() error {
	return w.host.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			if l.Type() != "wireguard" || l.Attrs().Flags&net.FlagUp == 0 {
				continue
			}
			addresses, err := netlink.AddrList(l, netlink.FAMILY_V4)
			if err != nil {
				return err
			}
			for _, a := range addresses {
				if a.IP.Equal(fabric.Inside(w.underlay).AsSlice()) {
					return nil
				}
			}
		}
		return errNotSealed
	})
}

// ensure makes the way, with these peers and no others.
func (w way) ensure(peers []netip.Addr) (netns.Handle, error) {
	space, err := w.open()
	if errors.Is(err, fs.ErrNotExist) {
		space, err = w.make()
	}
	if err != nil {
		return netns.Handle{}, err
	}
	err = w.ensureTunnel(space)
	if err == nil {
		err = space.Do(func() error { return w.setPeers(peers) })
	}
	if err != nil {
		return netns.Handle{}, errors.Join(fmt.Errorf("the way to other nodes: %w", err), space.Close())
	}
	return space, nil
}

// make makes the namespace.
func (w way) make() (netns.Handle, error) {
	space, err := netns.New()
	if err != nil {
		return netns.Handle{}, err
	}
	err = os.MkdirAll(filepath.Dir(w.pin), 0o700)
	if err == nil {
		err = os.WriteFile(w.pin, nil, 0o600)
	}
	if err == nil {
		err = unix.Mount(fmt.Sprintf("/proc/self/fd/%d", space.FD()), w.pin, "", unix.MS_BIND, "")
	}
	if err != nil {
		return netns.Handle{}, errors.Join(fmt.Errorf("pinning a network namespace: %w", err), space.Close())
	}
	return space, nil
}

// ensureTunnel makes the tunnel. One of an address that the node no longer has is replaced, and one in clear where the underlay is encrypted.
func (w way) ensureTunnel(space netns.Handle) error {
	there, err := w.hasTunnel(space)
	if err != nil {
		return err
	}
	if !there {
		if err := space.Do(deleteTunnel); err != nil {
			return err
		}
		if err := w.host.Do(func() error { return w.makeTunnel(space) }); err != nil {
			return fmt.Errorf("making a tunnel: %w", err)
		}
	}
	if err := space.Do(w.setTunnel); err != nil {
		return err
	}
	if there, err = w.hasTunnel(space); err == nil && !there {
		err = errors.New("the tunnel is not as it was made")
	}
	return err
}

// hasTunnel reports whether the tunnel is there, as it should be.
func (w way) hasTunnel(space netns.Handle) (there bool, err error) {
	return there, space.Do(func() error {
		link, err := netlink.LinkByName(tunnelName)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if err != nil {
			return err
		}
		tunnel, ok := link.(*netlink.Vxlan)
		there = ok && (w.kept || tunnel.VxlanId == w.vni && tunnel.SrcAddr.Equal(w.outer(w.underlay).AsSlice()) && tunnel.MTU == w.tunnelMTU())
		return nil
	})
}

// deleteTunnel deletes the tunnel of the calling thread's namespace, if there is one.
func deleteTunnel() error {
	link, err := netlink.LinkByName(tunnelName)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}

// makeTunnel makes the tunnel's device in the namespace, and its socket in that of the calling thread.
func (w way) makeTunnel(space netns.Handle) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(tunnelName)))
	req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, macOf(w.underlay)))
	req.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(space.FD()))))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("vxlan"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(nl.IFLA_VXLAN_ID, nl.Uint32Attr(uint32(w.vni)))
	data.AddRtAttr(nl.IFLA_VXLAN_LOCAL, w.outer(w.underlay).AsSlice())
	data.AddRtAttr(nl.IFLA_VXLAN_LEARNING, nl.Uint8Attr(0))
	data.AddRtAttr(nl.IFLA_VXLAN_PORT, binary.BigEndian.AppendUint16(nil, tunnelPort))
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// setTunnel gives the tunnel its address and switches it on, in the calling thread's namespace.
func (w way) setTunnel() error {
	link, err := netlink.LinkByName(tunnelName)
	if err != nil {
		return err
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	own, mtu := fabric.Inside(w.underlay), w.tunnelMTU()
	if w.kept {
		mtu = link.Attrs().MTU
	}
	return errors.Join(
		netlink.LinkSetUp(loopback), netlink.LinkSetMTU(link, mtu), netlink.LinkSetUp(link),
		netlink.AddrReplace(link, &netlink.Addr{IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(4, 32)}}),
	)
}

// setPeers says where peers are, in the calling thread's namespace. Frames to any other address go nowhere.
func (w way) setPeers(peers []netip.Addr) error {
	link, err := netlink.LinkByName(tunnelName)
	if err != nil {
		return err
	}
	index := link.Attrs().Index
	wanted := map[string]netip.Addr{}
	for _, p := range peers {
		wanted[macOf(p).String()] = p
	}
	var errs []error
	for _, family := range []int{unix.AF_BRIDGE, unix.AF_INET} {
		there, err := netlink.NeighList(index, family)
		if err != nil {
			return err
		}
		for _, n := range there {
			if _, ok := wanted[n.HardwareAddr.String()]; !ok && len(n.HardwareAddr) > 0 && n.State&netlink.NUD_PERMANENT != 0 {
				errs = append(errs, netlink.NeighDel(&n))
			}
		}
	}
	for _, p := range peers {
		mac := macOf(p)
		errs = append(errs,
			netlink.NeighSet(&netlink.Neigh{LinkIndex: index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: fabric.Inside(p).AsSlice(), HardwareAddr: mac}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF, IP: w.outer(p).AsSlice(), HardwareAddr: mac}),
		)
	}
	return errors.Join(errs...)
}

// peersIn are the peers by their addresses in the tunnel: that on the underlay is part of their MAC address (macOf).
func peersIn(space netns.Handle) (map[netip.Addr]netip.Addr, error) {
	all := map[netip.Addr]netip.Addr{}
	return all, space.Do(func() error {
		link, err := netlink.LinkByName(tunnelName)
		if err != nil {
			return err
		}
		there, err := netlink.NeighList(link.Attrs().Index, unix.AF_INET)
		for _, n := range there {
			if own, ok := netip.AddrFromSlice(n.IP); ok && len(n.HardwareAddr) == 6 {
				all[own.Unmap()] = netip.AddrFrom4([4]byte(n.HardwareAddr[2:]))
			}
		}
		return err
	})
}

// remove takes the tunnel and the namespace away. Repeating it is harmless.
func (w way) remove() error {
	pinned, err := isPinned(w.pin)
	if err != nil {
		return err
	}
	if pinned {
		space, err := netns.Open(w.pin)
		if err != nil {
			return err
		}
		err = space.Do(deleteTunnel)
		if err := errors.Join(err, space.Close(), unix.Unmount(w.pin, unix.MNT_DETACH)); err != nil {
			return fmt.Errorf("removing the way to other nodes: %w", err)
		}
	}
	if err := os.Remove(w.pin); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// isPinned reports whether a namespace is mounted on a file.
func isPinned(path string) (bool, error) {
	var stat unix.Statfs_t
	err := unix.Statfs(path, &stat)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return stat.Type == unix.NSFS_MAGIC, nil
}
