package apiserver

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/packettrace"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// traceInput is a packet on a network.
type traceInput struct {
	Name     string `path:"name" doc:"CLUSTER, CLUSTER:NETWORK, project/NETWORK or a UID; of another project PROJECT.CLUSTER or project/PROJECT.NETWORK"`
	From     string `query:"from" required:"true" minLength:"1" maxLength:"256" doc:"The sender's port: CLUSTER/MEMBER, or its address on the network"`
	To       string `query:"to" required:"true" minLength:"1" maxLength:"256" doc:"The receiver's port: CLUSTER/MEMBER, or an address"`
	Protocol string `query:"protocol" enum:"tcp,udp,icmp,icmp6" default:"icmp" doc:"The protocol of the packet"`
	Port     int    `query:"port" minimum:"0" maximum:"65535" doc:"The destination port of TCP and UDP, which need one; the type of an ICMP message, echo request by default"`
}

// tracing is a trace that was asked for.
type tracingOf struct {
	server  *Server
	who     tenancy.Principal
	view    *state.View
	network *api.Network
}

// traceNetwork follows a packet between two ports of a network, by what their nodes should have in force.
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
	t := tracingOf{s, p, view, n}
	from, err := t.end(in.From)
	if err != nil {
		return nil, err
	}
	out := api.NetworkTrace{From: from.Member, To: in.To, Packet: packet.String()}
	var path packettrace.Path
	to, err := t.end(in.To)
	address, notAddress := netip.ParseAddr(in.To)
	six, problem := in.isIPv6(packet)
	switch {
	case problem != nil:
		return nil, failFields(codeInvalidRequest, *problem)
	case six && !n.HasIPv6():
		return nil, failFields(codeInvalidRequest, api.FieldProblem{Location: "query.to", Value: in.To, Message: "the packet is one of IPv6, which the network does not have"})
	case err == nil && to.Port.ID == from.Port.ID:
		return nil, failFields(codeInvalidRequest, api.FieldProblem{Location: "query.to", Value: in.To, Message: "is the port that the packet comes from; name another"})
	case err == nil:
		out.To, path = to.Member, packettrace.Follow(from, to, packet)
		if six {
			path = packettrace.Follow6(from, to, packet)
		}
	case notAddress == nil && address.Is6() == six:
		path = packettrace.FollowOut(from, address, packet)
	default:
		return nil, err
	}
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

// end finds a port by CLUSTER/MEMBER or by its address, among those that the principal may know of.
func (t tracingOf) end(name string) (packettrace.End, error) {
	address, notAddress := netip.ParseAddr(name)
	cluster, member, isMember := strings.Cut(name, "/")
	full := ""
	if notAddress != nil {
		var err error
		if full, err = tenancy.Resolve(t.who, "", cluster); err != nil || !isMember || member == "" {
			return packettrace.End{}, fail(codeNoMember, "%q is neither CLUSTER/MEMBER nor an address", name)
		}
	}
	for p := range portsOnNetwork(t.view, t.network) {
		named := notAddress == nil && (p.port.Address == address || address.Is6() && t.network.Address6(p.port.Address) == address) || notAddress != nil && p.assignment.Cluster == full && p.assignment.Member == member
		if named && seesCluster(t.who, p.assignment.Cluster) {
			return t.endOf(p)
		}
	}
	return packettrace.End{}, fail(codeNoMember, "%s has no port on network %q; 'nearmetal network show' lists the ports", name, t.network.Name)
}

// endOf describes a port with the network as its node should have it.
func (t tracingOf) endOf(p networkPort) (packettrace.End, error) {
	node := p.assignment.Node
	network, wanted, err := t.server.cfg.Networks.DesiredNetwork(node, t.network.Index)
	if err != nil {
		return packettrace.End{}, err
	}
	if !wanted {
		network = fabric.Network{Network: *t.network}
	}
	underlay := underlayOf(t.view, node)
	_, cluster := tenancy.Split(p.assignment.Cluster)
	return packettrace.End{Member: cluster + "/" + p.assignment.Member, Port: p.port, Node: node, Underlay: underlay, Network: network}, nil
}

func shownHops(hops []packettrace.Hop) []api.TraceHop {
	shown := make([]api.TraceHop, 0, len(hops))
	for _, h := range hops {
		shown = append(shown, api.TraceHop{Node: h.Node, Place: string(h.Place), Passes: h.Passes, Detail: h.Detail})
	}
	return shown
}
