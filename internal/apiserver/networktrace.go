package apiserver

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/packettrace"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// traceInput is a packet on a network.
type traceInput struct {
	Name     string `path:"name" doc:"CLUSTER, CLUSTER:NETWORK, project/NETWORK or a UID; of another project PROJECT.CLUSTER or project/PROJECT.NETWORK"`
	From     string `query:"from" required:"true" minLength:"1" maxLength:"256" doc:"The sender's port on the network: CLUSTER/MEMBER, or its address; or an address outside of the site, with a floating address in to"`
	To       string `query:"to" required:"true" minLength:"1" maxLength:"256" doc:"The receiver's port on the network or on one that it is routed to: CLUSTER/MEMBER, or its address; a floating address; or an address outside of the site"`
	Protocol string `query:"protocol" enum:"tcp,udp,icmp,icmp6" default:"icmp" doc:"The protocol of the packet"`
	Port     int    `query:"port" minimum:"0" maximum:"65535" doc:"The destination port of TCP and UDP, which need one; the type of an ICMP message, echo request by default"`
}

// traceNetwork follows a packet by what nodes should have in force.
func (s *Server) traceNetwork(ctx context.Context, in *traceInput) (*body[api.NetworkTrace], error) {
	p, view := who(ctx), s.cfg.Reader.View()
	n, err := s.requestedNetwork(p, view, in.Name)
	if err != nil {
		return nil, err
	}
	if in.Protocol == string(securitygroup.ICMP) && in.Port == 0 && (isSix(in.From) || isSix(in.To)) {
		in.Protocol = string(securitygroup.ICMP6) // an echo request, of the family that the addresses are of
	}
	packet, err := tracedPacket(in)
	if err != nil {
		return nil, err
	}
	six, problem := in.isIPv6(packet)
	if problem == nil && six && !n.HasIPv6() {
		problem = &api.FieldProblem{Location: "query.to", Value: in.To, Message: "the packet is one of IPv6, which the network does not have"}
	}
	if problem != nil {
		return nil, failFields(codeInvalidRequest, *problem)
	}
	t := tracingOf{server: s, who: p, view: view, network: n, packet: packet, six: six}
	out, path, err := t.follow(in)
	if err != nil {
		return nil, err
	}
	out.Packet = packet.String()
	out.Passes, out.Answered = packettrace.Passes(path.Request), packettrace.Passes(path.Reply)
	out.Request, out.Reply = shownHops(path.Request), shownHops(path.Reply)
	return &body[api.NetworkTrace]{out}, nil
}

// isIPv6 reports whether the packet is one of IPv6: by its protocol, or by an address of an end. It returns what contradicts that.
func (in *traceInput) isIPv6(packet packettrace.Packet) (bool, *api.FieldProblem) {
	six, four := packet.Protocol == securitygroup.ICMP6, packet.Protocol == securitygroup.ICMP
	for _, end := range []string{in.From, in.To} {
		if a, err := netip.ParseAddr(end); err == nil {
			six, four = six || a.Is6(), four || a.Is4()
		}
	}
	if six && four {
		return false, &api.FieldProblem{
			Location: "query.protocol", Value: in.Protocol, Message: "the packet would be one of IPv4 and of IPv6: give addresses of one family, with icmp for IPv4 and icmp6 for IPv6",
		}
	}
	return six, nil
}

// isSix reports whether an end is an IPv6 address.
func isSix(end string) bool {
	a, err := netip.ParseAddr(end)
	return err == nil && a.Is6()
}

// tracedPacket reads the packet of a request.
func tracedPacket(in *traceInput) (packettrace.Packet, error) {
	const lastType = 255
	echoRequests := map[securitygroup.Protocol]uint16{securitygroup.ICMP: 8, securitygroup.ICMP6: 128}
	packet := packettrace.Packet{Protocol: securitygroup.Protocol(in.Protocol), Port: uint16(in.Port)}
	problem := ""
	echoRequest, isICMP := echoRequests[packet.Protocol]
	switch {
	case !isICMP && in.Port == 0:
		problem = fmt.Sprintf("is missing: %s needs a destination port", in.Protocol)
	case isICMP && in.Port > lastType:
		problem = "is not a type of ICMP messages: they end at 255"
	case isICMP && in.Port == 0:
		packet.Port = echoRequest
	}
	if problem != "" {
		return packet, failFields(codeInvalidRequest, api.FieldProblem{Location: "query.port", Value: fmt.Sprint(in.Port), Message: problem})
	}
	return packet, nil
}

func shownHops(hops []packettrace.Hop) []api.TraceHop {
	shown := make([]api.TraceHop, 0, len(hops))
	for _, h := range hops {
		shown = append(shown, api.TraceHop{Node: h.Node, Place: string(h.Place), Passes: h.Passes, Detail: h.Detail})
	}
	return shown
}
