package sim

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// Some volumes are block volumes: disks of one virtual machine. A process on the volume's node serves one to each cluster that has it attached, another
// one there carries it to other nodes, and one on each of those takes it in. Each may end at any time.

// mostDisks is how many names of block volumes users choose from.
const mostDisks = 2

// scheduleDisks lets users make block volumes and clusters that have them, one after the other, and lets processes end, until it is calm. What they do
// is drawn by name, and shifts nothing else.
func (w *world) scheduleDisks() {
	if !w.cfg.Kinds.Has(Disks) {
		return
	}
	for i := range mostDisks {
		w.useDisk(fmt.Sprintf("disk%d", i), 0)
	}
	w.endProcessSomeDay(0)
}

// useDisk makes a block volume after a while, or a cluster that has it for a while, and then the next of the name.
func (w *world) useDisk(name string, turn int) {
	key := fmt.Sprintf("%s turn %d", name, turn)
	pause := func(what string, least, most int) time.Duration {
		return time.Duration(least+w.drawnFor(key+" "+what, most)) * time.Second
	}
	w.after(pause("begin", 5, 60), func() {
		if w.isCalm() {
			return
		}
		if s := w.up(); s != nil {
			if v := s.cache.View().VolumeNamed(name); v == nil {
				w.makeDisk(s, name, key)
			} else {
				w.changeDisk(s, v, key)
				w.createWithDisk(s, v, key, pause("lasts", 10, 240))
			}
		}
		w.useDisk(name, turn+1)
	})
}

// makeDisk makes a block volume: one in three as a clone of the other, if that is there.
func (w *world) makeDisk(s *server, name, key string) {
	in := api.VolumeIntent{
		Name: name, UID: strings.ReplaceAll(key, " ", ""), Project: api.DefaultProject, Kind: api.VolumeBlock, SizeBytes: storageUnit, Access: api.VolumeOneWriter, CreatedAt: s.now(),
	}
	for _, v := range s.cache.View().Volumes {
		if v.Intent.Kind == api.VolumeBlock && v.Intent.Name != name && w.drawnFor(key+" clone", 3) == 0 {
			in.Origin = &api.VolumeOrigin{VolumeUID: v.UID(), SnapshotUID: api.CloneSnapshotUID(in.UID)}
			in.SizeBytes = max(in.SizeBytes, v.Intent.SizeBytes)
		}
	}
	_, err := s.repo.CreateVolume(s.ctx, in, func([]api.VolumeIntent) error { return nil })
	if err == nil {
		w.happened("block volume made")
	}
	w.trace("new block volume %s (%s): %v", name, in.UID, err)
}

// changeDisk makes a block volume larger, or deletes it.
func (w *world) changeDisk(s *server, v *state.Volume, key string) {
	var err error
	switch w.drawnFor(key+" change", 8) {
	case 0, 1:
		_, _, err = s.repo.ChangeVolume(s.ctx, v.Name(), v.UID(), func(v *api.VolumeIntent, _ []api.VolumeIntent) error {
			v.SizeBytes = max(v.SizeBytes, int64(1+w.drawnFor(key+" size", 3))*storageUnit)
			return nil
		})
	case 2:
		_, _, err = s.repo.RequestVolumeDelete(s.ctx, v.Name(), v.UID(), s.now(), func(*api.VolumeIntent) time.Time { return s.now() })
	default:
		return
	}
	w.trace("change of block volume %s: %v", v.Name(), err)
}

// createWithDisk is what the API does with a request for a cluster of one virtual machine with a block volume.
func (w *world) createWithDisk(s *server, v *state.Volume, key string, lasts time.Duration) {
	in := api.ClusterIntent{Name: "with-" + v.Name(), UID: "with" + strings.ReplaceAll(key, " ", ""), Project: api.DefaultProject, CreatedAt: s.now()}
	if w.drawnFor(key+" name", 3) == 0 {
		in.Name += "-too" // while the last one may still have it
	}
	in.Spec.Groups = []api.Group{{Name: "g0", Size: 1, Shape: api.Shape{Cores: 1}, Stack: api.StackVM, Environment: "local"}}
	if w.drawnFor(key+" rack", 2) == 0 {
		in.Spec.Groups[0].NodeSelector = map[string]string{"rack": fmt.Sprintf("r%d", w.drawnFor(key+" which rack", 2))}
	}
	in.Spec.Queue = w.drawnFor(key+" queue", 2) == 0
	in.Spec.Volumes = []api.VolumeAttachment{{Name: v.Name(), ReadOnly: w.drawnFor(key+" read", 5) == 0}}
	if _, err := s.repo.CreateCluster(s.ctx, in); err != nil {
		w.trace("create %s (%s) with %s: %v", in.Name, in.UID, v.Name(), err)
		if isAny(err, []error{state.ErrInUse}) {
			w.happened("block volume in use")
		} else if !isAny(err, volumeErrors) && !isAny(err, []error{state.ErrExists}) && s.ctx.Err() == nil {
			w.must(err)
		}
		return
	}
	w.trace("create %s (%s) with %s: %+v", in.Name, in.UID, v.Name(), in.Spec)
	w.happened(Disks.String())
	w.count(func(st *Stats) { st.Lives++ })
	w.scheduleAttachments(in.Name, in.UID, lasts)
	w.useMachine(in.Name, in.UID, lasts, 0)
	w.after(lasts, func() {
		if !w.isCalm() && w.drawnFor(key+" stays", 3) > 0 {
			w.delete(in.Name, in.UID)
		}
	})
}

// useMachine does one thing after the other to a cluster of one machine.
func (w *world) useMachine(name, uid string, lasts time.Duration, turn int) {
	key := fmt.Sprintf("%s use %d", uid, turn)
	at := time.Duration(1+w.drawnFor(key, 60)) * time.Second
	if at > lasts {
		return
	}
	w.after(at, func() {
		if w.isCalm() {
			return
		}
		goesOn := time.Duration(1+w.drawnFor(key+" goes on", 90)) * time.Second
		switch what := w.drawnFor(key+" what", 8); what {
		case 0, 1:
			if w.cfg.Kinds.Has(Save) && w.save(name, uid) {
				w.after(goesOn, func() { w.restore(name, uid) })
			}
		case 2, 3, 4:
			if w.cfg.Kinds.Has(Move) {
				w.move(name, uid, moveRequest{to: w.drawnFor(key+" to", 2*mostNodes), offline: what > 2 || w.drawnFor(key+" live", 3) > 0, member: mostNodes})
			}
		case 5:
			w.change(name, uid, change{kind: Pause, size: 2, limit: 4 * goesOn})
		case 6:
			if w.cfg.Kinds.Has(Resize) {
				w.resize(name, uid, 0, api.Shape{Cores: 1 + w.drawnFor(key+" cores", 2)})
			}
		default:
			w.scaleWithDisk(name, uid)
		}
		w.useMachine(name, uid, lasts-at, turn+1)
	})
}

// scaleWithDisk asks for a second member of a cluster with a block volume, which the API refuses (apiserver.keepsDisks).
func (w *world) scaleWithDisk(name, uid string) {
	if w.cfg.Without == GuardOneMember {
		w.change(name, uid, change{kind: Scale, size: 2})
	}
}

// hasDisk reports whether a cluster has a block volume.
func hasDisk(view *state.View, in *api.ClusterIntent) bool {
	return slices.ContainsFunc(in.Spec.Volumes, func(a api.VolumeAttachment) bool {
		v := view.VolumeNamed(state.VolumeName(in.Project, a.Name))
		return v != nil && v.Intent.Kind == api.VolumeBlock
	})
}

// disk is a block volume of a cluster, as processes serve and carry it.
type disk struct{ uid, cluster string }

// obeyDisk brings what serves a block volume to what is wanted. What a member on this node has stays, and so does what other
// nodes have: then nothing changes before the end of that.
func (a *agent) obeyDisk(v *volume.Volume) {
	p, next := a.n.pool, map[disk]bool{}
	for _, at := range v.Attachments {
		next[disk{v.UID, at.ClusterUID}] = at.ReadOnly
	}
	kept := map[disk]bool{}
	for d, readOnly := range p.serves {
		if _, wanted := next[d]; d.uid != v.UID || wanted {
			continue
		}
		if c := a.n.crossings[d.cluster]; c != nil && slices.Contains(c.serves, d.uid) {
			return
		}
		if a.n.hasMachine(d) {
			kept[d] = readOnly
		}
	}
	maps.Copy(next, kept)
	maps.DeleteFunc(p.serves, func(d disk, _ bool) bool { _, stays := next[d]; return d.uid == v.UID && !stays })
	maps.Copy(p.serves, next)
	a.n.w.touched()
}

// convergeDisks goes on with what waits for the end of a member, and starts processes that have ended.
func (a *agent) convergeDisks() {
	if !a.current {
		return
	}
	for i := range a.volumes {
		v := &a.volumes[i]
		if there, ok := a.n.pool.volumes[v.UID]; !v.Block || !ok || v.Purge || there.Generation == 0 {
			continue
		}
		lacks := slices.ContainsFunc(v.Attachments, func(at volume.Attachment) bool {
			_, serves := a.n.pool.serves[disk{v.UID, at.ClusterUID}]
			return !serves
		})
		extra := false
		for d := range a.n.pool.serves {
			extra = extra || d.uid == v.UID && !slices.ContainsFunc(v.Attachments, func(at volume.Attachment) bool { return at.ClusterUID == d.cluster })
		}
		if lacks || extra {
			key := fmt.Sprintf("%s %s %d", a.n.record.Name, v.UID, v.Generation)
			a.later("serve "+v.UID, func() { a.applyVolume(*v, key, 0) })
		}
	}
	for _, cluster := range slices.Sorted(maps.Keys(a.sharings)) {
		s, has := a.sharings[cluster], a.n.crossings[cluster]
		lacks := slices.ContainsFunc(s.Serves, func(v volume.Share) bool { return v.Block && (has == nil || !slices.Contains(has.serves, v.UID)) }) ||
			slices.ContainsFunc(s.Reaches, func(r volume.Remote) bool { return r.Block && (has == nil || !has.reaches[r.UID]) })
		if lacks {
			a.later("carry "+cluster, func() {
				a.applySharing(cluster, fmt.Sprintf("%s %s sharing %d", a.n.record.Name, cluster, a.epoch.Revision), 0)
			})
		}
	}
}

// later does something after a while, unless it is about to anyhow.
func (a *agent) later(what string, do func()) {
	if a.waits[what] {
		return
	}
	if a.waits == nil {
		a.waits = map[string]bool{}
	}
	a.waits[what] = true
	a.n.w.after(time.Duration(200+a.n.w.drawnFor(fmt.Sprintf("%s %s %s", a.n.record.Name, what, time.Now()), 3000))*time.Millisecond, func() {
		a.run(func() {
			delete(a.waits, what)
			do()
			a.wake(0)
		})
	})
}

// hasMachine reports whether a machine of a cluster is there that has a block volume.
func (n *node) hasMachine(d disk) bool {
	for id, h := range n.host {
		if clusterOf(id) == d.cluster && hasVolume(h.volumes, d.uid) {
			return true
		}
	}
	return false
}

// anotherMachine reports whether a machine runs here, other than two, that has a block volume.
func (a *agent) anotherMachine(uid, but, or string) bool {
	for id, h := range a.n.host {
		if id != but && id != or && (h.runs() || a.member(id).busy) && hasVolume(h.volumes, uid) {
			return a.n.w.cfg.Without != GuardOneMachine
		}
	}
	return false
}

// leavesMachine reports whether a machine here that is to go still has a block volume.
func (a *agent) leavesMachine(uid string) bool {
	for id, h := range a.n.host {
		if d, wanted := a.desired[id]; (!wanted || d.Release) && (h.runs() || a.member(id).busy) && hasVolume(h.volumes, uid) {
			return a.n.w.cfg.Without != GuardOneMachine
		}
	}
	return false
}

// mayShare reports whether a volume is served to other nodes now.
func (a *agent) mayShare(s volume.Share, cluster string) bool {
	if !s.Block {
		return true
	}
	_, serves := a.n.pool.serves[disk{s.UID, cluster}]
	return serves && !a.leavesMachine(s.UID)
}

// hasDiskHere reports whether a machine may begin with a block volume.
func (a *agent) hasDiskHere(claim api.VolumeClaim, id string, d wanted) bool {
	if !claim.Block {
		return true
	}
	if a.anotherMachine(claim.UID, id, d.from) {
		a.n.w.happened("machine waits for the end of another")
		return false
	}
	_, serves := a.n.pool.serves[disk{claim.UID, d.cluster}]
	return serves || claim.Node != a.n.record.Name
}

// endProcessSomeDay ends one of the processes now and then.
func (w *world) endProcessSomeDay(turn int) {
	key := fmt.Sprintf("end of a process %d", turn)
	w.after(time.Duration(1+w.drawnFor(key, 20))*time.Second, func() {
		if w.isCalm() || !w.cfg.Kinds.Has(DiskEnds) {
			return
		}
		w.endProcess(key)
		w.endProcessSomeDay(turn + 1)
	})
}

// endProcess ends one process. Its agent notices after a while.
func (w *world) endProcess(key string) {
	type process struct {
		text string
		end  func(n *node)
		on   *node
	}
	var all []process
	for _, n := range w.nodes {
		for d := range n.pool.serves {
			all = append(all, process{fmt.Sprintf("%s serves %+v", n.record.Name, d), func(n *node) { delete(n.pool.serves, d) }, n})
		}
		for cluster, c := range n.crossings {
			if len(c.shares()) > 0 {
				all = append(all, process{fmt.Sprintf("%s shares %s", n.record.Name, cluster), func(*node) { c.endShare() }, n})
			}
			for uid := range c.reaches {
				if w.isBlock(uid) {
					all = append(all, process{fmt.Sprintf("%s reaches %s of %s", n.record.Name, uid, cluster), func(*node) { delete(c.reaches, uid) }, n})
				}
			}
		}
	}
	if len(all) == 0 {
		return
	}
	slices.SortFunc(all, func(a, b process) int { return strings.Compare(a.text, b.text) })
	p := all[w.drawnFor(key+" which", len(all))]
	w.happened(DiskEnds.String())
	w.trace("the process ends by which %s", p.text)
	p.end(p.on)
	w.touched()
	if a := p.on.agent; a != nil {
		w.after(time.Duration(1+w.drawnFor(key+" noticed", 5000))*time.Millisecond, func() {
			a.run(func() {
				a.report()
				a.wake(0)
			})
		})
	}
}

// isBlock reports whether a volume is a block volume.
func (w *world) isBlock(uid string) bool {
	block := false
	w.read(func(m *mirror) { block = m.blocks[uid] })
	return block
}

// shares are the block volumes that a node serves to others.
func (c *crossing) shares() []string {
	var all []string
	for uid := range c.blocks {
		if slices.Contains(c.serves, uid) {
			all = append(all, uid)
		}
	}
	return all
}

// endShare ends the process that serves block volumes to others.
func (c *crossing) endShare() {
	c.serves = slices.DeleteFunc(c.serves, func(uid string) bool { return c.blocks[uid] })
	if clear(c.blocks); len(c.serves) == 0 {
		c.clients = nil
	}
}

// writer is who may write to a block volume: a machine, or a node that carries for one.
type writer struct {
	node, id string // "" where only the process is there
	cluster  string
}

// checkDisks checks that nobody may write to a block volume but one machine, by no process that serves or carries it, once that has begun.
func (w *world) checkDisks() {
	var held map[string]*api.Assignment
	var released map[string]int64
	var from map[string]string
	var blocks map[string]bool
	w.read(func(m *mirror) {
		if len(m.blocks) > 0 {
			held, released, from, blocks = m.held, maps.Clone(m.released), m.from, maps.Clone(m.blocks)
		}
	})
	if blocks == nil {
		return
	}
	for _, n := range w.nodes {
		if !n.up || !n.box.carries(n.life) {
			continue
		}
		by := map[string][]writer{}
		for d, readOnly := range n.pool.serves {
			if !readOnly {
				by[d.uid] = append(by[d.uid], w.writers(n, d)...)
			}
		}
		for uid, all := range by {
			runs := slices.DeleteFunc(slices.Clone(all), func(x writer) bool { return x.id == "" })
			slices.SortFunc(runs, func(a, b writer) int { return strings.Compare(a.id, b.id) })
			if len(runs) > 1 {
				w.fail("disks", "%s on %s and %s on %s may both write to block volume %s on %s", runs[0].id, runs[0].node, runs[1].id, runs[1].node, uid, n.record.Name)
			}
			if len(runs) == 0 {
				continue
			}
			if one := runs[0]; one.node != n.record.Name {
				w.happened("block volume of another node")
			}
			for _, x := range all {
				if x.node == runs[0].node || !slices.ContainsFunc(w.nodes, func(o *node) bool { return o.record.Name == x.node && o.up }) {
					continue
				}
				stays, left := false, false
				for id, a := range held {
					if a.Node == x.node && a.ClusterUID == x.cluster && hasVolume(a.Volumes, uid) {
						stays = stays || released[id] == 0 || from[runs[0].id] == id
						left = left || w.checks.ran[id]
					}
				}
				if left && !stays {
					w.fail("disks", "%s runs on %s with block volume %s of %s, which %s still carries for cluster %s", runs[0].id, runs[0].node, uid, n.record.Name, x.node, x.cluster)
				}
			}
		}
	}
}

// writers are those of a cluster for whom a node serves a block volume.
func (w *world) writers(server *node, d disk) []writer {
	var all []writer
	on := func(n *node) {
		for id, h := range n.host {
			if clusterOf(id) == d.cluster && h.runs() && slices.ContainsFunc(h.volumes, func(c api.VolumeClaim) bool { return c.UID == d.uid && !c.ReadOnly }) {
				all = append(all, writer{n.record.Name, id, d.cluster})
			}
		}
	}
	on(server)
	c := server.crossings[d.cluster]
	if c == nil || !slices.Contains(c.serves, d.uid) {
		return all
	}
	for _, n := range w.nodes {
		has := n.crossings[d.cluster]
		if n == server || !n.up || !n.box.carries(n.life) || has == nil || !has.reaches[d.uid] || !c.letsIn(netip.MustParseAddr(n.record.Underlay)) {
			continue
		}
		all = append(all, writer{n.record.Name, "", d.cluster})
		on(n)
	}
	return all
}

// checkKinds checks that a node is told of each volume as what it is.
func (a *agent) checkKinds(d *agentstream.Desired) {
	var blocks map[string]bool
	a.n.w.read(func(m *mirror) { blocks = maps.Clone(m.blocks) })
	kind := func(what, uid string, block bool) {
		if a.n.w.cfg.Without == GuardKind {
			block = false
		}
		if block != blocks[uid] {
			a.n.w.fail("kinds", "%s hears of %s %s as block volume: %t, and it is: %t", a.n.record.Name, what, uid, block, blocks[uid])
		}
	}
	for i := range d.Volumes {
		if v := &d.Volumes[i]; !v.Purge {
			kind("volume", v.UID, v.Block)
		}
	}
	for i := range d.Members {
		for _, c := range d.Members[i].Assignment.Volumes {
			kind("the claim on", c.UID, c.Block)
		}
	}
	for i := range d.Sharings {
		for _, s := range d.Sharings[i].Serves {
			kind("the share of", s.UID, s.Block)
		}
		for _, r := range d.Sharings[i].Reaches {
			kind("the way to", r.UID, r.Block)
		}
	}
}

// checkDisksClaimed checks that a block volume is claimed by one cluster of one machine, and by no other before the last claim was released.
func (m *mirror) checkDisksClaimed() {
	if len(m.blocks) == 0 {
		return
	}
	claim := map[string]string{}
	one := func(a *api.Assignment, released bool, members map[string]string) {
		for _, c := range a.Volumes {
			if c.Block != m.blocks[c.UID] {
				m.w.fail("kinds", "%s claims %s as block volume: %t", a.ID, c.UID, c.Block)
			}
			if !c.Block {
				continue
			}
			if a.Stack != api.StackVM || a.Spare || c.Detaching {
				m.w.fail("disks", "%s on stack %s claims block volume %s, detaching %t", a.ID, a.Stack, c.UID, c.Detaching)
			}
			if c.ReadOnly {
				continue
			}
			if other := claim[c.UID]; other != "" && other != a.ClusterUID {
				m.w.fail("disks", "clusters %s and %s both claim block volume %s", min(other, a.ClusterUID), max(other, a.ClusterUID), c.UID)
			}
			claim[c.UID] = a.ClusterUID
			if released || a.IsSuccessor() || a.IsSnapshot() {
				continue
			}
			if other, taken := members[c.UID]; taken {
				m.w.fail("disks", "%s and %s of one cluster both hold block volume %s", min(other, a.ID), max(other, a.ID), c.UID)
			}
			members[c.UID] = a.ID
		}
	}
	for _, name := range m.names() {
		members := map[string]string{}
		for _, a := range m.assignments(m.clusters[name].record) {
			if !a.clean {
				one(a.Assignment, a.releasedAt != nil, members)
			}
		}
		if in := m.clusters[name].intent; in != nil && len(members) > 0 {
			if why := lifecycle.DiskBearable(&in.Spec); why != "" {
				m.w.fail("disks", "cluster %s has a block volume: %s", name, why)
			}
		}
	}
}

// checkMade checks that a volume is made as what it is, and stays that.
func (w *world) checkMade(v *volume.Volume, there map[string]volume.State) {
	if block := w.isBlock(v.UID); v.Block != block {
		w.fail("kinds", "volume %s is made as block volume: %t, and it is: %t", v.UID, v.Block, block)
	}
	if has, ok := there[v.UID]; ok && v.Block && v.SizeBytes < has.SizeBytes {
		w.fail("disks", "block volume %s is made smaller, from %d to %d bytes", v.UID, has.SizeBytes, v.SizeBytes)
	}
}

// lostDisk reports whether a cluster has a block volume that is lost, which no machine begins with.
func (w *world) lostDisk(view *state.View, c *state.Cluster) bool {
	return slices.ContainsFunc(c.Intent.Spec.Volumes, func(a api.VolumeAttachment) bool {
		v := view.VolumeNamed(state.VolumeName(c.Intent.Project, a.Name))
		if v == nil || v.Intent.Kind != api.VolumeBlock {
			return false
		}
		n := w.node(v.Node())
		if n == nil {
			return true
		}
		_, there := n.pool.volumes[v.UID()]
		return !there
	})
}
