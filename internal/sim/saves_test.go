package sim

import (
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/admission"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
)

// scheduleSaves lets the user of a cluster save it once or more often. Most let it go on after a while.
func (w *world) scheduleSaves(name, uid string, lasts time.Duration) {
	r := w.saveRandom
	for range r.IntN(3) {
		at, goesOn := span(r, 0, min(lasts, 5*time.Minute)), span(r, 0, 2*time.Minute)
		stays := r.IntN(4) == 0
		w.after(at, func() {
			if !w.isCalm() && w.cfg.Kinds.Has(Save) && w.save(name, uid) && !stays {
				w.after(goesOn, func() { w.restore(name, uid) })
			}
		})
	}
}

// savable tells whether the API takes a save, but that it takes those of virtual machines only: here all members can be saved that have no
// devices and no machine of their own.
func savable(in *api.ClusterIntent, r *api.ClusterRecord) bool {
	for _, g := range in.Spec.Groups {
		if g.Stack == api.StackMetal || len(g.Devices) > 0 {
			return false
		}
	}
	return !in.Paused && r != nil && r.ExpiredAt == nil && !lifecycle.WantsSaved(in, r) &&
		(r.Phase == api.ClusterReady || r.Phase == api.ClusterRestoring)
}

func (w *world) save(name, uid string) bool {
	s := w.up()
	if s == nil {
		return false
	}
	c := s.cluster(name, uid)
	if c == nil || !savable(&c.Intent, c.Record) || resizing(c) {
		return false
	}
	changed, now := c.Intent, s.now()
	changed.Saved, changed.SaveAskedAt = true, &now
	w.happened(Save.String())
	w.checks.disturbed.Add(1)
	w.trace("save %s", name)
	w.put(s, name, uid, changed)
	return true
}

func (w *world) restore(name, uid string) {
	s := w.up()
	if s == nil {
		w.after(time.Second, func() { w.restore(name, uid) })
		return
	}
	c := s.cluster(name, uid)
	if c == nil || c.Record == nil || !lifecycle.WantsSaved(&c.Intent, c.Record) {
		return
	}
	changed, now := c.Intent, s.now()
	changed.Saved, changed.SaveAskedAt = false, &now
	w.checks.disturbed.Add(1)
	w.trace("restore %s", name)
	w.put(s, name, uid, changed)
}

// restore lets a saved member go on as another one, with the jobs that ran in it.
func (a *agent) restore(id string, m *memberMemory, d wanted) {
	if !a.hasVolumes(id, d) {
		return // what it waits for wakes the agent
	}
	if d.fromNode != "" {
		a.fetch(id, m, d)
		return
	}
	m.cleaned, m.ready, m.unhealthy, m.recovered = false, false, "", time.Time{}
	a.n.host[id] = d.prepared()
	a.n.w.touched()
	a.restoreHere(id, m, d)
}

// restoreHere lets a member go on whose state is on this node.
func (a *agent) restoreHere(id string, m *memberMemory, d wanted) {
	a.drive(id, m, StartFails, "restore", 5*time.Second, func(h *hostMember) {
		from := a.n.host[d.from]
		if from == nil || from.state != lifecycle.HostSaved {
			m.attempts = m.attempts.Fail("nothing is saved", time.Now())
			return
		}
		if len(h.functions) > 0 {
			a.n.w.happened("function regained")
		}
		h.state, h.since, h.jobs, h.everIll, h.life = lifecycle.HostRunning, time.Now(), from.jobs, from.everIll, from.life
		from.state, from.jobs = lifecycle.HostPrepared, map[string]*jobRun{}
		if d.fromNode != "" {
			delete(a.n.host, d.from)
		}
		h.takeJobs(a.n)
		a.n.w.checks.inherit(d.from, id, h)
		m.neverRan = false
		a.n.w.happened("member restored")
		a.n.endSomeDay(id, h)
		a.hearReady(id, h)
	})
}

// checkSavedAtRest checks that all members of a saved cluster are on disk indeed, unless their machine stays down.
func (w *world) checkSavedAtRest(c *state.Cluster) {
	if c.Record == nil || c.Record.Phase != api.ClusterSaved {
		return
	}
	for a := range c.Held() {
		n := w.node(a.Node)
		if a.IsSnapshot() || n.box.staysDown() {
			continue
		}
		if h := n.host[a.ID]; !a.Saved || h == nil || h.state != lifecycle.HostSaved {
			w.fail("rest", "cluster %s is saved, and %s is not", c.Name(), a.ID)
		}
	}
}

// checkNoHome checks that a cluster that is not restored waits for room which is not there.
func (w *world) checkNoHome(site *situation.Site, c *state.Cluster) {
	for a := range c.Held() {
		if a.Saved && site.Nodes[a.Node].Phase == api.NodeDown && strings.Contains(c.Record.Message, a.Node) {
			return // its state is on a node that is down, and its user hears of that
		}
	}
	needs := site.Needs()
	room := situation.Room{Offers: w.offers()}
	free, err := room.Update(site.View, site.Available)
	if err != nil {
		w.must(err)
		return
	}
	for _, d := range admission.Plan(site.Admission(needs, free)) {
		if asked := needs[d.Request]; asked.Cluster == c && asked.Need.Kind == lifecycle.NeedRestore && d.Verdict == admission.Wait {
			return
		}
	}
	w.fail("rest", "cluster %s is %s (%s), and nothing keeps it from going on; its members are %s", c.Name(), c.Record.Phase, c.Record.Message, membersOf(site, c))
}
