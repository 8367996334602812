package controller

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// A volume lies on one node. Members on other nodes of its cluster have it over the underlay: its node serves it, and lets in the nodes of those members
// (volume.Sharing). These orders follow from assignments and from the reports of nodes:
//
//   - A node is a client while a member of the cluster is there, or something is left of one. It is shut out when it is down and members were let go of
//     there, and stays so until nothing of them is left, since others may run in their place (shutOut).
//   - A member with a whole machine is a client on the cluster's own network, by its address there: its users are root of the machine's kernel, which must be
//     no tunnel's end. The volume's node has a port on that network.
//   - A client reaches a volume once the volume's node reports that it serves it and has let the client in.
//   - No other member begins to use a volume before all of the volumes' nodes say that they let in nobody but clients (volume.Sharing.Settled). Of a
//     block volume, nothing may be left of a machine beside it that was replaced, either.

// updateSharings renews the orders about volumes that cross, and marks the nodes that get others.
func (d *desiredStates) updateSharings(view *state.View, dirty map[string]bool) {
	phase := func(node string) api.NodePhase {
		phase, _, _ := d.agents.Node(node)
		return phase
	}
	told := sharings(sharingsInput{view: view, claiming: d.claimants.of(view), phase: phase, heard: d.agents.Sharings, before: d.sharings, encrypted: d.networks.encrypted})
	for node, all := range told {
		if !reflect.DeepEqual(all, d.sharings[node]) {
			dirty[node] = true
		}
	}
	for node := range d.sharings {
		if told[node] == nil {
			dirty[node] = true
		}
	}
	d.sharings = told
}

// sharingsInput is what sharings are computed from.
type sharingsInput struct {
	view *state.View
	// claiming are the clusters with members that claim volumes.
	claiming []*state.Cluster
	// phase is what a node is held to be, heard what its agent last said; false: it is not heard of.
	phase func(node string) api.NodePhase
	heard func(node string) ([]volume.SharingState, bool)
	// encrypted: what nodes exchange goes through WireGuard only.
	encrypted bool
	// before are the last orders, by node.
	before map[string][]volume.Sharing
}

// sharings returns the orders to each node about volumes that cross, in the order of clusters' UIDs.
func sharings(in sharingsInput) map[string][]volume.Sharing {
	all := map[string][]volume.Sharing{}
	for _, c := range in.claiming {
		x := crossing{
			in: &in, c: c, serves: map[string][]volume.Share{}, clients: map[string]bool{}, rates: map[passage]*rate{},
			machines: map[string]netip.Addr{}, servers: map[string]*api.VolumeClaim{},
		}
		x.look()
		for node, s := range x.told() {
			all[node] = append(all[node], s)
		}
	}
	for _, list := range all {
		slices.SortFunc(list, func(a, b volume.Sharing) int { return strings.Compare(a.ClusterUID, b.ClusterUID) })
	}
	return all
}

// crossing is how the volumes of one cluster cross.
type crossing struct {
	in *sharingsInput
	c  *state.Cluster
	// serves are the volumes of each node where one lies, clients the nodes that members on have one of another node.
	serves  map[string][]volume.Share
	clients map[string]bool
	// machines are the clients that are whole machines, by node, with their addresses on the cluster's own network. servers are the nodes that have a port
	// there, each with a claim that says so.
	machines map[string]netip.Addr
	servers  map[string]*api.VolumeClaim
	// leaving: a machine that another has replaced may still run beside its block volume. Its node can't be shut out.
	leaving bool
	// rates are what members on a node may read from the volumes of another, and write to them, in a second.
	rates map[passage]*rate
}

// look finds out which nodes serve what, and which are clients.
func (x *crossing) look() {
	there := map[string][]presence{}
	for a, ref := range x.c.AllWithRef() {
		elsewhere := false
		for i := range a.Volumes {
			x.addShare(&a.Volumes[i])
			if claim := &a.Volumes[i]; claim.Server.IsValid() {
				x.servers[claim.Node] = claim
				if a.Whole {
					x.machines[a.Node] = a.Address()
				}
			}
			if claim := &a.Volumes[i]; claim.Block && claim.Node == a.Node && ref.Releasing && x.superseded(a) {
				x.leaving = true
			}
			if a.Volumes[i].Node != a.Node {
				elsewhere = true
				x.addRate(a, &a.Volumes[i])
			}
		}
		if elsewhere {
			there[a.Node] = append(there[a.Node], presence{a, ref})
		}
	}
	for node, members := range there {
		x.clients[node] = !x.shutOut(node, members)
	}
}

// addShare notes a volume at its node. It is read-only there if it is for all members.
func (x *crossing) addShare(claim *api.VolumeClaim) {
	shares := x.serves[claim.Node]
	i := slices.IndexFunc(shares, func(s volume.Share) bool { return s.UID == claim.UID })
	if i < 0 {
		x.serves[claim.Node] = append(shares, volume.Share{UID: claim.UID, ReadOnly: claim.ReadOnly, Block: claim.Block})
		return
	}
	shares[i].ReadOnly = shares[i].ReadOnly && claim.ReadOnly
}

// presence is an assignment of the cluster on a node, with the reference of its chunk.
type presence struct {
	*api.Assignment
	ref *api.ChunkRef
}

// shutOut reports whether a node must not have the cluster's volumes: members were lost there with the node, and something of them may be left. A node
// that is up and on which a member runs that was there when another was let go of was never away: its agent ends what is to end.
func (x *crossing) shutOut(node string, members []presence) bool {
	down := x.in.phase(node) == api.NodeDown
	for _, gone := range members {
		if !gone.ref.Releasing {
			continue
		}
		if down {
			return true
		}
		stayed := slices.ContainsFunc(members, func(m presence) bool { return !m.ref.Releasing && !m.TakenAt.After(*gone.ref.ReleasedAt) })
		if !stayed && x.superseded(gone.Assignment) {
			return true
		}
	}
	return false
}

// superseded reports whether another may run in the place of a member that was let go of, which did not take over from it.
func (x *crossing) superseded(gone *api.Assignment) bool {
	if slices.ContainsFunc(x.c.Record.Lost, func(l api.LostMember) bool { return l.Assignment == gone.ID }) {
		return true
	}
	for a := range x.c.Held() {
		if a.Member == gone.Member && a.From != gone.ID && (a.Replaces != "" || a.From != "") {
			return true
		}
	}
	return false
}

// told are the orders to the nodes about the cluster.
func (x *crossing) told() map[string]volume.Sharing {
	clients, at := x.addresses()
	machines := x.machinesIn()
	settled := !x.leaving
	states := map[string]*volume.SharingState{}
	for node := range x.serves {
		said, heard := x.in.heard(node)
		if !heard {
			settled = false
			continue
		}
		states[node] = &volume.SharingState{} // it has nothing
		if i := slices.IndexFunc(said, func(s volume.SharingState) bool { return s.ClusterUID == x.c.UID() }); i >= 0 {
			states[node] = &said[i]
		}
		settled = settled && !slices.ContainsFunc(states[node].Clients, func(c netip.Addr) bool { return !slices.Contains(clients, c) && !slices.Contains(machines, c) })
	}
	out := map[string]volume.Sharing{}
	for node := range x.nodes() {
		if !x.crosses(node) {
			continue // it ends what it had
		}
		s := volume.Sharing{ClusterUID: x.c.UID(), UserIDs: x.c.Record.UserIDs, Settled: settled, Client: x.clients[node], Encrypted: x.in.encrypted}
		if _, machine := x.machines[node]; !machine { // whose users are root there, and hear of no other node
			x.addPeers(&s, node, clients, at)
			x.addPort(&s, node)
			if s.Serving() {
				s.Serves = x.serves[node]
			} else {
				s.Clients = nil
			}
		}
		if s.Client {
			s.Reaches = x.reaches(node, at, states)
		}
		if s.Client || len(s.Serves) > 0 || !x.ended(node, states) {
			out[node] = s
		}
	}
	return out
}

// addPeers adds the other nodes to a node's orders, and those of them that are let in.
func (x *crossing) addPeers(s *volume.Sharing, node string, clients []netip.Addr, at map[string]netip.Addr) {
	for other := range x.nodes() {
		// Who is shut out stays a peer of the volume's node: it is refused, and does not wait for answers.
		if addr, ok := at[other]; ok && other != node && (len(x.serves[node]) > 0 || len(x.serves[other]) > 0) {
			x.addPeer(s, addr, other)
		}
	}
	slices.SortFunc(s.Peers, netip.Addr.Compare)
	slices.SortFunc(s.Sealed, func(a, b volume.SealedPeer) int { return a.Peer.Compare(b.Peer) })
	for _, c := range clients {
		if c != at[node] {
			s.Clients = append(s.Clients, c)
		}
	}
	s.Rates = x.ratesFrom(node, at)
}

// addPort adds a node's port on the cluster's own network to its orders, and the whole machines that are let in there.
func (x *crossing) addPort(s *volume.Sharing, node string) {
	claim, own := x.servers[node], x.in.view.Network(x.c.UID())
	if claim == nil || own == nil {
		return
	}
	s.Port = &volume.Port{ID: volume.PortID(x.c.UID()), Network: own.Index, Address: claim.Server, MAC: placement.ServerMAC(own, claim)}
	s.Machines = x.machinesIn()
	s.Rates = append(s.Rates, x.ratesFrom(node, x.machines)...)
}

// crosses reports whether volumes cross from and to a node at all. Where the underlay is encrypted, they do if it can encrypt and its agent knows how.
func (x *crossing) crosses(node string) bool {
	record := x.in.view.Agent(node)
	return !x.in.encrypted || record != nil && situation.Unsealed(record) == ""
}

// addPeer adds another node to a node's orders. On an encrypted underlay, peers are in a field that no older agent reads: an older agent would
// send to them in clear. The record of a node may still be that of its former agent.
func (x *crossing) addPeer(s *volume.Sharing, addr netip.Addr, node string) {
	if s.Encrypted {
		s.Sealed = append(s.Sealed, volume.SealedPeer{Peer: addr, Key: x.in.view.Agent(node).WireGuardKey})
		return
	}
	s.Peers = append(s.Peers, addr)
}

// nodes are those on which something is to be done.
func (x *crossing) nodes() map[string]bool {
	all := map[string]bool{}
	for node := range x.clients {
		all[node] = true
	}
	for node := range x.serves {
		all[node] = true
	}
	return all
}

// ended reports whether a node has nothing of the cluster's volumes that others had, as far as it is heard of.
func (x *crossing) ended(node string, states map[string]*volume.SharingState) bool {
	if len(x.serves[node]) == 0 {
		return true // what it has of others ends with its members
	}
	s := states[node]
	return s != nil && s.ClusterUID == ""
}

// addresses are the clients' addresses on the underlay, in order, and the addresses of all nodes that have one.
func (x *crossing) addresses() (clients []netip.Addr, at map[string]netip.Addr) {
	at = map[string]netip.Addr{}
	for node := range x.nodes() {
		record := x.in.view.Agent(node)
		if _, machine := x.machines[node]; machine || record == nil || !x.crosses(node) {
			continue
		}
		if addr, err := netip.ParseAddr(record.Underlay); err == nil {
			at[node] = addr
			if x.clients[node] {
				clients = append(clients, addr)
			}
		}
	}
	slices.SortFunc(clients, netip.Addr.Compare)
	return clients, at
}

// machinesIn are the whole machines that are let in, in the order of their addresses.
func (x *crossing) machinesIn() (all []netip.Addr) {
	for node, addr := range x.machines {
		if x.clients[node] {
			all = append(all, addr)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// way is where a node reaches the volumes of another, and the address that the other knows it by. Neither is valid where it reaches none.
func (x *crossing) way(node, server string, at map[string]netip.Addr) (to, as netip.Addr) {
	own, machine := x.machines[node]
	if !machine {
		return at[server], at[node]
	}
	if claim := x.servers[server]; claim != nil {
		return claim.Server, own
	}
	return netip.Addr{}, netip.Addr{}
}

// reaches are the volumes of other nodes that let this one in. While a volume's node is not heard of, the last order stays.
func (x *crossing) reaches(node string, at map[string]netip.Addr, states map[string]*volume.SharingState) []volume.Remote {
	var all []volume.Remote
	for server := range x.serves {
		to, as := x.way(node, server, at)
		if server == node || !to.IsValid() {
			continue
		}
		s := states[server]
		for _, share := range x.serves[server] {
			r := volume.Remote{UID: share.UID, Server: to, ReadOnly: share.ReadOnly, Block: share.Block}
			switch {
			case x.toldBefore(node, r):
			case s == nil || !slices.Contains(s.Serves, share.UID) || !slices.Contains(s.Clients, as):
				continue
			}
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b volume.Remote) int { return strings.Compare(a.UID, b.UID) })
	return all
}

// toldBefore reports whether the last order to a node had a volume of another: what it has is not taken from it for as long as it is a client.
func (x *crossing) toldBefore(node string, r volume.Remote) bool {
	for _, s := range x.in.before[node] {
		if s.ClusterUID == x.c.UID() {
			return s.Client && slices.Contains(s.Reaches, r)
		}
	}
	return false
}
