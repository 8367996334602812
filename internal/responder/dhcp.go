package responder

import (
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/insomniacslk/dhcp/rfc1035label"
)

// leaseTime is long, so that a member outlasts an agent that is down: an address is the member's for its whole life, whatever the lease.
const leaseTime = 24 * time.Hour

// dhcp answers a message of a member (RFC 2131). It returns the answer and its IP address, nil for no answer.
//
// The port has one address, and its client's identifier does not matter. So nothing is stored, and a new agent answers like its predecessor.
func (s *subnet) dhcp(p port, payload []byte) (netip.Addr, []byte) {
	request, err := dhcpv4.FromBytes(payload)
	if err != nil || request.OpCode != dhcpv4.OpcodeBootRequest || request.HWType != iana.HWTypeEthernet {
		return netip.Addr{}, nil
	}
	if asker, ok := s.ports[request.ClientHWAddr.String()]; !ok || asker.ID != p.ID || !request.GatewayIPAddr.Equal(net.IPv4zero) {
		return netip.Addr{}, nil // for somebody else: members are no relays
	}
	reply := s.reply(p, request)
	if reply == nil {
		return netip.Addr{}, nil
	}
	return destination(request, reply), reply.ToBytes()
}

// reply decides the answer to a message, in each of the states of RFC 2131, section 4.3.
func (s *subnet) reply(p port, request *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	has := address(request.ClientIPAddr)
	switch request.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		return s.lease(dhcpv4.MessageTypeOffer, p, request)
	case dhcpv4.MessageTypeRequest:
		if id := request.ServerIdentifier(); id != nil && address(id) != s.Gateway {
			return nil // another server was chosen, which the rules keep from answering
		}
		wanted := has // RENEWING and REBINDING
		if requested := request.RequestedIPAddress(); requested != nil {
			wanted = address(requested) // SELECTING and INIT-REBOOT
		}
		if wanted != p.Address {
			return s.blank(dhcpv4.MessageTypeNak, request)
		}
		return s.lease(dhcpv4.MessageTypeAck, p, request)
	case dhcpv4.MessageTypeInform:
		if has != p.Address {
			return nil
		}
		reply := s.blank(dhcpv4.MessageTypeAck, request)
		s.addNetwork(reply, p)
		return reply
	default:
		return nil // RELEASE and DECLINE change nothing: the address stays the port's
	}
}

// destination is where an answer goes (RFC 2131, section 4.1). The frame goes to the member in any case.
func destination(request, reply *dhcpv4.DHCPv4) netip.Addr {
	switch has := address(request.ClientIPAddr); {
	case reply.MessageType() == dhcpv4.MessageTypeNak:
		return address(net.IPv4bcast)
	case !has.IsUnspecified():
		return has
	case request.IsBroadcast():
		return address(net.IPv4bcast)
	default:
		return address(reply.YourIPAddr)
	}
}

// blank is an answer without content.
func (s *subnet) blank(kind dhcpv4.MessageType, request *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	zero := net.IPv4zero.To4()
	r := &dhcpv4.DHCPv4{
		OpCode: dhcpv4.OpcodeBootReply, HWType: request.HWType, TransactionID: request.TransactionID, Flags: request.Flags,
		ClientHWAddr: request.ClientHWAddr, ClientIPAddr: zero, YourIPAddr: zero, ServerIPAddr: zero, GatewayIPAddr: zero, Options: dhcpv4.Options{},
	}
	r.UpdateOption(dhcpv4.OptMessageType(kind))
	r.UpdateOption(dhcpv4.OptServerIdentifier(s.Gateway.AsSlice()))
	if id := request.Options.Get(dhcpv4.OptionClientIdentifier); id != nil {
		r.Options.Update(dhcpv4.OptGeneric(dhcpv4.OptionClientIdentifier, id)) // RFC 6842
	}
	if kind == dhcpv4.MessageTypeAck {
		r.ClientIPAddr = request.ClientIPAddr
	}
	return r
}

// lease is an OFFER or ACK of the port's address.
func (s *subnet) lease(kind dhcpv4.MessageType, p port, request *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	r := s.blank(kind, request)
	r.YourIPAddr = p.Address.AsSlice()
	r.UpdateOption(dhcpv4.OptIPAddressLeaseTime(leaseTime))
	s.addNetwork(r, p)
	return r
}

// addNetwork adds the network, its routes and the names.
func (s *subnet) addNetwork(r *dhcpv4.DHCPv4, p port) {
	r.UpdateOption(dhcpv4.OptSubnetMask(net.CIDRMask(s.Prefix.Bits(), 32)))
	r.Options.Update(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, dhcpv4.Uint16(min(s.mtu, maxMTU)).ToBytes()))
	s.addRoutes(r, p)
	if p.Name != "" {
		r.UpdateOption(dhcpv4.OptHostName(p.Name))
	}
	if p.Names != nil {
		r.UpdateOption(dhcpv4.OptDNS(s.Gateway.AsSlice()))
		r.UpdateOption(dhcpv4.OptDomainName(p.Names.Search()[0]))
		r.UpdateOption(dhcpv4.OptDomainSearch(&rfc1035label.Labels{Labels: p.Names.Search()}))
	}
}

// addRoutes adds the routes. A router is named only where the member's way out is. Clients that know classless routes (RFC 3442) ignore the router,
// so the default route is among those, too.
func (s *subnet) addRoutes(r *dhcpv4.DHCPv4, p port) {
	var classless []*dhcpv4.Route
	for _, to := range p.Routes {
		if to.Bits() == 0 {
			r.UpdateOption(dhcpv4.OptRouter(s.Gateway.AsSlice()))
		}
		classless = append(classless, &dhcpv4.Route{
			Dest: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), 32)}, Router: s.Gateway.AsSlice(),
		})
	}
	if len(classless) > 0 {
		r.UpdateOption(dhcpv4.OptClasslessStaticRoute(classless...))
	}
}

// maxMTU is the largest number that the option has room for.
const maxMTU = 1<<16 - 1

// address is an IPv4 address as the library has it, 0.0.0.0 for none.
func address(ip net.IP) netip.Addr {
	a, ok := netip.AddrFromSlice(ip.To4())
	if !ok {
		return netip.IPv4Unspecified()
	}
	return a
}
