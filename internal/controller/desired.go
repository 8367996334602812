package controller

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/contextualization"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/sshca"
	"github.com/nearmetal/nearmetal/internal/state"
)

// JobUser is the unprivileged account of members, who owns the shared home and runs the jobs.
var JobUser = driver.User{Name: "hpc", UID: 1000, GID: 1000}

// releaseGraceSeconds is how long a released member is asked politely before it is ended by force.
const releaseGraceSeconds = 5

// quarantineKey goes before the ID of a quarantined assignment where a cluster's UID stands otherwise.
const quarantineKey = "quarantine "

// desiredStates computes what each node should carry and remembers it, so that a change of one cluster costs only the nodes that
// it touches. It is owned by the leading goroutine.
type desiredStates struct {
	siteSecret  []byte
	nameservers []netip.Addr
	pool        placement.Pool

	clusters  map[string]clusterParts    // by UID
	nodes     map[string]map[string]part // by node, then UID
	jobs      map[string][]agentstream.Job
	underlays map[string]string
	told      map[string]bool // nodes that were ever assembled for
	machines  map[string]machinePart
	images    Images
	holders   func(image.Digest) (whole, fetching map[string]string)
	// peers are those that each node was told of, by image.
	peers    map[string]map[image.Digest][]string
	withheld map[string]bool // nodes of which a share is not known: what they were told, they go on with
}

// clusterParts is a cluster's share of the nodes, as of a revision of the cluster.
type clusterParts struct {
	revision, generation int64
	byNode               map[string]part
}

// part is what one cluster has on one node.
type part struct {
	network fabric.Network
	members []agentstream.Member
}

func newDesiredStates(cfg Config) *desiredStates {
	return &desiredStates{
		siteSecret: cfg.SiteSecret, nameservers: cfg.Nameservers, pool: cfg.Pool, images: cfg.Images, machines: map[string]machinePart{},
		peers:    map[string]map[image.Digest][]string{},
		holders:  cfg.Agents.Holders,
		clusters: map[string]clusterParts{}, nodes: map[string]map[string]part{}, jobs: map[string][]agentstream.Job{},
		told: map[string]bool{}, withheld: map[string]bool{},
	}
}

// update takes in a view and returns the desired states of the nodes for which something changed. A cluster that can't be
// rendered keeps its former share and is returned in failed. A node whose former share is not known, since another leader
// gave it, is told nothing: what it is not told of it would stop.
func (d *desiredStates) update(term int64, view *state.View) (changed map[string]agentstream.Desired, failed map[string]error) {
	dirty, failed := map[string]bool{}, map[string]error{}
	underlays := map[string]string{}
	for _, n := range view.Nodes {
		underlays[n.Name] = n.Underlay
	}
	moved := !reflect.DeepEqual(underlays, d.underlays)
	d.underlays = underlays
	seen := map[string]bool{}
	clear(d.withheld)
	for _, c := range view.Clusters {
		seen[c.UID()] = true
		old, known := d.clusters[c.UID()]
		if known && !moved && old.revision == c.Revision {
			continue
		}
		parts, err := d.parts(c)
		if err != nil {
			failed[c.Name()] = err
			if parts == nil && !known {
				d.withhold(c)
			}
		}
		if parts == nil || err != nil && !incompleteWillDo(c, known && old.generation == c.Record.Generation) {
			continue
		}
		d.replace(c.UID(), old.byNode, parts, dirty)
		next := clusterParts{revision: c.Revision, byNode: parts}
		if c.Record != nil {
			next.generation = c.Record.Generation
		}
		d.clusters[c.UID()] = next
	}
	for uid, old := range d.clusters {
		if !seen[uid] && !strings.HasPrefix(uid, quarantineKey) {
			d.replace(uid, old.byNode, nil, dirty)
			delete(d.clusters, uid)
		}
	}
	d.updateQuarantines(view, dirty)
	d.updateJobs(view, dirty)
	d.updateMachines(view, dirty)
	changed = map[string]agentstream.Desired{}
	for node := range dirty {
		if d.withheld[node] {
			delete(d.told, node) // all of it is said once it is known
			continue
		}
		changed[node] = d.assemble(node, term, view.Revision)
	}
	return changed, failed
}

// incompleteWillDo tells whether a cluster's share that lacks a peer is better than the former one, or none. Members that run
// may lose a peer but must stay named, those that are released must be told so, and a new cluster waits for its network. known tells
// that the former share is of the same members.
func incompleteWillDo(c *state.Cluster, known bool) bool {
	switch c.Record.Phase {
	case api.ClusterDeleting:
		return true
	case api.ClusterStarting:
		return false
	default:
		return !known
	}
}

// withhold notes the nodes that a cluster is on.
func (d *desiredStates) withhold(c *state.Cluster) {
	for a := range c.All() {
		d.withheld[a.Node] = true
	}
}

// replace puts a cluster's new share in the place of the old one and marks the nodes it differs on.
func (d *desiredStates) replace(uid string, before, after map[string]part, dirty map[string]bool) {
	for node := range before {
		if _, ok := after[node]; !ok {
			delete(d.nodes[node], uid)
			dirty[node] = true
		}
	}
	for node, p := range after {
		if old, ok := before[node]; ok && reflect.DeepEqual(old, p) {
			continue
		}
		if d.nodes[node] == nil {
			d.nodes[node] = map[string]part{}
		}
		d.nodes[node][uid] = p
		dirty[node] = true
	}
}

// updateQuarantines keeps asking for quarantined assignments to be cleaned, one by one, also after their cluster is gone; only then
// does the cluster's home go with them.
func (d *desiredStates) updateQuarantines(view *state.View, dirty map[string]bool) {
	living := func(uid string) bool {
		c := view.ClusterByUID(uid)
		return c != nil && c.Record != nil && c.Record.Phase != api.ClusterDeleting
	}
	quarantined := map[string]bool{}
	for _, q := range view.Quarantines {
		a, uid := q.Assignment, quarantineKey+q.Assignment.ID
		quarantined[uid] = true
		index, ok := placement.IndexOfMAC(a.MAC())
		if !ok {
			index, _ = d.pool.IndexOf(a.Address())
		}
		byNode := map[string]part{a.Node: {members: []agentstream.Member{{
			Member:  driver.Member{Assignment: a, Network: api.Network{Index: index}, User: JobUser},
			Release: true, ReleaseHome: !living(a.ClusterUID), GraceSeconds: releaseGraceSeconds,
		}}}}
		d.replace(uid, d.clusters[uid].byNode, byNode, dirty)
		d.clusters[uid] = clusterParts{byNode: byNode}
	}
	for uid, old := range d.clusters {
		if strings.HasPrefix(uid, quarantineKey) && !quarantined[uid] {
			d.replace(uid, old.byNode, nil, dirty)
			delete(d.clusters, uid)
		}
	}
}

// updateJobs gives each job to the node of the member that carries it out, which is stored before.
func (d *desiredStates) updateJobs(view *state.View, dirty map[string]bool) {
	jobs := map[string][]agentstream.Job{}
	for _, job := range view.Jobs {
		c := view.Cluster(job.Cluster)
		if job.Phase.Ended() || job.MemberID == "" || c == nil || c.UID() != job.ClusterUID {
			continue
		}
		for a := range c.Held() {
			if a.ID == job.MemberID {
				told := *job
				told.CancelRequested = job.CancelRequested || job.Requeueing
				jobs[a.Node] = append(jobs[a.Node], agentstream.Job{Job: told, MemberID: a.ID})
			}
		}
	}
	for node, list := range jobs {
		if !reflect.DeepEqual(list, d.jobs[node]) {
			dirty[node] = true
		}
	}
	for node := range d.jobs {
		if jobs[node] == nil {
			dirty[node] = true
		}
	}
	d.jobs = jobs
}

// first tells, once, that nothing was ever assembled for a node.
func (d *desiredStates) first(node string) bool { return !d.told[node] && !d.withheld[node] }

func (d *desiredStates) assemble(node string, term, revision int64) agentstream.Desired {
	d.told[node] = true
	out := agentstream.Desired{
		Term: term, Revision: revision, Networks: []fabric.Network{}, Members: []agentstream.Member{}, Jobs: d.jobs[node],
		Builds: d.machines[node].builds, PowerOff: d.machines[node].powerOff,
	}
	for _, p := range d.nodes[node] {
		if p.network.Prefix.IsValid() { // what is quarantined has none any more
			out.Networks = append(out.Networks, p.network)
		}
		out.Members = append(out.Members, p.members...)
	}
	slices.SortFunc(out.Networks, func(a, b fabric.Network) int { return a.Index - b.Index })
	slices.SortFunc(out.Members, func(a, b agentstream.Member) int {
		return strings.Compare(a.Assignment.ID, b.Assignment.ID)
	})
	d.addImages(node, &out)
	return out
}

// parts computes a cluster's share of every node it is on. With an error it is incomplete, in that peers are missing, or nil.
func (d *desiredStates) parts(c *state.Cluster) (map[string]part, error) {
	parts := map[string]part{}
	if c.Record == nil {
		return parts, nil
	}
	var held []api.Assignment
	// peers are the nodes that members reach each other over. A node that only has members which were lost or let go is none:
	// whatever runs on there under an old identity reaches nobody.
	nodes, peers := map[string]bool{}, map[string]bool{}
	deleting, lost := c.Record.Phase == api.ClusterDeleting, lostBy(c)
	// together are those that were let go of with the whole cluster, and not before it. Cutting them off one from another first would only
	// take time.
	together := map[string]bool{}
	for a := range c.Held() {
		if a.Spare {
			continue
		}
		held = append(held, *a)
		nodes[a.Node], peers[a.Node] = true, true
	}
	for a, ref := range c.AllWithRef() {
		if !ref.Releasing {
			continue
		}
		nodes[a.Node] = true
		if deleting && (ref.ReleasedAt == nil || !ref.ReleasedAt.Before(c.Record.ChangedAt)) {
			together[a.ID], peers[a.Node] = true, true
		}
	}
	var incomplete error
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		reachable := peers
		if !peers[node] {
			reachable = nil
		}
		network, err := d.network(c.Record.Network, node, reachable)
		incomplete = cmp.Or(incomplete, err)
		parts[node] = part{network: network}
	}
	add := func(m agentstream.Member) {
		a := m.Assignment
		p := parts[a.Node]
		p.members = append(p.members, m)
		if !lost[a.ID] || together[a.ID] { // whatever still runs of a lost one is cut off at once, before it is stopped
			p.network.Ports = append(p.network.Ports, fabric.Port{ID: a.ID, Address: a.Address(), MAC: a.MAC()})
		}
		parts[a.Node] = p
	}
	if len(held) > 0 {
		renderer, err := d.renderer(c, held)
		if err != nil {
			return nil, err
		}
		for _, a := range held {
			files, err := renderer.Files(a.ID)
			if err != nil {
				return nil, err
			}
			add(agentstream.Member{
				Member: driver.Member{Assignment: a, Network: c.Record.Network, Files: files, User: JobUser},
				Paused: lifecycle.Frozen(c.Record.Phase), FilesDigest: agentstream.FilesDigest(files), Checks: checksOf(c.Intent.Spec, a.Group),
			})
		}
	}
	for a := range c.Releasing() {
		grace := float64(releaseGraceSeconds)
		if lost[a.ID] {
			grace = 0
		}
		add(agentstream.Member{
			Member:  driver.Member{Assignment: *a, Network: c.Record.Network, User: JobUser},
			Release: true, ReleaseHome: deleting, GraceSeconds: grace,
		})
	}
	return parts, incomplete
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

// network is a cluster's network as a node should have it: its peers are the other nodes with members of the cluster. With an
// error it lacks those that have no address.
func (d *desiredStates) network(n api.Network, node string, nodes map[string]bool) (fabric.Network, error) {
	out := fabric.Network{Network: n}
	var missing error
	for peer := range nodes {
		if peer == node {
			continue
		}
		address, err := netip.ParseAddr(d.underlays[peer])
		if err != nil {
			missing = fmt.Errorf("node %q has no usable underlay address (%q); members on several nodes need one: "+
				"start its agent with --underlay", peer, d.underlays[peer])
			continue
		}
		out.Peers = append(out.Peers, address)
	}
	slices.SortFunc(out.Peers, netip.Addr.Compare)
	return out, missing
}
