package sim

import (
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
)

// scheduleResizes lets the user of a cluster give its members another size now and then.
func (w *world) scheduleResizes(name, uid string, lasts time.Duration) {
	r := w.resizeRandom
	for range r.IntN(4) {
		at, group, cores, memory := span(r, 0, min(lasts, 5*time.Minute)), r.IntN(3), 1+r.IntN(3), api.Bytes(r.IntN(3))<<29
		w.after(at, func() {
			if !w.isCalm() && w.cfg.Kinds.Has(Resize) {
				w.resize(name, uid, group, api.Shape{Cores: cores, Memory: memory})
			}
		})
	}
}

// resize is what the API does with a request for another size, but for its look at the room: growth without room is asked for, too, and waits.
func (w *world) resize(name, uid string, group int, shape api.Shape) {
	s := w.up()
	if s == nil {
		return
	}
	c := s.cluster(name, uid)
	if c == nil || !migratable(c) || len(c.Intent.Spec.Groups) <= group {
		return
	}
	changed, now := c.Intent, s.now()
	changed.Spec.Groups = slices.Clone(changed.Spec.Groups)
	g := &changed.Spec.Groups[group]
	if lifecycle.Resizable(g) != "" || g.Shape == shape {
		return
	}
	g.Shape, changed.ResizedAt = shape, &now
	w.happened(Resize.String())
	w.checks.disturbed.Add(1)
	w.trace("resize group %s of %s to %+v", g.Name, name, shape)
	w.put(s, name, uid, changed)
}

// resizing reports whether a member of a cluster does not have the size that it is to have: the API lets nobody save or move such a cluster.
func resizing(c *state.Cluster) bool {
	for a := range c.Held() {
		if lifecycle.ResizePending(c.Intent.Spec, a) {
			return true
		}
	}
	return false
}

// changeSize gives a running member its new size.
func (a *agent) changeSize(id string, m *memberMemory, d wanted) {
	a.drive(id, m, StartFails, "resize", time.Second, func(h *hostMember) {
		if h.runs() {
			h.size, h.slots = d.size, d.slots
			a.n.w.happened("resized")
		}
	})
}

// checkSizes checks that no member runs on a core slot that its assignment does not hold: what a resize frees was left by the member before.
func (w *world) checkSizes(held map[string]*api.Assignment) {
	for _, n := range w.nodes {
		if !n.box.carries(n.life) {
			continue
		}
		for id, h := range n.host {
			a := held[id]
			if a == nil || a.Node != n.record.Name || a.Saved || !h.runs() {
				continue
			}
			for _, slot := range h.slots {
				if !slices.Contains(a.Slots, slot) {
					w.fail("size", "%s runs on slot %d of %s, and holds slots %v only", id, slot, n.record.Name, a.Slots)
				}
			}
		}
	}
}

// checkResizesAtRest checks that every member has the size of its group, or that its node has no room for that.
func (w *world) checkResizesAtRest(site *situation.Site, c *state.Cluster) {
	if c.Record == nil || c.Record.Phase != api.ClusterReady {
		return
	}
	room := situation.Room{Offers: w.offers()}
	free, err := room.Update(site.View, site.Available)
	if err != nil {
		w.must(err)
		return
	}
	for a := range c.Held() {
		if !lifecycle.ResizePending(c.Intent.Spec, a) || !a.IsMember() {
			continue
		}
		g := slices.IndexFunc(c.Intent.Spec.Groups, func(g api.Group) bool { return g.Name == a.Group })
		switch wanted := &c.Intent.Spec.Groups[g]; {
		case a.Wants().Shape() == wanted.Shape:
			w.fail("rest", "the resize of %s is decided and has not ended; its members are %s", a.ID, membersOf(site, c))
		case site.Nodes[a.Node].Phase == api.NodeReady && w.fitsNow(free, a, wanted) && w.withinQuota(site, c):
			w.fail("rest", "%s waits for room for its new size (%+v), and there is room", a.ID, wanted.Shape)
		default:
			w.happened("resize waits")
		}
	}
}

func (w *world) fitsNow(free *placement.View, a *api.Assignment, g *api.Group) bool {
	_, why, _ := free.Sketch().FitResize(a, g)
	return why == ""
}

// withinQuota reports whether no quota can be what a resize waits for.
func (w *world) withinQuota(site *situation.Site, c *state.Cluster) bool {
	p := site.View.Project(c.Intent.Project)
	return p == nil || resource.OfQuota(p.Quota).IsZero()
}
