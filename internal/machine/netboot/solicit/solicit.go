// Package solicit answers IPv6 router solicitations on the provisioning network: there is no router.
//
// iPXE configures IPv6 beside IPv4 and waits for a router before it goes on, 16 seconds where none answers. A router advertisement with
// lifetime 0 and no prefix (RFC 4861, section 4.2: not a default router) says at once that there is nothing to wait for; other hosts take
// nothing from it. It must never announce a prefix or a route. Start with Open.
package solicit

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/net/ipv6"
)

// Types of messages (RFC 4861, sections 4.1 and 4.2).
const (
	routerSolicitation  = 133
	routerAdvertisement = 134
)

// optionSourceLink is the source link-layer address (RFC 4861, section 4.6.1).
const optionSourceLink = 1

// Advertisement is the answer to a solicitation, without its checksum, which the kernel fills in: hop limit unspecified, neither managed
// nor other configuration, router lifetime 0, timers unspecified, and the sender's link-layer address.
func Advertisement(mac net.HardwareAddr) []byte {
	message := make([]byte, 16, 24)
	message[0] = routerAdvertisement
	if len(mac) == 6 {
		message = append(message, optionSourceLink, 1) // length in units of 8 bytes
		message = append(message, mac...)
	}
	return message
}

// Responder answers on one interface.
type Responder struct {
	conn    net.PacketConn
	packets *ipv6.PacketConn
	link    *net.Interface
}

// Open joins the routers' group on an interface. It needs CAP_NET_RAW, and an error is no reason not to serve: boots only take longer.
func Open(name string) (*Responder, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("answer router solicitations on %s: %w", name, err)
	}
	conn, err := net.ListenPacket("ip6:ipv6-icmp", "::")
	if err != nil {
		return nil, fmt.Errorf("answer router solicitations on %s: %w", name, err)
	}
	r := &Responder{conn: conn, packets: ipv6.NewPacketConn(conn), link: link}
	if err := r.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("answer router solicitations on %s: %w", name, err), conn.Close())
	}
	return r, nil
}

func (r *Responder) open() error {
	filter := &ipv6.ICMPFilter{}
	filter.SetAll(true)
	filter.Accept(ipv6.ICMPTypeRouterSolicitation)
	return errors.Join(
		r.packets.SetICMPFilter(filter),
		r.packets.JoinGroup(r.link, &net.UDPAddr{IP: net.IPv6linklocalallrouters}),
		r.packets.SetControlMessage(ipv6.FlagInterface|ipv6.FlagHopLimit, true),
		r.packets.SetChecksum(true, 2), // RFC 4443, section 2.3
		// A receiver drops neighbour discovery that may have come through a router (RFC 4861, section 6.1.2).
		r.packets.SetMulticastHopLimit(hopLimit), r.packets.SetHopLimit(hopLimit),
	)
}

const hopLimit = 255

// Run answers until ctx ends.
func (r *Responder) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = r.conn.Close() })
	defer stop()
	answer := Advertisement(r.link.HardwareAddr)
	buffer := make([]byte, 1500)
	for {
		n, control, from, err := r.packets.ReadFrom(buffer)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("router solicitations on %s: %w", r.link.Name, err)
		}
		if !solicits(buffer[:n], control, r.link.Index) {
			continue
		}
		to := from
		if address, ok := from.(*net.IPAddr); !ok || address.IP.IsUnspecified() {
			to = &net.IPAddr{IP: net.IPv6linklocalallnodes, Zone: r.link.Name}
		}
		// A machine that gets no answer asks again.
		_, _ = r.packets.WriteTo(answer, &ipv6.ControlMessage{IfIndex: r.link.Index}, to)
	}
}

// solicits tells a router solicitation that came from a machine on this very link.
func solicits(message []byte, control *ipv6.ControlMessage, index int) bool {
	return len(message) >= 8 && message[0] == routerSolicitation && message[1] == 0 &&
		control != nil && control.IfIndex == index && control.HopLimit == hopLimit
}
