package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/plan"
)

const (
	prefixVolumeRecord = "volumerecord/"
	prefixVolumeIntent = "volumeintent/"
)

// mostVolumes is how many names of volumes users choose from.
const mostVolumes = 5

// pool is what a node keeps volumes on. It is on its disk.
type pool struct {
	volumes map[string]volume.State
	// obeyed is the newest generation that was obeyed of each volume, purged are those that were wiped.
	obeyed map[string]int64
	purged map[string]bool
	// serves are the block volumes that a process serves to a cluster; true: read-only. These end with the kernel.
	serves map[disk]bool
}

func newPool() *pool {
	return &pool{volumes: map[string]volume.State{}, obeyed: map[string]int64{}, purged: map[string]bool{}, serves: map[disk]bool{}}
}

// addPool gives every second node of those that are always on room for volumes.
func (w *world) addPool(record *api.NodeRecord) {
	record.VolumeSharing = &api.VolumeSharing{}
	if w.drawnFor(record.Name+" shares", 5) == 0 {
		record.VolumeSharing = &api.VolumeSharing{ServeProblem: "no server", ReachProblem: "no client"}
	}
	record.VolumeSharing.Blocks = w.drawnFor(record.Name+" blocks", 6) > 0
	if w.drawnFor(record.Name+" pool", 2) == 0 {
		record.VolumePool = &api.VolumePool{Kind: "xfs", CapacityBytes: int64(2+w.drawnFor(record.Name+" room", 8)) << 30}
	}
}

// scheduleVolumes lets users make volumes, change them and delete them, until it is calm. What they do is drawn by name, and shifts nothing else.
func (w *world) scheduleVolumes() {
	for i := range mostVolumes {
		w.useVolume(fmt.Sprintf("vol%d", i), 0)
	}
}

// useVolume does one thing to a volume after a while, and then the next.
func (w *world) useVolume(name string, turn int) {
	key := fmt.Sprintf("%s turn %d", name, turn)
	w.after(time.Duration(5+w.drawnFor(key, 60))*time.Second, func() {
		if w.isCalm() {
			return
		}
		if s := w.up(); s != nil {
			w.changeVolume(s, name, key)
		}
		w.useVolume(name, turn+1)
	})
}

// changeVolume makes a volume, or does what its user wants of it next.
func (w *world) changeVolume(s *server, name, key string) {
	v := s.cache.View().VolumeNamed(name)
	if v == nil {
		w.makeVolume(s, name, key)
		return
	}
	change := func(do func(*api.VolumeIntent)) error {
		_, _, err := s.repo.ChangeVolume(s.ctx, name, v.UID(), func(v *api.VolumeIntent, _ []api.VolumeIntent) error {
			do(v)
			return nil
		})
		return err
	}
	var what string
	var err error
	if v.Importing() && w.drawnFor(key+" import", 2) == 0 {
		w.importVolume(s, v, key)
		return
	}
	switch w.drawnFor(key+" change", 7) {
	case 0, 1:
		what = "resize"
		err = change(func(v *api.VolumeIntent) { v.SizeBytes = int64(1+w.drawnFor(key+" size", 4)) << 29 })
	case 2:
		what = "snapshot"
		err = change(func(v *api.VolumeIntent) {
			v.Snapshots = append(v.Snapshots, api.VolumeSnapshotIntent{Name: key, UID: key})
		})
	case 3:
		what = "snapshot end"
		err = change(func(v *api.VolumeIntent) { v.Snapshots = nil })
	case 4:
		what = "undelete"
		_, _, err = s.repo.UndeleteVolume(s.ctx, name, v.UID())
	default:
		what = "delete"
		kept := time.Duration(w.drawnFor(key+" kept", 3)) * time.Minute
		_, _, err = s.repo.RequestVolumeDelete(s.ctx, name, v.UID(), s.now(), func(*api.VolumeIntent) time.Time { return s.now().Add(kept) })
	}
	if err == nil {
		w.happened("volume " + what)
	}
	w.trace("%s of volume %s: %v", what, name, err)
}

// makeVolume makes a new volume: one in three as a clone of another, and some of a backup.
func (w *world) makeVolume(s *server, name, key string) {
	in := api.VolumeIntent{
		Name: name, UID: key, Project: api.DefaultProject, SizeBytes: int64(1+w.drawnFor(key+" size", 4)) << 29, MaxFiles: 1000, Access: api.VolumeShared, CreatedAt: s.now(),
	}
	if w.oneWriter(in.UID) {
		in.Access = api.VolumeOneWriter
	}
	if others := fileVolumes(s.cache.View()); len(others) > 0 && w.drawnFor(key+" clone", 3) == 0 {
		origin := others[w.drawnFor(key+" origin", len(others))]
		in.Origin = &api.VolumeOrigin{VolumeUID: origin.UID(), SnapshotUID: api.CloneSnapshotUID(in.UID)}
		in.SizeBytes = max(in.SizeBytes, origin.Intent.SizeBytes)
	} else if w.drawnFor(key+" backup", 3) == 0 {
		in.Origin = &api.VolumeOrigin{Upload: true}
	}
	_, err := s.repo.CreateVolume(s.ctx, in, func([]api.VolumeIntent) error { return nil })
	if err == nil {
		w.happened("volume made")
	}
	w.trace("new volume %s: %v", name, err)
}

// fileVolumes are those that are file systems.
func fileVolumes(view *state.View) []*state.Volume {
	return slices.DeleteFunc(slices.Clone(view.Volumes), func(v *state.Volume) bool { return v.Intent.Kind == api.VolumeBlock })
}

// obeyVolumes lets a node make its volumes as they are wanted, each after a while.
func (a *agent) obeyVolumes(wanted []volume.Volume) {
	a.volumes = wanted
	for i := range wanted {
		v := wanted[i]
		key := fmt.Sprintf("%s %s %d", a.n.record.Name, v.UID, v.Generation)
		a.n.w.after(time.Duration(1+a.n.w.drawnFor(key, 3000))*time.Millisecond, func() { a.run(func() { a.applyVolume(v, key, 0) }) })
	}
}

// applyVolume brings one volume to what is wanted, and tries again as long as the leader wants the same.
func (a *agent) applyVolume(v volume.Volume, key string, try int) {
	now := slices.IndexFunc(a.volumes, func(o volume.Volume) bool { return o.UID == v.UID })
	if now < 0 || a.volumes[now].Generation != v.Generation {
		return // something newer is wanted
	}
	v = a.volumes[now]
	problem := a.n.apply(&v)
	if _, there := a.n.pool.volumes[v.UID]; there && v.Block && !v.Purge && !a.n.sick {
		a.obeyDisk(&v)
	}
	if problem != "" && try < 100 {
		a.n.w.after(time.Duration(1+a.n.w.drawnFor(key+" again", 10))*time.Second, func() { a.run(func() { a.applyVolume(v, key, try+1) }) })
	}
	a.report()
}

// apply is what a pool does. It returns why it could not.
func (n *node) apply(v *volume.Volume) string {
	p := n.pool
	switch {
	case n.sick:
		return "the disk does not answer"
	case v.Generation < p.obeyed[v.UID]:
		n.w.happened("stale volume")
		return "a newer decision was obeyed"
	case v.Purge:
		n.purge(v)
		return ""
	case p.purged[v.UID]:
		n.w.fail("volumes", "volume %s comes back to %s after it was purged there", v.UID, n.record.Name)
	}
	seen, there := p.volumes[v.UID]
	switch {
	case there:
	case v.Made:
		return "it was lost"
	case v.Origin.IsUpload():
		n.w.happened("volume waits for its backup")
		return "it waits for its backup"
	case n.w.ofBackup(v.UID):
		n.w.fail("volumes", "volume %s is made on %s without the backup that it is made of", v.UID, n.record.Name)
	case v.Origin != nil && !n.hasSnapshot(v.Origin):
		return "its origin has no such snapshot yet"
	}
	if n.taken(v.UID)+v.SizeBytes > n.record.VolumePool.CapacityBytes {
		return "the pool has too little room"
	}
	p.obeyed[v.UID] = v.Generation
	seen = volume.State{UID: v.UID, Generation: v.Generation, Ready: true, SizeBytes: v.SizeBytes, MaxFiles: v.MaxFiles}
	n.w.checkMade(v, p.volumes)
	for _, uid := range v.Snapshots {
		seen.Snapshots = append(seen.Snapshots, volume.SnapshotState{UID: uid})
	}
	p.volumes[v.UID] = seen
	return ""
}

// purge wipes a volume. No member may have it attached, and no volume may still be to begin as one of its snapshots.
func (n *node) purge(v *volume.Volume) {
	for d := range n.pool.serves {
		if d.uid == v.UID {
			n.w.happened("block volume is purged while it is served")
			if n.hasMachine(d) {
				n.w.fail("disks", "block volume %s is purged while a machine of cluster %s has it", d.uid, d.cluster)
			}
			delete(n.pool.serves, d)
		}
	}
	n.w.read(func(m *mirror) {
		for id, a := range m.held {
			for i := range a.Volumes {
				if a.Volumes[i].UID == v.UID {
					n.w.fail("volumes", "volume %s is purged while member %s has it attached", v.UID, id)
				}
			}
		}
		m.checkHomesPurged(v.UID)
		for id, h := range n.host {
			if m.held[id] != nil && h.runs() && n.box.carries(n.life) && hasVolume(h.volumes, v.UID) {
				n.w.fail("volumes", "volume %s is purged while member %s on %s has it mounted", v.UID, id, n.record.Name)
			}
		}
		if rec := m.volumes[v.UID]; rec != nil && !rec.Purging {
			n.w.fail("volumes", "volume %s is wiped on %s, and its record does not say so", v.UID, n.record.Name)
		}
	})
	n.pool.obeyed[v.UID], n.pool.purged[v.UID] = v.Generation, true
	if _, there := n.pool.volumes[v.UID]; there {
		n.w.happened("volume wiped")
	}
	delete(n.pool.volumes, v.UID)
}

func (n *node) hasSnapshot(o *api.VolumeOrigin) bool {
	return slices.ContainsFunc(n.pool.volumes[o.VolumeUID].Snapshots, func(s volume.SnapshotState) bool { return s.UID == o.SnapshotUID })
}

// taken is the room of all volumes on a node's disk but one.
func (n *node) taken(except string) int64 {
	var sum int64
	for uid, v := range n.pool.volumes {
		if uid != except {
			sum += v.SizeBytes
		}
	}
	return sum
}

// volumesObserved adds what an agent says of volumes.
func (a *agent) volumesObserved(told *agentstream.Observed) {
	for _, uid := range slices.Sorted(maps.Keys(a.n.pool.volumes)) {
		seen := a.n.pool.volumes[uid]
		seen.Problem = a.unlimited(uid)
		for _, d := range slices.SortedFunc(maps.Keys(a.n.pool.serves), func(a, b disk) int { return strings.Compare(a.cluster, b.cluster) }) {
			if d.uid == uid {
				seen.Attached = append(seen.Attached, d.cluster)
			}
		}
		told.Volumes = append(told.Volumes, seen)
	}
	for i := range a.volumes {
		v := &a.volumes[i]
		if v.Purge && a.n.pool.purged[v.UID] {
			told.PurgedVolumes = append(told.PurgedVolumes, v.UID)
		}
		if a.awaitsBackup(v) {
			told.Volumes = append(told.Volumes, volume.State{UID: v.UID, Import: &volume.ImportState{}})
		}
	}
}

// putVolume checks the record of a volume that becomes true: it lies on one node for good, goes forward only, and fits the pool with all others.
func (m *mirror) putVolume(uid string, op store.Op) {
	was := m.volumes[uid]
	if op.Delete {
		if was != nil && !was.Purging {
			m.w.fail("volumes", "volume %s is forgotten while it lies on %s", uid, was.Node)
		}
		delete(m.volumes, uid)
		m.gone[uid] = true
		return
	}
	rec := decodeOp[api.VolumeRecord](m.w, op)
	switch {
	case m.gone[uid]:
		m.w.fail("volumes", "volume %s comes back after it was forgotten", uid)
	case was != nil && (was.Node != rec.Node || was.Generation >= rec.Generation || was.Purging && !rec.Purging || was.Made && !rec.Made):
		m.w.fail("volumes", "the record of volume %s goes from %+v to %+v", uid, *was, *rec)
	}
	m.volumes[uid] = rec
	var sum int64
	for _, other := range m.volumes {
		if other.Node == rec.Node {
			sum += other.SizeBytes
		}
	}
	grows := was == nil || rec.SizeBytes > was.SizeBytes
	if n := m.w.node(rec.Node); grows && (n == nil || n.record.VolumePool == nil || sum > n.record.VolumePool.CapacityBytes) {
		m.w.fail("volumes", "the volumes on %s come to %d bytes with %s, which is more than it has", rec.Node, sum, uid)
	}
}

// checkVolumesAtRest checks that each volume is as its user wants, or that it can't be.
func (w *world) checkVolumesAtRest(s *server) {
	now := situation.Volumes(s.cache.View(), s.monitor, s.now())
	for _, v := range s.cache.View().Volumes {
		seen := plan.Show(&now, v.UID())
		w.happened("volume at rest " + string(seen.Phase))
		n := w.node(v.Node())
		lost := v.Record != nil && v.Record.Made && n != nil && n.pool.volumes[v.UID()].UID == ""
		switch {
		case lost || v.Record != nil && s.cache.View().Node(v.Node()) == nil:
		case seen.Phase == api.VolumePending && seen.Message != "":
		case seen.Phase == api.VolumeImporting && n != nil && n.pool.volumes[v.UID()].UID == "":
		case seen.Phase == api.VolumeReady && (!seen.Resizing || seen.Message != ""):
		case seen.Phase == api.VolumeCreating && w.waitsForOrigin(s.cache.View(), v):
		case seen.Phase == api.VolumeReady && w.tooFull(v):
		case seen.Phase == api.VolumeDeleted && (v.Intent.PurgeAt != nil && v.Intent.PurgeAt.After(s.now()) || strings.Contains(seen.Message, "a clone of it")):
		default:
			w.fail("rest", "volume %s (%s) is %s (%s), resizing %t, on %q; its record is %+v", v.Name(), v.UID(), seen.Phase, seen.Message, seen.Resizing, v.Node(), v.Record)
		}
	}
}

// waitsForOrigin reports whether a clone can't be made, since what it is to begin as was lost.
func (w *world) waitsForOrigin(view *state.View, v *state.Volume) bool {
	return v.Intent.Origin.IsSnapshot() && w.node(v.Node()) != nil && !w.node(v.Node()).hasSnapshot(v.Intent.Origin)
}

// tooFull reports whether the node of a volume has no room for it, since volumes lie there that the site forgot.
func (w *world) tooFull(v *state.Volume) bool {
	n := w.node(v.Node())
	return n != nil && n.taken(v.UID())+v.Intent.SizeBytes > n.record.VolumePool.CapacityBytes
}

// endVolumes deletes all volumes, and reports whether that is done.
func (w *world) endVolumes(s *server) bool {
	for _, v := range s.cache.View().Volumes {
		if v.Intent.UID == "" || v.Intent.ClusterUID != "" || v.Intent.PurgeAt != nil && !v.Intent.PurgeAt.After(s.now()) {
			continue
		}
		if _, _, err := s.repo.RequestVolumeDelete(s.ctx, v.Intent.Name, v.UID(), s.now(), func(*api.VolumeIntent) time.Time { return s.now() }); err != nil {
			return false
		}
	}
	return true
}
