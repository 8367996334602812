package controller

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/contextualization"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/member/membercert"
	"github.com/nearmetal/nearmetal/internal/member/mungekey"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/portgroups"
	"github.com/nearmetal/nearmetal/internal/sshca"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// rendered is a cluster as its nodes should have it. What stays the same from one rendering to the next is shared by both, so that comparing
// costs little.
type rendered struct {
	byNode map[string]part
	// ends are what it has of its networks, by the networks' UIDs. What is quarantined has none.
	ends map[string]ends
	// files are what all its members share, nil without members.
	files *agentstream.Share
	// own are the files that only one member has, by assignment ID; they hold while basis is the same.
	own   map[string]ownFiles
	basis string
	// authorities are those of its members' keys, which never change; nil without members. To derive them takes longer than the rest.
	authorities *authorities
	// goodUntil is when they are to be rendered again though nothing else has changed; zero without members.
	goodUntil time.Time
	// ports are those of its members that are on fabrics.
	ports []fabricPort
}

// authorities certify the members of one cluster.
type authorities struct {
	ssh          *sshca.Authority
	certificates *membercert.Authority
	mungeKey     []byte
}

// fabricPort is a port of a network that a fabric is to have, network being its number there, and the node that it is of.
type fabricPort struct {
	fabric, node string
	network      int
	partition    api.Partition
	at           string
	limited      bool
}

// ownFiles are the files of one member that no other has.
type ownFiles struct {
	files  []driver.File
	digest string
}

// same reports whether a node need not be told of the other part.
func (p part) same(other part) bool {
	return p.files == other.files && reflect.DeepEqual(p.members, other.members)
}

// whereabouts are the nodes of a cluster, and who of it is cut off from the others.
type whereabouts struct {
	held []api.Assignment
	// nodes are all that it has something on. peers are those that members reach each other over. A node that only has members which were lost
	// or let go is none: whatever runs on there under an old identity reaches nobody.
	nodes, peers map[string]bool
	lost         map[string]bool
	// servers are the nodes that serve volumes on the cluster's own network, each with a claim that says so.
	servers map[string]*api.VolumeClaim
	// returning are whole machines that were let go of and still run: what was written there goes back to volumes, over the cluster's own network.
	returning map[string]bool
	// together are those that were let go of with the whole cluster, and not before it. Cutting them off one from another first would only
	// take time.
	together map[string]bool
}

func whereaboutsOf(c *state.Cluster) whereabouts {
	w := whereabouts{nodes: map[string]bool{}, peers: map[string]bool{}, together: map[string]bool{}, lost: lostBy(c), servers: map[string]*api.VolumeClaim{}}
	deleting := c.Record.Phase == api.ClusterDeleting
	for a := range c.Held() {
		if a.Spare {
			continue
		}
		w.held = append(w.held, *a)
		w.nodes[a.Node] = true
		if len(a.Ports) > 0 { // a part reaches nobody over a network
			w.peers[a.Node] = true
		}
	}
	for a, ref := range c.AllWithRef() {
		for i := range a.Volumes {
			if claim := &a.Volumes[i]; claim.Server.IsValid() {
				w.servers[claim.Node] = claim
			}
		}
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

// reaching are the nodes that others reach over the cluster's networks by tunnels or trunks. Whole machines are not among them.
func (w *whereabouts) reaching() map[string]bool {
	all := maps.Clone(w.peers)
	for node := range w.servers {
		all[node] = true
	}
	for i := range w.held {
		if w.held[i].Whole {
			delete(all, w.held[i].Node)
		}
	}
	return all
}

// addMachines adds where whole machines are on the underlay, as far as they are there. They are no tunnel's end, so nothing waits for those that boot; others
// know them by that on VLANs.
func (d *desiredStates) addMachines(view *state.View, c *state.Cluster, addresses map[string]tunnelEnd) {
	for a := range c.All() {
		if !a.Whole {
			continue
		}
		if address, err := netip.ParseAddr(reportedBy(view, a.Node).underlay); err == nil {
			addresses[a.Node] = tunnelEnd{address: address}
		}
	}
}

// render computes what a cluster has on every node it is on. With an error it is incomplete, in that peers are missing, or nil. before is
// what it returned last for this cluster, or nothing.
func (d *desiredStates) render(view *state.View, c *state.Cluster, before rendered) (rendered, error) {
	next := rendered{byNode: map[string]part{}, ends: map[string]ends{}}
	if c.Record == nil {
		return next, nil
	}
	w := whereaboutsOf(c)
	if len(w.nodes) == 0 {
		return next, nil
	}
	w.returning = returning(view, c, w.lost)
	if err := d.renderFiles(view, c, w.held, before, &next); err != nil {
		return rendered{}, err
	}
	addresses, incomplete := d.addressesOf(view, w.reaching())
	d.addMachines(view, c, addresses)
	for node := range w.nodes {
		p := part{}
		if w.peers[node] {
			p.files = next.files
		}
		next.byNode[node] = p
	}
	for _, ref := range slices.Concat(c.Record.Networks, c.Record.Joined) {
		network := view.Network(ref.UID)
		if network == nil {
			return rendered{}, fmt.Errorf("network %s is not stored", ref.UID)
		}
		next.ends[network.UID] = endsOf(c, *network, w, addresses)
	}
	next.addMembers(view, c, w)
	next.addServers(c, w, addresses)
	next.ports = fabricPorts(view.Network, w.onFabrics(c))
	return next, incomplete
}

// endsOf returns the nodes on which a cluster has ports of a network, without the ports.
func endsOf(c *state.Cluster, network api.Network, w whereabouts, addresses map[string]tunnelEnd) ends {
	on := ends{network: network, byNode: map[string]end{}}
	for a := range c.All() {
		if w.nodes[a.Node] && slices.ContainsFunc(a.Ports, func(p api.PortClaim) bool { return p.Network == network.UID }) {
			on.byNode[a.Node] = end{tunnelEnd: addresses[a.Node]}
		}
	}
	return on
}

// returning are the whole machines of a cluster that were let go of, and not lost, and run what they were booted for while they give volumes back.
func returning(view *state.View, c *state.Cluster, lost map[string]bool) map[string]bool {
	all := map[string]bool{}
	for a := range c.Releasing() {
		served := slices.ContainsFunc(a.Volumes, func(v api.VolumeClaim) bool { return v.Server.IsValid() })
		if a.Whole && served && !lost[a.ID] && bootedFor(view, a.Node) == a.ID {
			all[a.ID] = true
		}
	}
	return all
}

// bootedFor is the member that a machine was booted for and still runs for, as far as is stored, "" for none.
func bootedFor(view *state.View, node string) string {
	m := view.Machine(node)
	if m == nil || m.Record == nil || m.Record.Boot == nil || m.Record.Phase != api.MachineReady && m.Record.Phase != api.MachineStopping {
		return ""
	}
	return m.Record.Boot.Member
}

// onFabrics are the assignments that have their ports on fabrics: what is held, and what gives volumes back.
func (w *whereabouts) onFabrics(c *state.Cluster) []api.Assignment {
	all := slices.Clone(w.held)
	for a := range c.Releasing() {
		if w.returning[a.ID] {
			all = append(all, *a)
		}
	}
	return all
}

// fabricPorts are the ports on fabrics of assignments. What was lost or let go is cut off.
func fabricPorts(network func(uid string) *api.Network, held []api.Assignment) []fabricPort {
	var ports []fabricPort
	for i := range held {
		for _, p := range held[i].Ports {
			if n := network(p.Network); n != nil && p.Fabric != "" {
				ports = append(ports, fabricPort{p.Fabric, held[i].Node, n.FabricNumber(), n.Partition, p.At, p.Limited})
			}
		}
		for _, h := range held[i].HCAs {
			if n := network(h.Network); n != nil {
				ports = append(ports, fabricPort{h.Fabric, held[i].Node, n.Index, api.Partition{}, h.At, false})
			}
		}
	}
	return ports
}

// addPorts adds the ports of an assignment to the ends of its networks on its node. They may be reached from other nodes or not.
func (r *rendered) addPorts(a *api.Assignment, reached bool) {
	for n := range a.Ports {
		if !a.Ports[n].Address.IsValid() {
			continue // its fabric alone has to prove it clean
		}
		byNode := r.ends[a.Ports[n].Network].byNode
		if e, ok := byNode[a.Node]; ok {
			port := fabric.PortOf(a, n)
			e.ports = append(e.ports, port)
			if reached {
				e.reached = append(e.reached, port)
			}
			if groups := a.Ports[n].SecurityGroups; len(groups) > 0 {
				e.guarded = append(e.guarded, portgroups.Port{ID: port.ID, Address: port.Address, Groups: groups})
			}
			byNode[a.Node] = e
		}
	}
}

// addServers adds the ports by which nodes serve volumes to members with whole machines. They are the nodes' own, so nobody cuts them off.
func (r *rendered) addServers(c *state.Cluster, w whereabouts, addresses map[string]tunnelEnd) {
	own, there := r.ends[c.UID()]
	if !there {
		return
	}
	for node, claim := range w.servers {
		e := own.byNode[node]
		e.tunnelEnd = addresses[node]
		port := fabric.Port{ID: volume.PortID(c.UID()), Address: claim.Server, MAC: placement.ServerMAC(&own.network, claim), Interface: volume.PortInterface}
		e.ports, e.reached = append(e.ports, port), append(e.reached, port)
		own.byNode[node] = e
	}
}

// networksOf are the networks of an assignment's ports, in their order.
func networksOf(view *state.View, a *api.Assignment) []api.Network {
	networks := make([]api.Network, 0, len(a.Ports))
	for i := range a.Ports {
		if n := view.Network(a.Ports[i].Network); n != nil {
			networks = append(networks, *n)
		}
	}
	return networks
}

// addMembers adds the members, and their ports, to the parts of their nodes.
func (r *rendered) addMembers(view *state.View, c *state.Cluster, w whereabouts) {
	add := func(m agentstream.Member) {
		a := m.Assignment
		p := r.byNode[a.Node]
		p.members = append(p.members, m)
		if !a.Saved && (!w.lost[a.ID] || w.together[a.ID]) { // whatever still runs of a lost one is cut off at once, before it is stopped; a saved one has none
			r.addPorts(&a, !m.Release || w.together[a.ID] || w.returning[a.ID])
			if !m.Release {
				r.addCarrier(&a)
			}
		}
		r.byNode[a.Node] = p
	}
	journeys := journeysOf(view, c)
	for _, a := range w.held {
		if journeys.early(&a) {
			continue
		}
		own := r.own[a.ID]
		m := agentstream.Member{
			Member:      driver.Member{Assignment: a.Sized(a.Wants()), Networks: networksOf(view, &a), Files: own.files, User: JobUser},
			PrivateHome: c.Intent.Spec.Home.Kind == api.HomeNone || a.ServesGPU(), Paused: lifecycle.Frozen(c.Record.Phase) && !a.ByProvisioner(),
			Save: lifecycle.Saves(c.Record.Phase, &a), FilesDigest: own.digest, Checks: checksOf(c.Intent.Spec, a.Group),
		}
		if a.IsMember() {
			m.Layers, m.LayersNumber = c.Intent.Layers, c.Intent.LayersNumber
			m.Condition, m.ConditionNumber = c.Intent.Condition, c.Intent.ConditionNumber
			m.Boot = lifecycle.BootOf(&c.Intent, a.ID)
			m.HardReboot = m.Boot != "" && c.Intent.Reboot.Hard
		}
		m.GPUServer = gpuServerOf(w.held, &a)
		m.Datasets = datasetsOf(view, c, &a)
		m.Verify = lifecycle.VerificationOf(&c.Intent, c.Record, &a)
		journeys.tell(c, &m)
		add(m)
	}
	for a := range c.Releasing() {
		grace := float64(releaseGraceSeconds)
		if w.lost[a.ID] {
			grace = 0
		}
		add(agentstream.Member{
			Member:      driver.Member{Assignment: *a, Networks: networksOf(view, a), User: JobUser},
			PrivateHome: c.Intent.Spec.Home.Kind == api.HomeNone, Release: true, ReleaseHome: c.Record.Phase == api.ClusterDeleting, GraceSeconds: grace,
			Datasets: datasetsOf(view, c, a),
		})
	}
}

// renderFiles renders the files that all members share, and into next those of each, as far as before does not have them.
func (d *desiredStates) renderFiles(view *state.View, c *state.Cluster, held []api.Assignment, before rendered, next *rendered) error {
	servers := slices.DeleteFunc(slices.Clone(held), func(a api.Assignment) bool { return !a.ServesGPU() })
	held = slices.DeleteFunc(slices.Clone(held), func(a api.Assignment) bool { return a.IsPart() || a.IsSnapshot() }) // no other part has files, nor has a snapshot
	for i := range held {
		if held[i].Saved { // what others know of it stays as it was, and will be again
			held[i].Slots = make([]int, coresOf(c.Intent.Spec, held[i].Group))
		}
		if held[i].Resizing != nil { // ranks are for the cores that there are
			held[i].Slots = held[i].Has().Slots
		}
	}
	if len(held) == 0 {
		return nil
	}
	var err error
	if next.authorities = before.authorities; next.authorities == nil {
		if next.authorities, err = d.authorities(&c.Intent); err != nil {
			return err
		}
	}
	renderer, err := d.renderer(view, c, held, servers, next.authorities)
	if err != nil {
		return err
	}
	next.goodUntil, next.basis, next.own = renderer.GoodUntil(), renderer.OwnBasis(), make(map[string]ownFiles, len(held))
	var anew []api.Assignment
	for _, a := range slices.Concat(held, servers) {
		own, known := before.own[a.ID]
		if !known || before.basis != next.basis {
			anew = append(anew, a)
			continue
		}
		next.own[a.ID] = own
	}
	made, err := renderOwn(renderer, anew)
	if err != nil {
		return err
	}
	for i, a := range anew {
		next.own[a.ID] = made[i]
	}
	if next.files, err = agentstream.NewFiles(c.UID(), renderer.Shared()); err != nil {
		return err
	}
	if next.files.Same(before.files) {
		next.files = before.files
	}
	return nil
}

// renderOwn renders the files that each of these members has for itself, on all CPUs at once: their keys and certificates take about 0.3 ms a
// member, and no node hears of a cluster before the last of them is done.
func renderOwn(renderer *contextualization.Renderer, members []api.Assignment) ([]ownFiles, error) {
	made, failed := make([]ownFiles, len(members)), make([]error, len(members))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(members)) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(members)); i = next.Add(1) - 1 {
				if made[i].files, failed[i] = renderer.Own(members[i]); failed[i] == nil {
					made[i].digest = agentstream.FilesDigest(made[i].files)
				}
			}
		})
	}
	workers.Wait()
	for _, err := range failed { // the first in the order of members, whichever failed first
		if err != nil {
			return nil, err
		}
	}
	return made, nil
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
		if a.Resumes != "" { // what it was before its snapshot was restored ends at once
			lost[a.From] = true
		}
	}
	for a := range c.Releasing() {
		if a.IsSuccessor() { // it never took over, and may run all the same
			lost[a.ID] = true
		}
	}
	return lost
}

// coresOf is how many cores each member of a group has while it runs.
func coresOf(spec api.ClusterSpec, group string) int {
	for _, g := range spec.Groups {
		if g.Name == group {
			return g.Cores
		}
	}
	return 0
}

func checksOf(spec api.ClusterSpec, group string) []api.Check {
	for _, g := range spec.Groups {
		if g.Name == group {
			return g.Checks
		}
	}
	return nil
}

func userDataOf(spec api.ClusterSpec) map[string]string {
	data := map[string]string{}
	for i := range spec.Groups {
		data[spec.Groups[i].Name] = spec.Groups[i].UserData
	}
	return data
}

// authorities derives the authorities of a cluster.
func (d *desiredStates) authorities(c *api.ClusterIntent) (*authorities, error) {
	secret := d.secrets.At(c.CreatedAt)
	ssh, err := sshca.New(secret, c.UID, c.CreatedAt)
	if err != nil {
		return nil, err
	}
	certificates, err := membercert.New(secret, c.UID)
	if err != nil {
		return nil, err
	}
	mungeKey, err := mungekey.Derive(secret, c.UID)
	return &authorities{ssh, certificates, mungeKey}, err
}

func (d *desiredStates) renderer(view *state.View, c *state.Cluster, held, servers []api.Assignment, by *authorities) (*contextualization.Renderer, error) {
	own := view.Network(c.UID())
	if own == nil {
		return nil, fmt.Errorf("its network %s is not stored", c.UID())
	}
	return contextualization.New(contextualization.Cluster{
		Name: c.Name(), Authority: by.ssh, Certificates: by.certificates, Now: d.now, Network: *own, Members: held, User: JobUser, Nameservers: d.nameservers,
		Joined: joinedBy(view, c), UserData: userDataOf(c.Intent.Spec), Neighbours: neighboursOf(view, c), Records: recordsOf(view, c),
		Slurm: slurmOf(view, c, held, by.mungeKey), GPUServers: servers, DatasetURLs: datasetURLsOf(view, c, held),
	})
}
