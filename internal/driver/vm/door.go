package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// Hosts are kept out of tenants' networks, and a guest without an agent has no other way in. A door is one past the network: a namespace of its
// own whose only link hands its frames to the guest's TAP device directly, and takes the guest's from there. It has the address of the network's
// gateway, which no member has. Nothing listens in it, and no frame of it gets to the bridge. It takes no UDP from the guest: the node answers DHCP
// and DNS at that address, and the door's stack would refuse them.

// doorLink is the link in a door's namespace.
const doorLink = "door"

// doorFrame is more than a frame of any kind has: a virtio_net_hdr, and up to 64 KiB that are sent as one.
const doorFrame = 70 << 10

// door is open while somebody uses it. Two at one guest would answer each other's connections, so that all share one.
type door struct {
	space netns.Handle
	// link is the namespace's end, guest a packet socket on the guest's device.
	link, guest *os.File
	users       int
	pumps       sync.WaitGroup
}

// doors are the open ones, by member.
type doors struct {
	mu   sync.Mutex
	open map[string]*door
}

// doorAddress is where a door is in a network: the gateway's address and MAC.
type doorAddress struct {
	address netip.Prefix
	mac     string
}

// use opens the door to a guest, or shares the one that is open. The caller closes it.
func (d *doors) use(id, device string, at doorAddress) (*door, func(), error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	opened := d.open[id]
	if opened == nil {
		var err error
		if opened, err = openDoor(device, at); err != nil {
			return nil, nil, fmt.Errorf("opening a way to the guest: %w", err)
		}
		if d.open == nil {
			d.open = map[string]*door{}
		}
		d.open[id] = opened
	}
	opened.users++
	return opened, sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if opened.users--; opened.users == 0 {
			delete(d.open, id)
			opened.close()
		}
	}), nil
}

// openDoor opens a door to the guest on a device of the calling thread's namespace.
func openDoor(device string, at doorAddress) (_ *door, err error) {
	d := &door{}
	if d.space, err = netns.New(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	link, err := net.InterfaceByName(device)
	if err != nil {
		return nil, err
	}
	if d.guest, err = packetSocket(link.Index); err != nil {
		return nil, fmt.Errorf("a packet socket on %s: %w", device, err)
	}
	if err = d.space.Do(func() (err error) {
		d.link, err = doorTAP(at, link.MTU)
		return err
	}); err != nil {
		return nil, fmt.Errorf("a link beside %s: %w", device, err)
	}
	d.pumps.Go(func() { pump(d.guest, d.link) })
	d.pumps.Go(func() { pump(d.link, d.guest) })
	return d, nil
}

// noUDP drops IPv4 packets with UDP.
var noUDP = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 12, Size: 2}, // EtherType
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IP, SkipTrue: 3},
	bpf.LoadAbsolute{Off: 23, Size: 1}, // protocol
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: 1},
	bpf.RetConstant{Val: 0},
	bpf.RetConstant{Val: doorFrame},
}

// attach has the kernel filter what a socket gets.
func attach(fd int, filter []bpf.Instruction) error {
	assembled, err := bpf.Assemble(filter)
	if err != nil {
		return err
	}
	instructions := make([]unix.SockFilter, len(assembled))
	for i, raw := range assembled {
		instructions[i] = unix.SockFilter{Code: raw.Op, Jt: raw.Jt, Jf: raw.Jf, K: raw.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(instructions)), Filter: &instructions[0]})
}

// packetSocket sends to a guest, and gets what comes from it and nothing else (packet(7)). Offloading's headers stand before frames, so that a
// frame is never sent half done.
func packetSocket(index int) (*os.File, error) {
	const allFrames = 0x0300 // ETH_P_ALL in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1), unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1), attach(fd, noUDP),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: allFrames, Ifindex: index}),
	)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "packets"), nil
}

// doorTAP makes the link of a door in the calling thread's namespace.
func doorTAP(at doorAddress, mtu int) (*os.File, error) {
	mac, err := net.ParseMAC(at.mac)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(doorLink)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	file := os.NewFile(uintptr(fd), doorLink)
	link, err := netlink.LinkByName(doorLink)
	if err == nil {
		address := &netlink.Addr{IPNet: &net.IPNet{IP: at.address.Addr().AsSlice(), Mask: net.CIDRMask(at.address.Bits(), at.address.Addr().BitLen())}}
		err = errors.Join(netlink.LinkSetHardwareAddr(link, mac), netlink.LinkSetMTU(link, mtu), netlink.AddrAdd(link, address), netlink.LinkSetUp(link))
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// pump passes frames on until either end is closed. One that can't be passed on is lost, as on any network.
func pump(from io.Reader, to io.Writer) {
	frame := make([]byte, doorFrame)
	for {
		n, err := from.Read(frame)
		if err != nil && (errors.Is(err, os.ErrClosed) || !errors.Is(err, unix.ENETDOWN)) {
			return
		}
		if n > 0 {
			_, _ = to.Write(frame[:n])
		}
	}
}

func (d *door) close() {
	for _, f := range []*os.File{d.link, d.guest} {
		if f != nil {
			_ = f.Close()
		}
	}
	d.pumps.Wait()
	_ = d.space.Close()
}

// dial connects to a TCP port of the guest.
func (d *door) dial(ctx context.Context, to netip.AddrPort) (conn net.Conn, err error) {
	err = d.space.Do(func() (err error) {
		// A single numeric address is connected to on this very thread, which is what is in the namespace.
		var dialer net.Dialer
		conn, err = dialer.DialContext(ctx, "tcp4", to.String())
		return err
	})
	return conn, err
}

// packets opens a socket for ICMP.
func (d *door) packets() (conn net.PacketConn, err error) {
	err = d.space.Do(func() (err error) {
		conn, err = net.ListenPacket("ip4:icmp", "0.0.0.0")
		return err
	})
	return conn, err
}

// throughDoor closes the door with the connection.
type throughDoor struct {
	net.Conn
	shut func()
}

func (c throughDoor) Close() error {
	defer c.shut()
	return c.Conn.Close()
}

// CloseWrite ends what is sent, as ends of tunnels do.
func (c throughDoor) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Conn.Close()
}
