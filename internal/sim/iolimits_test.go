package sim

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// Volumes have limits of I/O, which change. The node of a volume holds its own members to them, and both ends of a tunnel those of other nodes.

// longestUnlimited bounds how long a member runs without the limits that its agent wants, though agents hang and setting limits fails.
const longestUnlimited = 20 * time.Minute

// limitVolumes lets users change limits now and then, until it is calm. What they do is drawn by name, and shifts nothing else.
func (w *world) limitVolumes(turn int) {
	key := fmt.Sprintf("limit %d", turn)
	w.after(time.Duration(1+w.drawnFor(key, 15))*time.Second, func() {
		if w.isCalm() || !w.cfg.Kinds.Has(IOLimits) {
			return
		}
		if s := w.up(); s != nil {
			w.limitVolume(s, key)
		}
		w.limitVolumes(turn + 1)
	})
}

func (w *world) limitVolume(s *server, key string) {
	all := slices.DeleteFunc(slices.Clone(s.cache.View().Volumes), func(v *state.Volume) bool {
		return v.Intent.UID == "" || v.Intent.Kind == api.VolumeBlock || v.Intent.ClusterUID != ""
	})
	if len(all) == 0 {
		return
	}
	v, limit := all[w.drawnFor(key+" volume", len(all))], int64(w.drawnFor(key+" rate", 4))<<20
	_, _, err := s.repo.ChangeVolume(s.ctx, v.Name(), v.UID(), func(v *api.VolumeIntent, _ []api.VolumeIntent) error {
		v.IOBytesPerSecond = limit
		return nil
	})
	if err == nil {
		w.happened(IOLimits.String())
	}
	w.trace("limit of volume %s is %d: %v", v.Name(), limit, err)
}

// limitAtLast changes the limit of each volume that a cluster has, once nothing goes wrong any more.
func (w *world) limitAtLast() {
	s := w.up()
	if s == nil || !w.cfg.Kinds.Has(IOLimits) {
		return
	}
	view := s.cache.View()
	for _, c := range view.Clusters {
		for _, asked := range c.Intent.Spec.Volumes {
			v := view.VolumeNamed(state.VolumeName(c.Intent.Project, asked.Name))
			if v == nil || v.Intent.Kind == api.VolumeBlock {
				continue
			}
			limit := int64(1+w.drawnFor(v.UID()+" limit at last", 5)) << 20
			_, _, err := s.repo.ChangeVolume(s.ctx, v.Name(), v.UID(), func(v *api.VolumeIntent, _ []api.VolumeIntent) error {
				v.IOBytesPerSecond = limit
				return nil
			})
			w.trace("limit of volume %s is %d at last: %v", v.Name(), limit, err)
		}
	}
}

// limitsOf are the limits of volumes on this node that a member is to be held to.
func (a *agent) limitsOf(d wanted) map[string]int64 {
	limits := map[string]int64{}
	for _, claim := range d.volumes {
		i := slices.IndexFunc(a.volumes, func(v volume.Volume) bool { return v.UID == claim.UID })
		if i < 0 || claim.Block || claim.Node != a.n.record.Name || a.volumes[i].IOBytesPerSecond == 0 {
			continue
		}
		limits[claim.UID] = a.volumes[i].IOBytesPerSecond
	}
	return limits
}

// changesLimits reports whether a member is to be held to other limits, and the pause after a failure is over.
func (a *agent) changesLimits(h *hostMember, m *memberMemory, d wanted) bool {
	if d.part || !h.runs() || d.Moving || d.Release || maps.Equal(h.limits, a.limitsOf(d)) {
		m.limitsDiffer = time.Time{}
		return false
	}
	if a.n.sick || m.limitsDiffer.IsZero() {
		m.limitsDiffer = time.Now()
	}
	if since := time.Since(m.limitsDiffer); since > longestUnlimited {
		a.n.w.fail("limits", "a member that runs on %s is held to other limits than %v, which it should be held to, for %s", a.n.record.Name, a.limitsOf(d), since)
	}
	if a.n.w.cfg.Without == GuardLimits {
		return false
	}
	if pause := time.Until(m.limitAt); pause > 0 {
		a.wake(pause)
		return false
	}
	return true
}

// changeLimits holds a running member to its limits.
func (a *agent) changeLimits(id string, m *memberMemory) {
	w := a.n.w
	key := fmt.Sprintf("%s limit at %s", id, time.Now())
	m.busy = true
	w.after(time.Duration(1+w.drawnFor(key, 500))*time.Millisecond, func() {
		a.run(func() {
			m.busy = false
			if h := a.n.host[id]; h != nil && h.runs() {
				if a.n.sick || !w.isCalm() && w.drawnFor(key+" fails", 6) == 0 {
					m.limitAt, m.unlimited = time.Now().Add(time.Duration(1+w.drawnFor(key, 20))*time.Second), true
				} else {
					h.limits, m.unlimited = a.limitsOf(a.desired[id]), false
					w.happened("limits in force")
				}
			}
			a.wake(0)
		})
	})
}

// unlimited is why a member is not held to the limit of a volume.
func (a *agent) unlimited(uid string) string {
	for id, m := range a.members {
		if h := a.n.host[id]; m.unlimited && h != nil && h.runs() && hasVolume(a.desired[id].volumes, uid) {
			return "limits are not in force"
		}
	}
	return ""
}

// checkLimitsAtRest checks that members are held to the limits of their volumes, on the node where these lie, or in the tunnels to it.
func (w *world) checkLimitsAtRest(s *server) {
	view := s.cache.View()
	for _, c := range view.Clusters {
		rates := map[[2]string]int64{}
		open := map[[2]string]bool{}
		if c.Record == nil || c.Record.Phase != api.ClusterReady {
			continue
		}
		for a := range c.Held() {
			h := w.node(a.Node).host[a.ID]
			for _, claim := range a.Volumes {
				v := view.Volume(claim.UID)
				if v == nil || v.Intent.UID == "" {
					continue
				}
				limit := v.Intent.IOBytesPerSecond
				tunnel := [2]string{min(claim.Node, a.Node), max(claim.Node, a.Node)}
				rates[tunnel] += limit
				open[tunnel] = open[tunnel] || limit == 0
				if claim.Node == a.Node && !claim.Block && h != nil && h.state == lifecycle.HostRunning && h.limits[claim.UID] != limit {
					w.fail("limits", "%s is held to %d bytes per second with volume %s, whose limit is %d", a.ID, h.limits[claim.UID], v.Name(), limit)
				}
				if claim.Node == a.Node && !claim.Block && limit > 0 {
					w.happened("limit at rest")
				}
			}
		}
		for tunnel, rate := range rates {
			if tunnel[0] == tunnel[1] {
				continue
			}
			if open[tunnel] {
				rate = 0
			}
			for i, name := range tunnel {
				n, other := w.node(name), w.node(tunnel[1-i])
				if n == nil || other == nil || n.agent == nil || other.agent == nil {
					continue
				}
				var at int64
				for _, r := range n.agent.sharings[c.UID()].Rates {
					if r.Peer == netip.MustParseAddr(other.record.Underlay) {
						at = r.BytesPerSecond
					}
				}
				if at != rate {
					w.fail("limits", "%s sends cluster %s %d bytes per second to %s, and the limits come to %d", name, c.Name(), at, tunnel[1-i], rate)
				}
			}
		}
	}
	for _, v := range view.Volumes {
		if n := w.node(v.Node()); n != nil && n.agent != nil && n.agent.unlimited(v.UID()) != "" {
			w.fail("limits", "%s says that limits of volume %s are not in force", v.Node(), v.Name())
		}
	}
}
