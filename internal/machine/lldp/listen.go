package lldp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
)

// The group addresses that LLDP is sent to (table 7-1).
var (
	nearestBridge    = [6]byte{0x01, 0x80, 0xc2, 0, 0, 0x0e}
	nearestNonTPMR   = [6]byte{0x01, 0x80, 0xc2, 0, 0, 0x03}
	nearestCustomer  = [6]byte{0x01, 0x80, 0xc2, 0, 0, 0x00}
	groups           = [][6]byte{nearestBridge, nearestNonTPMR, nearestCustomer}
	bigEndianLLDP    = uint16(EtherType>>8 | EtherType&0xff<<8)
	maxFrame         = 2048
	packetIgnoresOwn = 23 // PACKET_IGNORE_OUTGOING, linux/if_packet.h, since Linux 4.20
)

// Listen hears the neighbours of interfaces, which must be up, by the interface's name. It returns once all were heard from, or when wait or ctx ends;
// a neighbour that says nothing is not in the result. Interfaces that can't be listened to are joined in the error, the others are
// heard nevertheless. It needs CAP_NET_RAW.
//
// Some NICs (Intel's X700) have an LLDP agent in their firmware that swallows frames: ethtool --set-priv-flags NIC disable-fw-lldp on.
func Listen(ctx context.Context, interfaces []string, wait time.Duration) (map[string]api.Neighbor, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var mu sync.Mutex
	neighbors := map[string]api.Neighbor{}
	var problems []error
	var all sync.WaitGroup
	for _, name := range interfaces {
		file, err := announce(name) // here and not below: a socket belongs to the network namespace of the thread that opens it
		if err != nil {
			problems = append(problems, fmt.Errorf("listen for the neighbour of %s: %w", name, err))
			continue
		}
		all.Go(func() {
			defer file.Close()
			n, err := hear(ctx, file)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				neighbors[name] = n
			case !errors.Is(err, os.ErrDeadlineExceeded):
				problems = append(problems, fmt.Errorf("listen for the neighbour of %s: %w", name, err))
			}
		})
	}
	all.Wait()
	return neighbors, errors.Join(problems...)
}

// announce opens a socket on an interface and says there that someone listens.
func announce(name string) (*os.File, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	file, err := open(link)
	if err == nil && len(link.HardwareAddr) == 6 {
		_, _ = file.Write(announcement(link.HardwareAddr)) // unheard, the neighbour speaks in its own time
	}
	return file, err
}

// hear waits for the first neighbour.
func hear(ctx context.Context, file *os.File) (api.Neighbor, error) {
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	frame := make([]byte, maxFrame)
	for {
		n, err := file.Read(frame)
		if err != nil {
			return api.Neighbor{}, err
		}
		if neighbor, err := Parse(frame[:n]); err == nil {
			return neighbor, nil
		}
	}
}

// open opens a packet socket that hears LLDP on one interface, but not what this machine says itself.
func open(link *net.Interface) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // hears nothing until it is bound
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	file := os.NewFile(uintptr(fd), "lldp:"+link.Name)
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, packetIgnoresOwn, 1); err != nil {
		return nil, errors.Join(fmt.Errorf("ignore this machine's own frames: %w", err), file.Close())
	}
	for _, group := range groups {
		m := unix.PacketMreq{Ifindex: int32(link.Index), Type: unix.PACKET_MR_MULTICAST, Alen: 6}
		copy(m.Address[:], group[:])
		if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &m); err != nil {
			return nil, errors.Join(fmt.Errorf("join LLDP's group: %w", err), file.Close())
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndianLLDP, Ifindex: link.Index}); err != nil {
		return nil, errors.Join(fmt.Errorf("bind a packet socket: %w", err), file.Close())
	}
	return file, nil
}
