package sim

import (
	"net/netip"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/store"
)

// prefixAddress is that of internal/state/keys.go.
const prefixAddress = "address/"

// addresses are the floating addresses that are stored, and were.
type addresses struct {
	now map[netip.Addr]*api.FloatingAddress
	was map[netip.Addr][]addressAt
	// given are the holders that gave theirs back. A holder is the user of one allocation.
	given map[string]bool
	// led are the assignments that addresses led to last on some node.
	led map[ledSince]string
}

// ledSince is one assignment of an address to a member.
type ledSince struct {
	address    netip.Addr
	clusterUID string
	since      int64
}

// addressAt is an address since a revision; nil: nobody holds it.
type addressAt struct {
	revision int64
	address  *api.FloatingAddress
}

func newAddresses() addresses {
	return addresses{
		now: map[netip.Addr]*api.FloatingAddress{}, was: map[netip.Addr][]addressAt{}, given: map[string]bool{}, led: map[ledSince]string{},
	}
}

// at is an address as it was at a revision.
func (s *addresses) at(address netip.Addr, revision int64) *api.FloatingAddress {
	for _, was := range slices.Backward(s.was[address]) {
		if was.revision <= revision {
			return was.address
		}
	}
	return nil
}

// putAddress takes in a write, and checks that an address stays its holder's until that releases it.
func (m *mirror) putAddress(op store.Op) {
	address, err := netip.ParseAddr(op.Key[len(prefixAddress):])
	m.w.must(err)
	before, next := m.addresses.now[address], (*api.FloatingAddress)(nil)
	if !op.Delete {
		next = decodeOp[api.FloatingAddress](m.w, op)
	}
	kept := before != nil && next != nil && next.User == before.User && next.Project == before.Project
	switch {
	case m.term != 0:
		m.w.fail("floating", "a leader writes address %s", address)
	case before != nil && !kept && (next != nil || !m.addresses.given[before.User]):
		m.w.fail("floating", "address %s is taken from %s of project %s, who did not release it", address, before.User, before.Project)
	}
	if m.addresses.now[address] = next; next == nil {
		delete(m.addresses.now, address)
	}
	m.addresses.was[address] = append(m.addresses.was[address], addressAt{m.revision, next})
}

// checkFloating checks that a node is told of addresses as they were stored when that was decided: each leads to the member that its holder
// named, of the same project, by the port that has the member's way out.
func (w *world) checkFloating(n *node, d *agentstream.Desired) {
	for i := range d.Networks {
		for _, f := range d.Networks[i].Floating {
			w.read(func(m *mirror) { m.checkFloating(n, d, &d.Networks[i], f) })
		}
	}
}

func (m *mirror) checkFloating(n *node, d *agentstream.Desired, on *fabric.Network, f fabric.Floating) {
	held := m.addresses.at(f.Address, d.Revision)
	if held == nil || held.Target == nil {
		m.w.fail("floating", "%s is told at revision %d of address %s, which led nowhere then", n.record.Name, d.Revision, f.Address)
		return
	}
	t := held.Target
	at := slices.IndexFunc(d.Members, func(to agentstream.Member) bool { return to.Assignment.ID == fabric.AssignmentOf(f.Port) })
	if at < 0 {
		m.w.fail("floating", "%s is told that address %s leads to %s, which is not there", n.record.Name, f.Address, f.Port)
		return
	}
	a := &d.Members[at].Assignment
	if a.ClusterUID != t.ClusterUID || a.Member != t.Member || !a.IsMember() || d.Members[at].Release {
		m.w.fail("floating", "%s is told that address %s leads to %s (release: %t), its holder wants member %s of %s (%s)",
			n.record.Name, f.Address, a.ID, d.Members[at].Release, t.Member, t.Cluster, t.ClusterUID)
	}
	if e := m.clusters[t.Cluster]; e.intent != nil && e.intent.UID == t.ClusterUID && e.intent.Project != held.Project {
		m.w.fail("floating", "address %s of project %s leads to %s of project %s", f.Address, held.Project, a.ID, e.intent.Project)
	}
	if !slices.Equal(portsOf(f), t.Ports) {
		m.w.fail("floating", "%s forwards %v of address %s, its holder wants %v", n.record.Name, portsOf(f), f.Address, t.Ports)
	}
	if out := m.wayOut(a); out < 0 || fabric.PortOf(a, out).ID != f.Port || a.Ports[out].Network != on.UID {
		m.w.fail("floating", "%s is told that address %s leads to port %s, the default route of the member is by port %d", n.record.Name, f.Address, f.Port, out)
	}
	since := ledSince{f.Address, t.ClusterUID, t.AssignedAt.UnixNano()}
	if was := m.addresses.led[since]; was != "" && was != a.ID {
		m.w.happened("address followed its member")
	}
	m.addresses.led[since] = a.ID
}

// portsOf are the forwarded ports as users write them, nil for all.
func portsOf(f fabric.Floating) []string {
	var ports []string
	for _, p := range f.Forwards {
		ports = append(ports, p.String())
	}
	return ports
}

// wayOut is which of a member's ports has its default route: on the network of its project that has a way out, or else that of its cluster.
func (m *mirror) wayOut(a *api.Assignment) int {
	own := -1
	for i := range a.Ports {
		n := m.networks[a.Ports[i].Network]
		switch {
		case n == nil || !n.Egress:
		case n.OfProject():
			return i
		case own < 0:
			own = i
		}
	}
	return own
}

// inForce is where an address is in force.
type inForce struct{ node, port string }

// checkFloatingAtRest checks that each address is in force where its member is, and nowhere else. A node that does not hear the leader keeps
// what it has.
func (w *world) checkFloatingAtRest() {
	s := w.store.leader()
	if s == nil {
		return
	}
	hears, there := map[string]bool{}, map[netip.Addr][]inForce{}
	for _, n := range w.nodes {
		if hears[n.record.Name] = n.canAnswer(s); !hears[n.record.Name] {
			continue
		}
		for _, net := range n.networks {
			for _, f := range net.floating {
				there[f.Address] = append(there[f.Address], inForce{n.record.Name, f.Port})
			}
		}
	}
	w.read(func(m *mirror) {
		for address, held := range m.addresses.now {
			want := m.leadsTo(held)
			switch {
			case want != nil && !hears[want.node]:
				want = nil
			case want != nil:
				w.happened("address leads to a member")
			default:
				w.happened("address leads nowhere")
			}
			is := there[address]
			if want == nil && len(is) > 0 || want != nil && (len(is) != 1 || is[0] != *want) {
				w.fail("floating", "address %s is in force at %v, want %v", address, is, want)
			}
			delete(there, address)
		}
	})
	for address, is := range there {
		w.fail("floating", "address %s is in force at %v, and nobody holds it", address, is)
	}
}

// leadsTo is where an address should be in force, nil for nowhere.
func (m *mirror) leadsTo(held *api.FloatingAddress) *inForce {
	if held.Target == nil {
		return nil
	}
	e := m.clusters[held.Target.Cluster]
	if e.intent == nil || e.intent.UID != held.Target.ClusterUID {
		return nil
	}
	for _, a := range m.assignments(e.record) {
		if a.Member != held.Target.Member || !a.IsMember() || a.releasedAt != nil || a.Saved {
			continue
		}
		if out := m.wayOut(a.Assignment); out >= 0 {
			return &inForce{a.Node, fabric.PortOf(a.Assignment, out).ID}
		}
	}
	return nil
}
