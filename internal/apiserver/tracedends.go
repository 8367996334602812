package apiserver

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/floating"
	"github.com/nearmetal/nearmetal/internal/packettrace"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// tracingOf is a trace that was asked for.
type tracingOf struct {
	server  *Server
	who     tenancy.Principal
	view    *state.View
	network *api.Network
	packet  packettrace.Packet
	six     bool
}

// follow finds both ends of a packet, and follows it.
func (t tracingOf) follow(in *traceInput) (out api.NetworkTrace, path packettrace.Path, err error) {
	out = api.NetworkTrace{From: in.From, To: in.To}
	leads := findAddress(t.who, t.view, in.To)
	from, found, err := t.find(t.network, in.From)
	if err == nil && !found {
		if outside, ok := t.outside(in.From); ok {
			path, err = t.followIn(outside, in, leads)
			return out, path, err
		}
		err = t.unknown(in.From, ", where the packet begins")
	}
	if err != nil {
		return out, path, err
	}
	sender, err := t.end(from, t.network)
	if err != nil {
		return out, path, err
	}
	out.From = sender.Member
	if leads != nil {
		path, err = t.followFloating(sender, in, leads)
		return out, path, err
	}
	out.To, path, err = t.followTo(sender, from, in)
	return out, path, err
}

// followTo follows a packet to a member, or out.
func (t tracingOf) followTo(sender packettrace.End, from networkPort, in *traceInput) (to string, path packettrace.Path, err error) {
	for _, n := range t.within() {
		port, found, err := t.find(n, in.To)
		if err != nil {
			return "", path, err
		}
		if !found {
			continue
		}
		if port.port.ID == from.port.ID {
			return "", path, failFields(codeInvalidRequest, api.FieldProblem{Location: "query.to", Value: in.To, Message: "is the port that the packet comes from; name another"})
		}
		receiver, err := t.end(port, n)
		if err != nil {
			return "", path, err
		}
		if err := t.sees(&sender, n); err != nil {
			return "", path, err
		}
		if err := t.sees(&receiver, t.network); err != nil {
			return "", path, err
		}
		if t.six {
			return receiver.Member, packettrace.Follow6(sender, receiver, t.packet), nil
		}
		return receiver.Member, packettrace.Follow(sender, receiver, t.packet), nil
	}
	address, err := netip.ParseAddr(in.To)
	if err != nil {
		return "", path, t.unknown(in.To, ", or on one that it is routed to")
	}
	for _, n := range t.within()[1:] {
		if n.Prefix.Contains(address) {
			if err := t.sees(&sender, n); err != nil {
				return "", path, err
			}
		}
	}
	return in.To, packettrace.FollowOut(sender, address, t.packet), nil
}

// followFloating follows a packet from a member to a floating address of the project.
func (t tracingOf) followFloating(sender packettrace.End, in *traceInput, leads *api.FloatingAddress) (path packettrace.Path, err error) {
	port, n, err := t.target(in, leads)
	if err != nil {
		return path, err
	}
	receiver, err := t.end(port, n)
	if err != nil {
		return path, err
	}
	return packettrace.FollowFloating(sender, receiver, leads.Address, t.packet), nil
}

// followIn follows a packet from outside to a floating address that leads to a member on the network.
func (t tracingOf) followIn(from netip.Addr, in *traceInput, leads *api.FloatingAddress) (path packettrace.Path, err error) {
	if leads == nil {
		return path, failFields(codeInvalidRequest, api.FieldProblem{Location: "query.to", Value: in.To, Message: fmt.Sprintf(
			"is no floating address of this project, and packets from outside (%v) reach members by those only; 'nearmetal address list' lists them", from)})
	}
	port, n, err := t.target(in, leads)
	if err != nil {
		return path, err
	}
	if n.UID != t.network.UID {
		return path, failFields(codeInvalidRequest, api.FieldProblem{Location: "query.to", Value: in.To, Message: fmt.Sprintf(
			"leads to a member on network %s; trace the packet on that network", t.shown(n))})
	}
	receiver, err := t.end(port, n)
	if err != nil {
		return path, err
	}
	return packettrace.FollowIn(from, receiver, leads.Address, t.packet), nil
}

// target returns the port that a floating address leads to.
func (t tracingOf) target(in *traceInput, leads *api.FloatingAddress) (networkPort, *api.Network, error) {
	if c := targetOf(t.view, leads); c != nil && seesCluster(t.who, c.Name()) {
		if a := findHeld(c, leads.Target.Member); a != nil && !a.Saved {
			if at := floating.WayOut(a, t.view.Network); at >= 0 {
				return networkPort{a, fabric.PortOf(a, at)}, t.view.Network(a.Ports[at].Network), nil
			}
		}
	}
	return networkPort{}, nil, failFields(codeInvalidRequest, api.FieldProblem{Location: "query.to", Value: in.To, Message: fmt.Sprintf(
		"leads to no member on a node now; see 'nearmetal address show %v'", leads.Address)})
}

// outside reads an address that no port of the network can have.
func (t tracingOf) outside(text string) (netip.Addr, bool) {
	address, err := netip.ParseAddr(text)
	return address, err == nil && address.Is4() && !t.network.Prefix.Contains(address) && t.elsewhere(text) == nil
}

// within returns the network, and the networks that packets are routed to from it.
func (t tracingOf) within() []*api.Network {
	all := []*api.Network{t.network}
	for _, n := range t.view.Networks {
		if fabric.Connected(*t.network, *n) {
			all = append(all, n)
		}
	}
	return all
}

// find finds a port on a network by CLUSTER/MEMBER or by its address, among those that the principal may know of.
func (t tracingOf) find(n *api.Network, name string) (networkPort, bool, error) {
	address, notAddress := netip.ParseAddr(name)
	cluster, member, isMember := strings.Cut(name, "/")
	full := ""
	if notAddress != nil {
		var err error
		if full, err = tenancy.Resolve(t.who, "", cluster); err != nil || !isMember || member == "" {
			return networkPort{}, false, fail(codeNoMember, "%q is neither CLUSTER/MEMBER nor an address", name)
		}
	}
	for p := range portsOnNetwork(t.view, n) {
		named := notAddress == nil && (p.port.Address == address || address.Is6() && n.Address6(p.port.Address) == address) || notAddress != nil && p.assignment.Cluster == full && p.assignment.Member == member
		if named && seesCluster(t.who, p.assignment.Cluster) {
			return p, true, nil
		}
	}
	return networkPort{}, false, nil
}

// elsewhere returns a network that has the port which the traced one lacks, or nil: one of a project rather than a cluster's own.
func (t tracingOf) elsewhere(name string) *api.Network {
	var other *api.Network
	for _, n := range t.view.Networks {
		if _, found, err := t.find(n, name); found && err == nil && (other == nil || n.OfProject()) {
			other = n
		}
	}
	return other
}

// unknown is the error of an end without a port where it has to be.
func (t tracingOf) unknown(name, where string) error {
	here := t.shown(t.network)
	if other := t.elsewhere(name); other != nil {
		return fail(codeNoMember, "%s has no port on network %q%s; it has one on %q", name, here, where, t.shown(other))
	}
	return fail(codeNoMember, "%s has no port on network %q; 'nearmetal network show' lists the ports", name, here)
}

// shown is the name of a network as the principal writes it.
func (t tracingOf) shown(n *api.Network) string {
	if own, ok := api.CutProjectNetwork(n.Name); ok {
		return api.ProjectNetwork(shownName(t.who, own))
	}
	return shownName(t.who, n.Name)
}

// end describes a port with its network as its node should have it.
func (t tracingOf) end(p networkPort, n *api.Network) (packettrace.End, error) {
	node := p.assignment.Node
	network, wanted, err := t.server.cfg.Networks.DesiredNetwork(node, n.Index)
	if err != nil {
		return packettrace.End{}, err
	}
	if !wanted {
		network = fabric.Network{Network: *n}
	}
	_, cluster := tenancy.Split(p.assignment.Cluster)
	return packettrace.End{
		Member: cluster + "/" + p.assignment.Member, Port: p.port, Node: node, Underlay: underlayOf(t.view, node), Network: network,
	}, nil
}

// sees adds to an end what its node should have of the network at the other end.
func (t tracingOf) sees(e *packettrace.End, other *api.Network) error {
	if other.Index == e.Network.Index {
		return nil
	}
	network, wanted, err := t.server.cfg.Networks.DesiredNetwork(e.Node, other.Index)
	if wanted {
		e.Beyond = network
	}
	return err
}
