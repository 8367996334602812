package sim

import (
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// Some volumes are made of backups. Their nodes wait for these; users send them, some not whole, or give up. A node that dies meanwhile has nothing.

// ofBackup reports whether a volume is one that is made of a backup, and has not become whole.
func (w *world) ofBackup(uid string) bool {
	s := w.up()
	if s == nil {
		return false
	}
	v := s.cache.View().Volume(uid)
	return v != nil && v.Intent.UID != "" && v.Importing()
}

// awaitsBackup reports whether a node waits for the backup of a volume.
func (a *agent) awaitsBackup(v *volume.Volume) bool {
	_, there := a.n.pool.volumes[v.UID]
	return !there && !v.Purge && !v.Made && v.Origin.IsUpload()
}

// importVolume sends the backup of a volume to its node, or gives up.
func (w *world) importVolume(s *server, v *state.Volume, key string) {
	n := w.node(v.Node())
	switch {
	case w.drawnFor(key+" gives up", 4) == 0:
		_, _, err := s.repo.GiveUpImport(s.ctx, v.Name(), v.UID(), s.now())
		if err == nil {
			w.happened("volume import given up")
		}
		w.trace("import of volume %s is given up: %v", v.Name(), err)
	case n != nil && n.agent != nil:
		a, whole := n.agent, w.drawnFor(key+" is whole", 3) > 0
		a.run(func() {
			w.after(time.Duration(1+w.drawnFor(key+" takes", 20))*time.Second, func() { a.run(func() { a.receivedBackup(v.UID(), whole) }) })
		})
	}
}

// receivedBackup makes a volume of the backup that was sent, if it is whole and still wanted.
func (a *agent) receivedBackup(uid string, whole bool) {
	i := slices.IndexFunc(a.volumes, func(v volume.Volume) bool { return v.UID == uid })
	if i < 0 || !a.awaitsBackup(&a.volumes[i]) || a.n.sick {
		return
	}
	v, p := a.volumes[i], a.n.pool
	switch {
	case v.Generation < p.obeyed[uid] || a.n.taken(uid)+v.SizeBytes > a.n.record.VolumePool.CapacityBytes:
		return
	case !whole:
		a.n.w.happened("volume backup refused")
		return
	case p.purged[uid]:
		a.n.w.fail("volumes", "volume %s is made of its backup on %s after it was purged there", uid, a.n.record.Name)
	}
	p.obeyed[uid] = v.Generation
	p.volumes[uid] = volume.State{UID: uid, Generation: v.Generation, Ready: true, SizeBytes: v.SizeBytes, MaxFiles: v.MaxFiles}
	a.n.w.happened("volume imported")
	a.n.w.trace("volume %s is made of its backup on %s", uid, a.n.record.Name)
	a.report()
}
