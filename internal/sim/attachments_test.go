package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
)

// scheduleAttachments lets the user of a cluster attach volumes to it and detach them now and then. What happens is drawn by name, and shifts nothing else.
func (w *world) scheduleAttachments(name, uid string, lasts time.Duration) {
	for turn := range w.drawnFor(uid+" attachments", 40) {
		key := fmt.Sprintf("%s attachment %d", uid, turn)
		w.after(time.Duration(w.drawnFor(key, int(min(lasts, 5*time.Minute)/time.Millisecond)+1))*time.Millisecond, func() {
			if s := w.up(); s != nil && !w.isCalm() {
				w.changeAttachment(s, name, uid, key)
			}
		})
	}
}

// changeAttachment is what the API does with a request to attach a volume, or to detach one.
func (w *world) changeAttachment(s *server, name, uid, key string) {
	c := s.cluster(name, uid)
	if c == nil || lifecycle.VolumeAttachable(&c.Intent.Spec) != "" || c.Record == nil || c.Record.Phase == api.ClusterFailed || c.Record.Phase == api.ClusterRefused {
		return
	}
	var next []api.VolumeAttachment
	what := "attach"
	if has := c.Intent.Spec.Volumes; len(has) > 0 && w.drawnFor(key+" detach", 3) > 0 {
		what = "detach"
		i := w.drawnFor(key+" which", len(has))
		if v := s.cache.View().VolumeNamed(state.VolumeName(c.Intent.Project, has[i].Name)); v != nil && v.Intent.Kind == api.VolumeBlock {
			return // which the API refuses (apiserver.keepsDisks)
		}
		next = slices.Delete(slices.Clone(has), i, i+1)
	} else if v := w.reachable(s, c, key); v != nil {
		own := v.Intent.Name[strings.LastIndexByte(v.Intent.Name, '.')+1:]
		next = append(slices.Clone(has), api.VolumeAttachment{Name: own, ReadOnly: w.drawnFor(key+" read", 3) == 0})
	} else {
		w.makeNearby(s, c)
		return
	}
	_, _, err := s.repo.UpdateIntent(s.ctx, name, uid, func(in *api.ClusterIntent) error {
		if !slices.Equal(in.Spec.Volumes, c.Intent.Spec.Volumes) || in.DeleteRequestedAt != nil {
			return errChangedMeanwhile
		}
		in.Spec.Volumes = next
		return nil
	})
	if err == nil {
		w.happened("volume " + what)
	}
	w.trace("%s for %s, to %v: %v", what, name, next, err)
}

var errChangedMeanwhile = errors.New("it was changed meanwhile")

// reachable draws a volume that all members of a cluster reach, and that the cluster does not have; nil: there is none.
func (w *world) reachable(s *server, c *state.Cluster, key string) *state.Volume {
	node := nodeOf(c)
	var all []*state.Volume
	for _, v := range fileVolumes(s.cache.View()) {
		if v.Record == nil || v.Intent.UID == "" || v.Record.Node != node || c.Intent.Project != v.Intent.Project ||
			slices.ContainsFunc(c.Intent.Spec.Volumes, func(a api.VolumeAttachment) bool { return state.VolumeName(c.Intent.Project, a.Name) == v.Intent.Name }) {
			continue
		}
		all = append(all, v)
	}
	if len(all) == 0 {
		return nil
	}
	return all[w.drawnFor(key+" volume", len(all))]
}

// nodeOf is the node of all members of a cluster, "" where there is no such.
func nodeOf(c *state.Cluster) string {
	node := ""
	for a := range c.Held() {
		if node != "" && a.Node != node {
			return ""
		}
		node = a.Node
	}
	return node
}

// makeNearby makes a volume on the node of a cluster's members, where that has room for volumes.
func (w *world) makeNearby(s *server, c *state.Cluster) {
	n := w.node(nodeOf(c))
	if n == nil || n.record.VolumePool == nil {
		return
	}
	in := api.VolumeIntent{
		Name: state.VolumeName(c.Intent.Project, "near-"+n.record.Name), UID: fmt.Sprintf("near %s %s", c.UID(), s.now()), Project: c.Intent.Project, Node: n.record.Name,
		SizeBytes: storageUnit, MaxFiles: 1000, Access: api.VolumeShared, CreatedAt: s.now(),
	}
	if w.oneWriter(in.UID) {
		in.Access = api.VolumeOneWriter
	}
	_, err := s.repo.CreateVolume(s.ctx, in, func([]api.VolumeIntent) error { return nil })
	w.trace("new volume %s: %v", in.Name, err)
}

// oneWriter reports whether a volume allows one writer.
func (w *world) oneWriter(uid string) bool { return w.drawnFor(uid+" one writer", 2) == 0 }

// mountable are the claims on volumes that a member has mounted.
func mountable(claims []api.VolumeClaim) []api.VolumeClaim {
	return slices.DeleteFunc(slices.Clone(claims), func(c api.VolumeClaim) bool { return c.Detaching })
}

func hasVolume(claims []api.VolumeClaim, uid string) bool {
	return slices.ContainsFunc(claims, func(c api.VolumeClaim) bool { return c.UID == uid })
}

// changesVolumes reports whether a member is to have other volumes, and the pause after files were open is over.
func (a *agent) changesVolumes(h *hostMember, m *memberMemory, d wanted) bool {
	if h.volumesNumber == d.volumesNumber && h.layersNumber == d.layersNumber || d.part {
		return false
	}
	if pause := time.Until(m.remountAt); pause > 0 {
		a.wake(pause)
		return false
	}
	return true
}

// changeMounts gives a running member the volumes that it is to have. It keeps files of others open for a while.
func (a *agent) changeMounts(id string, m *memberMemory, d wanted) {
	w := a.n.w
	a.drive(id, m, StartFails, "remount", time.Second, func(h *hostMember) {
		if !h.runs() {
			return
		}
		wants := mountable(d.volumes)
		key := fmt.Sprintf("%s open at %s", id, time.Now())
		for _, has := range h.volumes {
			if !hasVolume(wants, has.UID) && w.drawnFor(key+has.UID, 3) == 0 {
				wants = append(wants, has)
			}
		}
		layers := slices.Clone(d.layers)
		for _, has := range h.layers {
			if !slices.Contains(layers, has) && w.drawnFor(key+has.Environment, 3) == 0 {
				layers = append(layers, has)
				w.happened("layer open")
			}
		}
		h.volumes, h.layers = wants, layers
		if len(wants) > len(mountable(d.volumes)) || len(layers) > len(d.layers) {
			m.remountAt = time.Now().Add(time.Duration(1+w.drawnFor(key, 20)) * time.Second)
			if len(wants) > len(mountable(d.volumes)) {
				w.happened("volume open")
			}
			a.wake(time.Until(m.remountAt))
		} else {
			h.volumesNumber, h.layersNumber = d.volumesNumber, d.layersNumber
			w.happened("remounted")
			if h.machine {
				w.happened("machine remounted")
			}
		}
		w.checkWriters(a.n)
	})
}

// checkWriters checks that no two clusters write to a volume that allows one writer.
func (w *world) checkWriters(n *node) {
	writers := map[string]string{}
	w.read(func(m *mirror) {
		for id, h := range n.host {
			a := m.held[id]
			if a == nil || !h.runs() || !n.box.carries(n.life) {
				continue
			}
			for _, v := range h.volumes {
				if v.ReadOnly || !w.oneWriter(v.UID) {
					continue
				}
				if other, ok := writers[v.UID]; ok && other != a.ClusterUID {
					w.fail("volumes", "clusters %s and %s both write to volume %s on %s", other, a.ClusterUID, v.UID, n.record.Name)
				}
				writers[v.UID] = a.ClusterUID
			}
		}
	})
}

// checkAttachmentsAtRest checks that members have the volumes that their clusters ask for, and that what was detached is noted.
func (w *world) checkAttachmentsAtRest(c *state.Cluster) {
	if c.Record == nil || c.Record.Phase != api.ClusterReady {
		return
	}
	for a := range c.Held() {
		if changes := lifecycle.VolumeChanges(&c.Intent, a); len(changes) > 0 {
			w.fail("rest", "%s on %s still changes its volumes: %+v; it claims %+v of number %d", a.ID, a.Node, changes, a.Volumes, a.VolumesNumber)
		}
	}
	if left := c.Detaching(); len(left) > 0 {
		w.fail("rest", "cluster %s still detaches %+v", c.Name(), left)
	}
	if len(c.Intent.Spec.Volumes) > 0 {
		w.happened("volume attached at rest")
	}
}
