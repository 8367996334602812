// Package dhcp answers DHCP for machines that boot over the network: with addresses on a network of its own, or as ProxyDHCP beside another
// server (PXE 2.1, section 2.2).
//
// What to answer is decided purely, in Answer; Server holds the sockets and carries it out. A stranger's lease is durable before it is
// offered; a known machine's address comes from the table and is never stored. Start with Answer.
package dhcp

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/loaders"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/presence"
)

// Ports of DHCP (RFC 2131, section 4.1) and of PXE boot servers (PXE 2.1, section 2.2.1).
const (
	ServerPort = 67
	ClientPort = 68
	ProxyPort  = 4011
)

// View is what a packet is answered from.
type View struct {
	Network netboot.Network
	Table   *netboot.Table
	Pool    *Pool
	Loaders loaders.Set
	// Holder tells who was last given an address.
	Holder func(netip.Addr) (mac string, ok bool)
}

// Decision is what a packet leads to. What is to be stored comes before the reply.
type Decision struct {
	// Reply is nil when nothing is to be said.
	Reply *dhcpv4.DHCPv4
	// Keep is a lease to store before the reply goes out; Drop is the MAC whose stored lease has ended.
	Keep *api.Lease
	Drop string
	// Declined is an address that a client found somebody else on.
	Declined netip.Addr
	// MAC is the client's; Address is what it has from now on, when it does.
	MAC     string
	Address netip.Addr
	Heard   *presence.Heard
	// Asked: the client requested its address; it was not only offered.
	Asked bool
	// Problem is for operators.
	Problem string
}

// Answer decides what a packet that came to a port leads to.
func Answer(request *dhcpv4.DHCPv4, port uint16, v View, now time.Time) Decision {
	if request.OpCode != dhcpv4.OpcodeBootRequest {
		return Decision{}
	}
	c, ok := classify(request)
	if !ok {
		return Decision{}
	}
	q := question{request: request, client: c, view: v, now: now}
	q.machine = v.Table.Machines[c.mac]
	q.boot, _ = presence.BootOf(v.Table, c.mac)
	if q.machine == nil && q.boot == nil {
		return Decision{} // strangers are not answered
	}
	var d Decision
	if v.Network.Proxy {
		d = q.proxy(port)
	} else if port == ServerPort {
		d = q.own()
	}
	d.MAC = c.mac
	if d.Reply != nil && d.Reply.MessageType() != dhcpv4.MessageTypeNak {
		d.Heard = &presence.Heard{
			MAC: c.mac, Port: c.port, Netboot: c.kind != system, Loader: c.kind == iPXE,
			Discover: request.MessageType() == dhcpv4.MessageTypeDiscover,
		}
		if c.known {
			d.Heard.Firmware, d.Heard.Architecture = c.arch.Firmware, c.arch.Name
		}
	}
	return d
}

// question is one request with what is known about it.
type question struct {
	request *dhcpv4.DHCPv4
	client  client
	view    View
	now     time.Time
	machine *netboot.Machine // nil: a stranger
	boot    *netboot.Boot    // nil: not meant to boot
}

// own answers on a network whose addresses are ours.
func (q *question) own() Decision {
	network := q.view.Network
	relay, relayed := address(q.request.GatewayIPAddr)
	if relayed && !network.Address.Masked().Contains(relay) {
		return Decision{Problem: fmt.Sprintf("%s asks through the relay %s, which is outside the provisioning network %s; its addresses don't work there",
			q.who(), relay, network.Address.Masked())}
	}
	switch q.request.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		return q.offer()
	case dhcpv4.MessageTypeRequest:
		return q.acknowledge()
	case dhcpv4.MessageTypeDecline:
		return q.declined()
	case dhcpv4.MessageTypeRelease:
		return q.released()
	case dhcpv4.MessageTypeInform:
		d := q.reply(dhcpv4.MessageTypeAck, netip.Addr{})
		if a, ok := address(q.request.ClientIPAddr); ok && q.gave(a) {
			d.Address = a
		}
		return d
	default:
		return Decision{}
	}
}

// gave reports whether an address is what this server gives the client. Any other that it says it has may be somebody else's, who would be
// taken for gone, and not be given its boot script any more.
func (q *question) gave(a netip.Addr) bool {
	lease, leased := q.view.Pool.Of(q.client.mac, q.now)
	return q.machine != nil && q.machine.Address == a || leased && lease.Address == a
}

// who names the client for people.
func (q *question) who() string {
	if q.machine != nil {
		return fmt.Sprintf("machine %q (%s)", q.machine.Name, q.client.mac)
	}
	return "unknown machine " + q.client.mac
}

// forUs reports whether a packet names no server, or this one (option 54, RFC 2132): another one's are its own business.
func (q *question) forUs() bool {
	id := q.request.ServerIdentifier()
	return id == nil || id.Equal(q.view.Network.Address.Addr().AsSlice())
}

// offer answers a DISCOVER.
func (q *question) offer() Decision {
	if q.machine != nil {
		if q.siblingHolds() {
			return Decision{}
		}
		d := q.reply(dhcpv4.MessageTypeOffer, q.machine.Address)
		if _, leased := q.view.Pool.Of(q.client.mac, q.now); leased {
			d.Drop = q.client.mac // it was a stranger in its last boot
		}
		return d
	}
	wanted, _ := address(q.request.RequestedIPAddress())
	lease, err := q.view.Pool.Choose(q.client.mac, wanted, q.now)
	if err != nil {
		return Decision{Problem: fmt.Sprintf("%s gets no address: %v", q.who(), err)}
	}
	d := q.reply(dhcpv4.MessageTypeOffer, lease.Address)
	d.Keep = q.extend(lease)
	if last := q.view.Pool.Holder(lease.Address); last != "" && last != q.client.mac {
		d.Drop = last // expired, or never asked for
	}
	return d
}

// siblingHolds reports whether an operating system asks with one NIC of a machine while another one of the same machine has its address.
// Firmware takes the address over: it tries its NICs one after the other.
func (q *question) siblingHolds() bool {
	holder, ok := q.view.Holder(q.machine.Address)
	if !ok || holder == q.client.mac || q.client.kind != system {
		return false
	}
	sibling := q.view.Table.Machines[holder]
	return sibling != nil && sibling.Name == q.machine.Name
}

// extend is the lease to store: nil while the stored one is good for half of the time to come.
func (q *question) extend(lease api.Lease) *api.Lease {
	stored, ok := q.view.Pool.Of(q.client.mac, q.now)
	if ok && stored.Address == lease.Address && stored.ExpiresAt.Sub(q.now) > leaseTime/2 {
		return nil
	}
	return &lease
}

// acknowledge answers a REQUEST, in each of the states of RFC 2131, section 4.3.2.
func (q *question) acknowledge() Decision {
	if !q.forUs() {
		return Decision{}
	}
	wanted, selecting := address(q.request.RequestedIPAddress())
	if !selecting {
		wanted, _ = address(q.request.ClientIPAddr) // RENEWING and REBINDING
	}
	if !wanted.IsValid() {
		return Decision{}
	}
	lease, leased := q.view.Pool.Of(q.client.mac, q.now)
	switch {
	case q.machine != nil && wanted == q.machine.Address:
		if q.siblingHolds() {
			return Decision{}
		}
		d := q.reply(dhcpv4.MessageTypeAck, wanted)
		d.Address = wanted
		return d
	case leased && wanted == lease.Address && (q.machine == nil || !selecting):
		// A machine taken in while it runs keeps its stranger's address until it boots again: one boot uses one lease.
		lease.ExpiresAt = q.now.Add(leaseTime)
		d := q.reply(dhcpv4.MessageTypeAck, wanted)
		d.Keep, d.Address, d.Asked = q.extend(lease), wanted, true
		return d
	default:
		return Decision{Reply: q.refusal()}
	}
}

// declined takes an address out of use that the client found somebody else on.
func (q *question) declined() Decision {
	a, ok := address(q.request.RequestedIPAddress())
	lease, leased := q.view.Pool.Of(q.client.mac, q.now)
	stranger := leased && lease.Address == a
	if !ok || !q.forUs() || !stranger && (q.machine == nil || q.machine.Address != a) {
		return Decision{} // not an address it was given: from an earlier life, or made up
	}
	d := Decision{Problem: fmt.Sprintf("%s found another machine on its address %s; change that machine's address, or remove it from the network",
		q.who(), a)}
	if stranger {
		d.Declined, d.Drop = a, q.client.mac
	}
	return d
}

// released ends a stranger's lease if it is the present one.
func (q *question) released() Decision {
	a, ok := address(q.request.ClientIPAddr)
	lease, leased := q.view.Pool.Of(q.client.mac, q.now)
	if !ok || !q.forUs() || !leased || lease.Address != a {
		return Decision{}
	}
	return Decision{Drop: q.client.mac}
}

// proxy tells what to boot beside another server that gives the addresses.
func (q *question) proxy(port uint16) Decision {
	kind := q.request.MessageType()
	if port == ServerPort && kind == dhcpv4.MessageTypeRequest {
		// The client accepts another server's offer, by broadcast: so we learn its address.
		a, ok := address(q.request.RequestedIPAddress())
		if !ok {
			a, _ = address(q.request.ClientIPAddr)
		}
		return Decision{Address: a}
	}
	if q.client.kind == system {
		return Decision{}
	}
	switch {
	case port == ServerPort && kind == dhcpv4.MessageTypeDiscover:
		return q.reply(dhcpv4.MessageTypeOffer, netip.Addr{})
	case port == ProxyPort && (kind == dhcpv4.MessageTypeRequest || kind == dhcpv4.MessageTypeInform):
		if !q.forUs() {
			return Decision{}
		}
		d := q.reply(dhcpv4.MessageTypeAck, netip.Addr{})
		d.Address, _ = address(q.request.ClientIPAddr)
		return d
	default:
		return Decision{}
	}
}

// address is an IPv4 address of a packet; false for none and 0.0.0.0.
func address(ip []byte) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	a = a.Unmap()
	return a, ok && a.Is4() && !a.IsUnspecified()
}
