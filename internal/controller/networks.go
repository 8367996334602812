package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/contextualization"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// laterPause is after how long a network is looked at again that can't be given its numbers now.
const laterPause = 5 * time.Second

// networksPerPass bounds how many networks of projects are stored in one commit; the next pass goes on.
const networksPerPass = 50

// newNetworks gives the networks that projects want their numbers. A network whose subnet is taken by now is stored as refused.
func (p *pass) newNetworks(ctx context.Context) error {
	var made []api.Network
	for _, in := range p.view.NetworkIntents {
		if p.view.Network(in.UID) != nil || in.DeleteRequestedAt != nil || len(made) == networksPerPass {
			continue
		}
		n, err := p.newNetwork(in)
		if err != nil {
			p.later[in.UID] = err
			p.soonerRaw(p.cfg.Now().Add(laterPause))
			p.log.DebugContext(ctx, "a network waits", "network", in.Name, "error", err)
			continue
		}
		made = append(made, n)
	}
	if len(made) == 0 {
		return nil
	}
	failpoint.Hit("controller.before-network")
	revision, err := p.writer.PutNetworks(ctx, made...)
	if err != nil {
		return err
	}
	p.committed = max(p.committed, revision)
	return nil
}

// newNetwork gives one network its numbers, or the reason why it is refused. An error means that this can't be known now.
func (p *pass) newNetwork(in *api.NetworkIntent) (api.Network, error) {
	_, own := tenancy.Split(in.Name)
	n := api.Network{UID: in.UID, Name: api.ProjectNetwork(own), Project: in.Project, Technology: cmp.Or(in.Technology, api.TechnologyVXLAN), Egress: in.Egress, Routed: in.Routed, MTU: in.MTU}
	err := p.giveFabricNumber(&n, onFabric{cell: in.Cell, vlan: in.VLAN, pkey: in.PKey, partition: in.Partition})
	if errors.Is(err, errLater) {
		return api.Network{}, err
	}
	if err != nil {
		n.Refused = err.Error()
		return n, nil
	}
	if in.Routed {
		n.Pool = p.cfg.Pool.Prefix()
	}
	take := func() (api.Network, error) { return p.numbers().Network(n, 1) }
	if in.Prefix.IsValid() {
		take = func() (api.Network, error) { return p.numbers().Requested(n, in.Prefix) }
	}
	numbered, err := take()
	if err == nil && in.IPv6 {
		numbered, err = p.numbers().Network6(numbered, p.cfg.Pool6, in.Prefix6)
	}
	if err != nil {
		n.Refused = err.Error()
		return n, nil
	}
	return numbered, nil
}

// networks forgets the networks that are over.
func (p *pass) networks(ctx context.Context) error {
	seen := [4]any{identity(p.view.Networks), identity(p.view.Clusters), identity(p.view.Quarantines), identity(p.view.NetworkIntents)}
	if seen == p.networksSeen {
		return nil
	}
	over := lifecycle.PlanNetworks(p.view.Networks, func(uid string) bool { return p.view.ClusterByUID(uid) != nil }, p.view.Quarantines)
	if len(over) > 0 {
		revision, err := p.writer.RemoveNetworks(ctx, over...)
		if err != nil {
			return err
		}
		p.committed = max(p.committed, revision)
	}
	used := func(uid string) bool { return len(portsOn(p.view, uid, "")) > 0 }
	for _, in := range lifecycle.PlanProjectNetworks(p.view.NetworkIntents, used, p.view.Quarantines) {
		revision, err := p.writer.ForgetNetwork(ctx, p.view, in)
		if err != nil {
			return err
		}
		p.committed = max(p.committed, revision)
	}
	p.networksSeen = seen
	return nil
}

// portsOn returns the assignments with a port on a project's network that are not proved clean, but for those of one cluster.
func portsOn(view *state.View, network, except string) []api.Assignment {
	var all []api.Assignment
	for _, c := range view.ClustersOnNetwork(network) {
		if c.UID() == except {
			continue
		}
		for a := range c.All() {
			if hasPortOn(a, network) {
				all = append(all, *a)
			}
		}
	}
	return all
}

func hasPortOn(a *api.Assignment, network string) bool {
	return slices.ContainsFunc(a.Ports, func(p api.PortClaim) bool { return p.Network == network })
}

// takeNumbers completes a decision by the cluster's networks and user IDs. It returns the networks that are new with this decision, and the
// project's networks that the cluster joins by it. A network that is not stored yet is a store.ErrConflict: the cluster is answered in the
// next pass.
func (p *pass) takeNumbers(a *answer, at *placement.Decision, numbers *placement.Numbers) (fresh []api.Network, joined []api.NetworkRef, err error) {
	c := a.cluster
	at.Further, at.Own = map[string][]api.GroupNetwork{}, map[string]api.GroupNetwork{}
	members := 0
	for _, g := range c.Intent.Spec.Groups {
		at.Further[g.Name], at.Own[g.Name] = g.Networks, g.OwnNetwork()
		members += g.Size + g.Spares
	}
	if placement.HasMachines(&c.Intent.Spec) {
		members += len(api.VolumesOf(&c.Intent)) // their nodes have addresses, too
	}
	if c.Record != nil && len(c.Record.Networks) > 0 {
		if err := p.knownNetworks(c, at, members); err != nil {
			return nil, nil, err
		}
		return nil, nil, p.joinAll(a, at, c.Record.Joined)
	}
	if joined, err = p.namedNetworks(c); err != nil {
		return nil, nil, err
	}
	ids, err := numbers.UserIDs(c.UID())
	if err != nil {
		return nil, nil, err
	}
	at.UserIDs = ids
	for _, name := range append([]string{""}, api.FurtherNetworks(c.Intent.Spec.Groups)...) {
		n, err := numbers.Network(api.Network{
			UID: api.NetworkUID(c.UID(), name), Name: api.NetworkName(c.Name(), name), Project: c.Intent.Project, Cluster: c.Name(), ClusterUID: c.UID(),
			Technology: c.Intent.Spec.TechnologyOf(name), Egress: c.Intent.Spec.Egress && name == "",
		}, members)
		if err != nil {
			return nil, nil, err
		}
		if err := p.giveFabricNumber(&n, onFabric{cell: c.Intent.Spec.Cell}); err != nil {
			return nil, nil, err
		}
		fresh = append(fresh, n)
	}
	at.Networks = slices.Clone(fresh)
	return fresh, joined, p.joinAll(a, at, joined)
}

// knownNetworks adds the networks of a cluster that was placed before.
func (p *pass) knownNetworks(c *state.Cluster, at *placement.Decision, members int) error {
	for _, ref := range c.Record.Networks {
		n := p.view.Network(ref.UID)
		if n == nil {
			return fmt.Errorf("network %s of cluster %q is not stored", ref.UID, c.Name())
		}
		if room := placement.Room(n); members > room {
			return fmt.Errorf("network %s (%s) has room for %d members, and the cluster is to have %d: create a larger cluster instead of this one",
				n.Name, n.Prefix, room, members)
		}
		at.Networks = append(at.Networks, *n)
	}
	return nil
}

// namedNetworks returns the project's networks that the groups of a cluster name.
func (p *pass) namedNetworks(c *state.Cluster) ([]api.NetworkRef, error) {
	var refs []api.NetworkRef
	for _, name := range api.JoinedNetworks(c.Intent.Spec.Groups) {
		own, _ := api.CutProjectNetwork(name)
		in := p.view.NetworkIntent(state.NetworkIntentName(c.Intent.Project, own))
		if in == nil {
			return nil, fmt.Errorf("network %s does not exist", name)
		}
		n := p.view.Network(in.UID)
		switch {
		case n == nil && p.later[in.UID] != nil && c.Intent.Spec.Queue:
			return nil, fmt.Errorf("network %s has no partition key yet: %w", name, p.later[in.UID])
		case n == nil:
			return nil, fmt.Errorf("network %s has no numbers yet: %w", name, store.ErrConflict)
		case n.Refused != "":
			return nil, fmt.Errorf("network %s was refused: %s", name, n.Refused)
		}
		refs = append(refs, api.NetworkRef{UID: n.UID, Name: name, Prefix: n.Prefix, Prefix6: n.Prefix6})
	}
	return refs, nil
}

// joinAll adds the project's networks that a cluster joins, with the addresses that others hold there. A network without room for new members
// is an error.
func (p *pass) joinAll(a *answer, at *placement.Decision, refs []api.NetworkRef) error {
	for _, ref := range refs {
		n := p.view.Network(ref.UID)
		if n == nil {
			return fmt.Errorf("network %s (%s) is not stored", ref.Name, ref.UID)
		}
		beside := slices.Concat(portsOn(p.view, ref.UID, a.cluster.UID()), p.given[ref.UID])
		for _, q := range p.view.Quarantines {
			if q.Assignment.ClusterUID != a.cluster.UID() && hasPortOn(&q.Assignment, ref.UID) {
				beside = append(beside, q.Assignment)
			}
		}
		taken, wanted := len(beside), wantedOn(a.places, at.Further, ref.Name)
		for i := range at.Held {
			if hasPortOn(&at.Held[i], ref.UID) {
				taken++
			}
		}
		if room := placement.Room(n); taken+wanted > room {
			return fmt.Errorf("network %s (%s) has room for %d members: %d addresses are taken, and %d more are needed",
				ref.Name, n.Prefix, room, taken, wanted)
		}
		named := *n
		named.Name = ref.Name // which tells the project of a network that another project shares
		at.Networks, at.Beside = append(at.Networks, named), append(at.Beside, beside...)
	}
	return p.fixAddresses(a, at, refs)
}

// fixAddresses adds the fixed addresses of the cluster's groups, and those of others on the networks that it joins. One that a new member needs and
// can't have now is an error.
func (p *pass) fixAddresses(a *answer, at *placement.Decision, refs []api.NetworkRef) error {
	c, needed := a.cluster, newOnes(a.places)
	at.Fixed, at.Reserved = map[string]map[string]netip.Addr{}, map[string][]netip.Addr{}
	for _, ref := range refs {
		var others []netip.Addr
		for _, other := range p.view.ClustersOnNetwork(ref.UID) {
			if other.UID() != c.UID() && other.Intent.DeleteRequestedAt == nil {
				others = append(others, fixedOn(other.Intent.Spec, ref.Name)...)
			}
		}
		at.Reserved[ref.UID] = append(others, fixedOn(c.Intent.Spec, ref.Name)...)
		for i := range c.Intent.Spec.Groups {
			g := &c.Intent.Spec.Groups[i]
			address := g.FixedAddress(ref.Name)
			if !address.IsValid() {
				continue
			}
			if at.Fixed[g.Name] == nil {
				at.Fixed[g.Name] = map[string]netip.Addr{}
			}
			at.Fixed[g.Name][ref.Name] = address
			if !needed[g.Name] {
				continue
			}
			if err := placement.CheckHost(p.view.Network(ref.UID), address); err != nil {
				return err
			}
			if holder := holderOf(ref.UID, address, at.Held, at.Beside); holder != "" {
				return fmt.Errorf("address %s on network %s is held by member %s until that is proved clean", address, ref.Name, holder)
			}
			if slices.Contains(others, address) {
				return fmt.Errorf("address %s on network %s is fixed for a member of another cluster", address, ref.Name)
			}
		}
	}
	return nil
}

// newOnes are the groups of which a member needs addresses of its own.
func newOnes(places []place) map[string]bool {
	groups := map[string]bool{}
	for _, place := range places {
		for _, m := range place.need.Members {
			groups[m.Group] = groups[m.Group] || m.From == "" && m.Resizes == ""
		}
	}
	return groups
}

// fixedOn are the fixed addresses of a cluster's groups on a network.
func fixedOn(spec api.ClusterSpec, network string) []netip.Addr {
	var all []netip.Addr
	for i := range spec.Groups {
		if a := spec.Groups[i].FixedAddress(network); a.IsValid() {
			all = append(all, a)
		}
	}
	return all
}

// holderOf returns the member that has an address on a network, "" for none.
func holderOf(network string, address netip.Addr, lists ...[]api.Assignment) string {
	for _, held := range lists {
		for i := range held {
			for _, port := range held[i].Ports {
				if port.Network == network && port.Address == address {
					return held[i].Member
				}
			}
		}
	}
	return ""
}

// neighboursOf returns the members of other clusters on the project's networks that a cluster joined, and of all clusters there by their IPv6
// addresses.
func neighboursOf(view *state.View, c *state.Cluster) []contextualization.Neighbour {
	var all []contextualization.Neighbour
	for _, ref := range c.Record.Joined {
		n := api.Network{Prefix: ref.Prefix, Prefix6: ref.Prefix6}
		for _, other := range view.ClustersOnNetwork(ref.UID) {
			if other.UID() == c.UID() && !n.HasIPv6() { // its members have names of their own for their addresses
				continue
			}
			if !mayName(view.Network(ref.UID), c, other) {
				continue
			}
			_, name := tenancy.Split(other.Name())
			for a := range other.Held() {
				if a.Spare || a.IsPart() {
					continue
				}
				for _, port := range a.Ports {
					if port.Network == ref.UID && n.HasIPv6() {
						all = append(all, contextualization.Neighbour{Member: a.Member, Cluster: name, Address: n.Address6(port.Address)})
					}
					if port.Network == ref.UID && other.UID() != c.UID() {
						all = append(all, contextualization.Neighbour{Member: a.Member, Cluster: name, Address: port.Address})
					}
				}
			}
		}
	}
	return all
}

// mayName reports whether members of a cluster learn the names of another cluster's on a network of a project. A network that is shared has members
// of projects that reach only its owner's, and are to know of no others.
func mayName(n *api.Network, c, other *state.Cluster) bool {
	project, _ := tenancy.Split(c.Name())
	others, _ := tenancy.Split(other.Name())
	return project == others || n != nil && others == cmp.Or(n.Project, api.DefaultProject)
}

// recordsOf returns the records of the project's networks that a cluster joined.
func recordsOf(view *state.View, c *state.Cluster) []api.NetworkRecord {
	var all []api.NetworkRecord
	for _, ref := range c.Record.Joined {
		own, _ := api.CutProjectNetwork(ref.Name)
		if n := view.NetworkIntent(state.NetworkIntentName(c.Intent.Project, own)); n != nil && n.UID == ref.UID {
			all = append(all, n.Records...)
		}
	}
	return all
}

// addRecorded adds the names of the clusters on networks whose records changed.
func addRecorded(before, view *state.View, names map[string]bool) {
	changed, _ := state.Diff(before.NetworkIntents, view.NetworkIntents, func(n *api.NetworkIntent) string { return n.Name })
	for _, n := range changed {
		was := before.NetworkIntent(n.Name)
		if was != nil && was.UID == n.UID && reflect.DeepEqual(was.Records, n.Records) {
			continue
		}
		for _, c := range view.ClustersOnNetwork(n.UID) {
			names[c.Name()] = true
		}
	}
}

// joinedBy returns the project's networks that a cluster joined.
func joinedBy(view *state.View, c *state.Cluster) []api.Network {
	var joined []api.Network
	for _, ref := range c.Record.Joined {
		if n := view.Network(ref.UID); n != nil {
			joined = append(joined, *n)
		}
	}
	return joined
}

// addNeighbours adds the names of the clusters on the networks that a cluster joined: its members are named in their files.
func addNeighbours(view *state.View, c *state.Cluster, names map[string]bool) {
	if c.Record == nil {
		return
	}
	for _, ref := range c.Record.Joined {
		for _, other := range view.ClustersOnNetwork(ref.UID) {
			names[other.Name()] = true
		}
	}
}

// sameChunks reports whether a cluster holds the same in two of its records, either of which may be nil.
func sameChunks(a, b *api.ClusterRecord) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.EqualFunc(a.Chunks, b.Chunks, func(a, b api.ChunkRef) bool { return a.ID == b.ID && a.Releasing == b.Releasing })
}

// wantedOn returns how many new addresses members need on a network. Who goes on elsewhere keeps its address.
func wantedOn(places []place, further map[string][]api.GroupNetwork, network string) int {
	n := 0
	for _, place := range places {
		for _, m := range place.need.Members {
			if m.From == "" && slices.ContainsFunc(further[m.Group], func(n api.GroupNetwork) bool { return n.Name == network }) {
				n++
			}
		}
	}
	return n
}

// noteGiven notes the addresses that this pass gives on networks of projects: the view does not have them yet.
func (p *pass) noteGiven(networks []api.Network, assignments []api.Assignment) {
	for i := range networks {
		if !networks[i].OfProject() {
			continue
		}
		if p.given == nil {
			p.given = map[string][]api.Assignment{}
		}
		p.given[networks[i].UID] = append(p.given[networks[i].UID], assignments...)
	}
}
