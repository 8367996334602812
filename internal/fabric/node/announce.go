package node

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// announce broadcasts an ARP announcement (RFC 5227, section 2.3) from a member, in the member's network namespace. An address may
// have been that of a former member on another node, and bridges and tunnels remember for minutes where its MAC address was
// heard last: until the new one speaks, frames to it would go there. A member may well say nothing before it is spoken to.
func announce(pair veth, addresses6 []netip.Addr) error {
	link, err := netlink.LinkByName(pair.inside)
	if err != nil {
		return err
	}
	frames := append([][]byte{announcement(pair.mac, pair.address)}, announcements6(pair.mac, addresses6)...)
	return sendOn(link.Attrs().Index, pair.mac, frames...)
}

// announceOn broadcasts an ARP announcement from a link of the thread's network namespace.
func announceOn(index int, mac net.HardwareAddr, address netip.Addr) error {
	return sendOn(index, mac, announcement(mac, address))
}

// sendOn sends frames from a link of the thread's network namespace.
func sendOn(index int, mac net.HardwareAddr, frames ...[]byte) error {
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // protocol 0: nothing is received
	if err != nil {
		return err
	}
	// The kernel waits for a grace period of RCU, 10 ms and more, while a packet socket is closed. The frame is sent by then.
	defer func() { go func() { _ = unix.Close(socket) }() }()
	to := &unix.SockaddrLinklayer{Ifindex: index, Halen: uint8(len(mac))}
	for _, frame := range frames {
		if err := unix.Sendto(socket, frame, 0, to); err != nil {
			return err
		}
	}
	return nil
}

// announcement is the frame: a request for the sender's own address (RFC 826).
func announcement(mac net.HardwareAddr, own netip.Addr) []byte {
	const (
		ethernetHardware = 1
		request          = 1
	)
	address := own.AsSlice()
	frame := slices.Concat([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac)
	frame = binary.BigEndian.AppendUint16(frame, unix.ETH_P_ARP)
	frame = binary.BigEndian.AppendUint16(frame, ethernetHardware)
	frame = binary.BigEndian.AppendUint16(frame, unix.ETH_P_IP)
	frame = append(frame, byte(len(mac)), byte(len(address)))
	frame = binary.BigEndian.AppendUint16(frame, request)
	return slices.Concat(frame, mac, address, make([]byte, len(mac)), address)
}
