// Package wol wakes machines by Wake-on-LAN and can do nothing else to their power.
//
// It sends the magic packet (AMD, "Magic Packet Technology", white paper 20213, 1995: six bytes FFh, then the MAC address sixteen times,
// anywhere in a frame) as a UDP broadcast to port 9 and as a raw Ethernet frame of type 0842h: some switches drop one, some NICs
// wake from the other only. Nothing answers a magic packet, so it must never say that a machine is on, or off. Start with Switch.
package wol

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
)

// EtherType of Wake-on-LAN frames.
const EtherType = 0x0842

// Port is the UDP port of magic packets, discard (RFC 863): nothing listens there.
const Port = 9

// Options are about where packets go out.
type Options struct {
	// Interface is the one on the provisioning network; empty: wherever the host's routes lead, and no raw frames.
	Interface string
	// Destination replaces 255.255.255.255, port 9.
	Destination netip.AddrPort
}

// Switch wakes one machine. It keeps the contract of power.Switch.
type Switch struct {
	name string
	macs []net.HardwareAddr
	o    Options
}

// New makes the switch of a machine with these MAC addresses.
func New(t power.Target, o Options) (*Switch, error) {
	s := &Switch{name: t.Name, o: o}
	if t.Control.Address != "" {
		return nil, fmt.Errorf("power of %q: kind wol takes no address; omit %q (the MAC addresses suffice)", t.Name, t.Control.Address)
	}
	if len(t.MACs) == 0 {
		return nil, fmt.Errorf("power of %q: kind wol needs a MAC address to wake", t.Name)
	}
	for _, text := range t.MACs {
		mac, err := net.ParseMAC(text)
		if err != nil || len(mac) != 6 {
			return nil, fmt.Errorf("power of %q: %q is not a MAC address like 52:54:00:12:34:56", t.Name, text)
		}
		s.macs = append(s.macs, mac)
	}
	if !s.o.Destination.IsValid() {
		s.o.Destination = netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), Port)
	}
	return s, nil
}

// Kind is api.PowerWakeOnLAN.
func (*Switch) Kind() api.PowerKind { return api.PowerWakeOnLAN }

// Abilities are none: it wakes, without knowing whether it did.
func (*Switch) Abilities() power.Abilities { return power.Abilities{} }

// Observe can't know.
func (*Switch) Observe(ctx context.Context) (api.PowerState, error) {
	return api.PowerUnknown, ctx.Err()
}

// Off can't be done. A machine that listens is asked in-band, by its agent.
func (*Switch) Off(context.Context) error { return errOff }

// Shutdown can't be done.
func (*Switch) Shutdown(context.Context) error { return errOff }

var errOff = fmt.Errorf("Wake-on-LAN can't switch a machine off; only its node agent can, or its power button: %w", power.ErrCannot)

// On sends the magic packet of each MAC address both ways. It fails if some machine's packet could be sent in no way.
func (s *Switch) On(ctx context.Context, _ power.BootDevice) error {
	for _, mac := range s.macs {
		if err := ctx.Err(); err != nil {
			return err
		}
		udp := s.sendUDP(ctx, mac)
		raw := s.sendRaw(mac)
		if udp != nil && raw != nil {
			return fmt.Errorf("wake %q (%s): by UDP: %w; by raw frame: %w", s.name, mac, udp, raw)
		}
	}
	return nil
}

// Packet is the magic packet of a MAC address.
func Packet(mac net.HardwareAddr) []byte {
	return append(bytes.Repeat([]byte{0xff}, 6), bytes.Repeat(mac, 16)...)
}

func (s *Switch) sendUDP(ctx context.Context, mac net.HardwareAddr) error {
	config := net.ListenConfig{Control: s.bind}
	conn, err := config.ListenPacket(ctx, "udp4", ":0")
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.WriteTo(Packet(mac), net.UDPAddrFromAddrPort(s.o.Destination))
	return err
}

// bind makes a socket's packets leave by the interface, whatever the routes say: the route of 255.255.255.255 is most often another's.
func (s *Switch) bind(_, _ string, raw syscall.RawConn) error {
	if s.o.Interface == "" {
		return nil
	}
	var bound error
	err := raw.Control(func(fd uintptr) { bound = unix.BindToDevice(int(fd), s.o.Interface) })
	return errors.Join(err, os.NewSyscallError("bind to "+s.o.Interface, bound))
}

// errNoInterface is why no raw frame is sent.
var errNoInterface = errors.New("no interface is configured")

func (s *Switch) sendRaw(mac net.HardwareAddr) error {
	if s.o.Interface == "" {
		return errNoInterface
	}
	ifi, err := net.InterfaceByName(s.o.Interface)
	if err != nil {
		return fmt.Errorf("interface %s: %w", strings.TrimSpace(s.o.Interface), err)
	}
	conn, err := packet.Listen(ifi, packet.Raw, EtherType, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	frame := append(append([]byte{}, broadcast...), ifi.HardwareAddr...)
	frame = append(frame, EtherType>>8, EtherType&0xff)
	_, err = conn.WriteTo(append(frame, Packet(mac)...), &packet.Addr{HardwareAddr: broadcast})
	return err
}
