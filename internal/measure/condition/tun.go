package condition

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// headerBytes is what precedes each packet at a TUN device: the header of virtio 0.9.5, section 2.3.6 of its appendix C (struct virtio_net_hdr).
const headerBytes = 10

// largestPacketBytes is the largest that the kernel hands over, several packets of a TCP stream as one.
const largestPacketBytes = 65536

// addrGenNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h.
const addrGenNone = 1

// End is one side of a link: a device of this name in a namespace, with this address in this network, if it has one.
type End struct {
	Space   netns.Handle
	Name    string
	Address netip.Prefix
}

// ErrNoTUN reports that the kernel makes no TUN devices.
var ErrNoTUN = errors.New("this kernel makes no TUN devices; run: modprobe tun")

// open makes the device and returns it as a descriptor that does not block. The device lasts as long as that is open.
func (e End) open(mtu int) (int, error) {
	fd := -1
	err := e.Space.Do(func() (err error) {
		fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%w (%w)", ErrNoTUN, err)
		}
		request, err := unix.NewIfreq(e.Name)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return fmt.Errorf("making TUN device %s: %w", e.Name, err)
		}
		return e.setUp(mtu)
	})
	if err != nil && fd >= 0 {
		err = errors.Join(err, unix.Close(fd))
	}
	return fd, err
}

func (e End) setUp(mtu int) error {
	link, err := netlink.LinkByName(e.Name)
	if err != nil {
		return err
	}
	// Without addresses of its own for IPv6: the kernel's own packets would be counted.
	if err := errors.Join(netlink.LinkSetMTU(link, mtu), netlink.LinkSetTxQLen(link, 1000), netlink.LinkSetIP6AddrGenMode(link, addrGenNone)); err != nil {
		return err
	}
	if !e.Address.IsValid() {
		return netlink.LinkSetUp(link)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: e.Address.Addr().AsSlice(), Mask: net.CIDRMask(e.Address.Bits(), e.Address.Addr().BitLen())}}
	if e.Address.Addr().Is6() {
		address.Flags = unix.IFA_F_NODAD // nobody else can be at the other end
	}
	return errors.Join(netlink.AddrReplace(link, address), netlink.LinkSetUp(link))
}

// offer says what the kernel may leave to whom gets packets of the device. Where a bit of them is to turn over, checksums must be in them.
func offer(fd int, c Condition) error {
	offloads := 0
	if c.Corrupt == 0 {
		offloads = unix.TUN_F_CSUM
		if c.whole() {
			offloads |= unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN
		}
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloads); err != nil {
		return fmt.Errorf("setting the offloads of a TUN device: %w", err)
	}
	return nil
}

// onWire is how many packets, of how many bytes in all, one from the device is.
func onWire(framed []byte) (packets, bytes int) {
	bytes = len(framed) - headerBytes
	header, payload := int(binary.NativeEndian.Uint16(framed[2:])), int(binary.NativeEndian.Uint16(framed[4:]))
	if kind := framed[1]; kind == unix.VIRTIO_NET_HDR_GSO_NONE || payload == 0 || header >= bytes {
		return 1, bytes
	}
	packets = (bytes - header + payload - 1) / payload
	return packets, bytes + (packets-1)*header
}
