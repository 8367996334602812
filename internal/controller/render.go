package controller

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/contextualization"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/sshca"
	"github.com/nearmetal/nearmetal/internal/state"
)

// rendered is a cluster as its nodes should have it. What stays the same from one rendering to the next is shared by both, so that comparing
// costs little.
type rendered struct {
	byNode map[string]part
	share  *agentstream.Share
	// own are the files that only one member has, by assignment ID; they hold while basis is the same.
	own   map[string]ownFiles
	basis string
}

// ownFiles are the files of one member that no other has.
type ownFiles struct {
	files  []driver.File
	digest string
}

// same reports whether a node need not be told of the other part.
func (p part) same(other part) bool {
	return p.share == other.share && p.self == other.self && reflect.DeepEqual(p.network, other.network) && reflect.DeepEqual(p.members, other.members)
}

// whereabouts are the nodes of a cluster, and who of it is cut off from the others.
type whereabouts struct {
	held []api.Assignment
	// nodes are all that it has something on. peers are those that members reach each other over. A node that only has members which were lost
	// or let go is none: whatever runs on there under an old identity reaches nobody.
	nodes, peers map[string]bool
	lost         map[string]bool
	// together are those that were let go of with the whole cluster, and not before it. Cutting them off one from another first would only
	// take time.
	together map[string]bool
}

func whereaboutsOf(c *state.Cluster) whereabouts {
	w := whereabouts{nodes: map[string]bool{}, peers: map[string]bool{}, together: map[string]bool{}, lost: lostBy(c)}
	deleting := c.Record.Phase == api.ClusterDeleting
	for a := range c.Held() {
		if a.Spare {
			continue
		}
		w.held = append(w.held, *a)
		w.nodes[a.Node], w.peers[a.Node] = true, true
	}
	for a, ref := range c.AllWithRef() {
		if !ref.Releasing {
			continue
		}
		w.nodes[a.Node] = true
		if deleting && (ref.ReleasedAt == nil || !ref.ReleasedAt.Before(c.Record.ChangedAt)) {
			w.together[a.ID], w.peers[a.Node] = true, true
		}
	}
	return w
}

// render computes what a cluster has on every node it is on. With an error it is incomplete, in that peers are missing, or nil. before is
// what it returned last for this cluster, or nothing.
func (d *desiredStates) render(view *state.View, c *state.Cluster, before rendered) (rendered, error) {
	next := rendered{byNode: map[string]part{}}
	if c.Record == nil {
		return next, nil
	}
	w := whereaboutsOf(c)
	if len(w.nodes) == 0 {
		return next, nil
	}
	shared, err := d.renderFiles(c, w.held, before, &next)
	if err != nil {
		return rendered{}, err
	}
	addresses, incomplete := addressesOf(view, w.peers)
	peers := slices.Collect(maps.Values(addresses))
	if next.share, err = agentstream.NewShare(c.Record.Network.Index, peers, shared); err != nil {
		return rendered{}, err
	}
	if next.share.Same(before.share) {
		next.share = before.share
	}
	for node := range w.nodes {
		p := part{network: fabric.Network{Network: c.Record.Network}}
		if w.peers[node] {
			p.share, p.self = next.share, addresses[node]
		}
		next.byNode[node] = p
	}
	next.addMembers(c, w)
	return next, incomplete
}

// addMembers adds the members, and their ports, to the parts of their nodes.
func (r *rendered) addMembers(c *state.Cluster, w whereabouts) {
	add := func(m agentstream.Member) {
		a := m.Assignment
		p := r.byNode[a.Node]
		p.members = append(p.members, m)
		if !w.lost[a.ID] || w.together[a.ID] { // whatever still runs of a lost one is cut off at once, before it is stopped
			p.network.Ports = append(p.network.Ports, fabric.Port{ID: a.ID, Address: a.Address(), MAC: a.MAC()})
		}
		r.byNode[a.Node] = p
	}
	for _, a := range w.held {
		own := r.own[a.ID]
		add(agentstream.Member{
			Member: driver.Member{Assignment: a, Network: c.Record.Network, Files: own.files, User: JobUser},
			Paused: lifecycle.Frozen(c.Record.Phase), FilesDigest: own.digest, Checks: checksOf(c.Intent.Spec, a.Group),
		})
	}
	for a := range c.Releasing() {
		grace := float64(releaseGraceSeconds)
		if w.lost[a.ID] {
			grace = 0
		}
		add(agentstream.Member{
			Member:  driver.Member{Assignment: *a, Network: c.Record.Network, User: JobUser},
			Release: true, ReleaseHome: c.Record.Phase == api.ClusterDeleting, GraceSeconds: grace,
		})
	}
}

// renderFiles renders the files that all members share, and into next those of each, as far as before does not have them.
func (d *desiredStates) renderFiles(c *state.Cluster, held []api.Assignment, before rendered, next *rendered) ([]driver.File, error) {
	if len(held) == 0 {
		return nil, nil
	}
	renderer, err := d.renderer(c, held)
	if err != nil {
		return nil, err
	}
	next.basis, next.own = renderer.OwnBasis(), make(map[string]ownFiles, len(held))
	for _, a := range held {
		own, known := before.own[a.ID]
		if !known || before.basis != next.basis {
			if own.files, err = renderer.Own(a); err != nil {
				return nil, err
			}
			own.digest = agentstream.FilesDigest(own.files)
		}
		next.own[a.ID] = own
	}
	return renderer.Shared(), nil
}

// addressesOf returns the underlay addresses of nodes. With an error those are missing that have none.
func addressesOf(view *state.View, nodes map[string]bool) (map[string]netip.Addr, error) {
	addresses := make(map[string]netip.Addr, len(nodes))
	var missing error
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		address, err := netip.ParseAddr(underlay(view, node))
		switch {
		case err == nil:
			addresses[node] = address
		case len(nodes) > 1 && missing == nil:
			missing = fmt.Errorf("node %q has no usable underlay address (%q); members on several nodes need one: "+
				"start its agent with --underlay", node, underlay(view, node))
		}
	}
	return addresses, missing
}

// lostBy are the assignments that a cluster has lost, replaced since or not.
func lostBy(c *state.Cluster) map[string]bool {
	lost := map[string]bool{}
	for i := range c.Record.Lost {
		lost[c.Record.Lost[i].Assignment] = true
	}
	for a := range c.All() {
		if a.Replaces != "" {
			lost[a.Replaces] = true
		}
	}
	return lost
}

func checksOf(spec api.ClusterSpec, group string) []api.Check {
	for _, g := range spec.Groups {
		if g.Name == group {
			return g.Checks
		}
	}
	return nil
}

func (d *desiredStates) renderer(c *state.Cluster, held []api.Assignment) (*contextualization.Renderer, error) {
	authority, err := sshca.New(d.siteSecret, c.UID(), c.Intent.CreatedAt)
	if err != nil {
		return nil, err
	}
	return contextualization.New(contextualization.Cluster{
		Name: c.Name(), Authority: authority, Network: c.Record.Network, Members: held, User: JobUser, Nameservers: d.nameservers,
	})
}
