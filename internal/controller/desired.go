package controller

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/trust"
	"github.com/nearmetal/nearmetal/internal/volume"
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
	secrets     trust.Secrets
	nameservers []netip.Addr

	// now is the leader's time at the update under way.
	now time.Time
	// goodUntil is when time alone makes a cluster's files out of date next; zero: never.
	goodUntil time.Time

	// last is the view that was taken in last; only what differs from it is looked at.
	last     *state.View
	clusters map[string]clusterParts    // by UID
	nodes    map[string]map[string]part // by node, then UID
	networks carried
	// undone are the names of clusters that could not be rendered as they are; they are tried again each time.
	undone   map[string]bool
	jobs     map[string][]agentstream.Job
	told     map[string]bool // nodes that were ever assembled for
	machines map[string]machinePart
	// volumes are what nodes are told of the volumes that lie on them, as of the lists in volumesSeen.
	volumes     map[string][]volume.Volume
	volumesSeen [2]any
	// sharings are the orders to nodes about volumes that cross between them. agents have the reports of what nodes did.
	sharings map[string][]volume.Sharing
	// datasets are the orders of nodes about datasets, and caches those about their caches. credentials are the opened ones, by UID.
	datasets    map[string][]dataset.Wanted
	caches      map[string][]dataset.CacheOrder
	credentials map[string]*api.DatasetCredential
	// probes are the sources whose distance nodes should measure.
	probes map[string][]string
	unseal func(uid string, sealed []byte) ([]byte, error)
	// claimants are the clusters that have to do with volumes.
	claimants claimants
	agents    Agents
	// fabricsDirty: fabrics are to have other ports than they were told of.
	fabricsDirty bool
	images       Images
	holders      func(image.Digest) (whole, fetching map[string]string)
	// peers are those that each node was told of, by image.
	peers    map[string]map[image.Digest][]string
	withheld map[string]bool // nodes of which a share is not known: what they were told, they go on with
}

// clusterParts is what a cluster has on the nodes.
type clusterParts struct {
	generation int64
	rendered
}

// part is what one cluster has on one node, its networks apart.
type part struct {
	members []agentstream.Member
	// files are what its members there share.
	files *agentstream.Share
}

func newDesiredStates(cfg Config) *desiredStates {
	return &desiredStates{
		secrets: cfg.Secrets, nameservers: cfg.Nameservers, images: cfg.Images, machines: map[string]machinePart{},
		peers:   map[string]map[image.Digest][]string{},
		holders: cfg.Agents.Holders, agents: cfg.Agents,
		last: &state.View{}, undone: map[string]bool{},
		clusters: map[string]clusterParts{}, nodes: map[string]map[string]part{}, networks: newCarried(outward{pool: cfg.FloatingPool, open: cfg.Open, connections: cfg.Connections}, cfg.EncryptUnderlay), jobs: map[string][]agentstream.Job{},
		told: map[string]bool{}, withheld: map[string]bool{}, credentials: map[string]*api.DatasetCredential{}, unseal: cfg.Unseal,
	}
}

// update takes in a view and returns the desired states of the nodes for which something changed. A cluster that can't be
// rendered keeps its former share and is returned in failed. A node whose former share is not known, since another leader
// gave it, is told nothing: what it is not told of it would stop.
func (d *desiredStates) update(term int64, now time.Time, view *state.View) (changed map[string]agentstream.Desired, failed map[string]error) {
	dirty, failed := map[string]bool{}, map[string]error{}
	clear(d.withheld)
	d.now = now
	for _, name := range d.touched(view, dirty) {
		c := view.Cluster(name)
		if c == nil {
			delete(d.undone, name)
			continue
		}
		done, err := d.updateCluster(view, c, dirty)
		if err != nil {
			failed[name] = err
		}
		if delete(d.undone, name); !done {
			d.undone[name] = true
		}
	}
	d.networks.learnRules(d.last.SecurityGroups, view.SecurityGroups)
	d.networks.learnAddresses(d.last.Addresses, view.Addresses)
	for uid, err := range d.networks.merge(dirty) {
		for cluster := range d.networks.ends[uid] {
			failed[view.ClusterByUID(cluster).Name()] = err
		}
	}
	d.last = view
	d.updateQuarantines(view, dirty)
	d.updateJobs(view, dirty)
	d.updateMachines(view, dirty)
	d.updateVolumes(view, dirty)
	d.updateSharings(view, dirty)
	d.updateDatasets(view, dirty)
	d.updateProbes(view, dirty)
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

// touched returns the names of the clusters that may have to be rendered anew since the last view, in order: those that changed, their
// neighbours on networks of projects, those on networks whose records changed, those with a node whose address changed, those whose files are out of date, and those that could not be. What is gone is dropped.
func (d *desiredStates) touched(view *state.View, dirty map[string]bool) []string {
	names := maps.Clone(d.undone)
	d.addOutdated(view, names)
	addRecorded(d.last, view, names)
	changed, gone := state.Diff(d.last.Clusters, view.Clusters, (*state.Cluster).Name)
	for _, c := range changed {
		names[c.Name()] = true
		was := d.last.Cluster(c.Name())
		if was != nil && was.UID() != c.UID() {
			gone = append(gone, was)
		}
		if was == nil || !sameChunks(was.Record, c.Record) {
			addNeighbours(view, c, names)
		}
	}
	for _, c := range gone {
		addNeighbours(view, c, names)
		d.replace(c.UID(), d.clusters[c.UID()].byNode, nil, dirty)
		d.networks.set(c.UID(), d.clusters[c.UID()].ends, nil)
		d.fabricsDirty = d.fabricsDirty || len(d.clusters[c.UID()].ports) > 0
		delete(d.clusters, c.UID())
	}
	began, ended := state.Diff(d.last.Quarantines, view.Quarantines, func(q *api.Quarantine) string { return q.Assignment.ID })
	for _, q := range append(began, ended...) {
		if c := view.ClusterByUID(q.Assignment.ClusterUID); c != nil && q.Assignment.IsSuccessor() {
			names[c.Name()] = true
		}
	}
	nodes, left := state.Diff(d.last.Nodes, view.Nodes, func(n *state.Node) string { return n.Name })
	for _, n := range append(nodes, left...) {
		if reportedBy(d.last, n.Name) == reportedBy(view, n.Name) && bootedFor(d.last, n.Name) == bootedFor(view, n.Name) {
			continue
		}
		for _, c := range view.ClustersOnNode(n.Name) {
			names[c.Name()] = true
		}
		for uid := range d.networks.servedFrom(n.Name) {
			if c := view.ClusterByUID(uid); c != nil {
				names[c.Name()] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// addOutdated adds the names of the clusters whose files time has made out of date.
func (d *desiredStates) addOutdated(view *state.View, names map[string]bool) {
	if d.goodUntil.IsZero() || d.now.Before(d.goodUntil) {
		return
	}
	d.goodUntil = time.Time{}
	for uid, parts := range d.clusters {
		c := view.ClusterByUID(uid)
		switch {
		case c == nil || parts.goodUntil.IsZero():
		case d.now.Before(parts.goodUntil):
			d.lookAgain(parts.goodUntil)
		default:
			names[c.Name()] = true
		}
	}
}

// lookAgain notes that files are good until a time.
func (d *desiredStates) lookAgain(at time.Time) {
	if !at.IsZero() && (d.goodUntil.IsZero() || at.Before(d.goodUntil)) {
		d.goodUntil = at
	}
}

// updateCluster renders one cluster and marks the nodes on which it is other than before. It reports whether that was taken over: with an
// error, what was rendered is incomplete, and may be worse than what nodes have.
func (d *desiredStates) updateCluster(view *state.View, c *state.Cluster, dirty map[string]bool) (bool, error) {
	old, known := d.clusters[c.UID()]
	next, err := d.render(view, c, old.rendered)
	if err != nil && next.byNode == nil && !known {
		d.withhold(c)
	}
	if next.byNode == nil || err != nil && !incompleteWillDo(c, known && old.generation == c.Record.Generation) {
		return false, err
	}
	d.replace(c.UID(), old.byNode, next.byNode, dirty)
	d.networks.set(c.UID(), old.ends, next.ends)
	d.fabricsDirty = d.fabricsDirty || !slices.Equal(old.ports, next.ports)
	parts := clusterParts{rendered: next}
	if c.Record != nil {
		parts.generation = c.Record.Generation
	}
	d.clusters[c.UID()] = parts
	d.lookAgain(parts.goodUntil)
	return true, err
}

// incompleteWillDo reports whether a cluster's share that lacks a peer is better than the former one, or none. Members that run
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
		if old, ok := before[node]; ok && old.same(p) {
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
		byNode := map[string]part{a.Node: {members: []agentstream.Member{{
			Member:  driver.Member{Assignment: a, Networks: networksOf(view, &a), User: JobUser},
			Release: true, ReleaseHome: !living(a.ClusterUID), GraceSeconds: releaseGraceSeconds,
		}}}}
		d.replace(uid, d.clusters[uid].byNode, byNode, dirty)
		d.clusters[uid] = clusterParts{rendered: rendered{byNode: byNode}}
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
		Builds: d.machines[node].builds, Volumes: d.volumes[node], Sharings: d.sharings[node], Datasets: d.datasets[node], Caches: d.caches[node], Probes: d.probes[node], PowerOff: d.machines[node].powerOff,
	}
	for _, p := range d.nodes[node] {
		if p.files != nil {
			out.Files = append(out.Files, p.files)
		}
		out.Members = append(out.Members, p.members...)
	}
	d.networks.addTo(&out, node)
	slices.SortFunc(out.Files, (*agentstream.Share).Compare)
	slices.SortFunc(out.Members, func(a, b agentstream.Member) int {
		return strings.Compare(a.Assignment.ID, b.Assignment.ID)
	})
	d.addImages(node, &out)
	return out
}
