package sim

import (
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
)

// scheduleSnapshots lets the user of a cluster make a snapshot once or more often, go back to it, and delete it.
func (w *world) scheduleSnapshots(name, uid string, lasts time.Duration) {
	r := w.snapshotRandom
	for i := range r.IntN(3) {
		snapshot := string(rune('a' + i))
		at, back, drop := span(r, 0, min(lasts, 4*time.Minute)), span(r, 0, 2*time.Minute), span(r, 0, 4*time.Minute)
		w.after(at, func() { w.askSnapshot(name, uid, snapshot) })
		if r.IntN(4) > 0 {
			w.after(at+back, func() { w.goBack(name, uid, snapshot) })
		}
		if r.IntN(3) == 0 {
			w.after(at+drop, func() { w.dropSnapshot(name, uid, snapshot) })
		}
	}
}

// standsOrRuns tells whether the API takes requests about snapshots, but that those are of virtual machines only.
func standsOrRuns(c *state.Cluster) bool {
	r := c.Record
	if r == nil || r.ExpiredAt != nil || lifecycle.WantsSaved(&c.Intent, r) || lifecycle.SnapshotRestoreOf(&c.Intent, r) != nil {
		return false
	}
	return r.Phase == api.ClusterReady || r.Phase == api.ClusterPaused
}

// changeSnapshots puts an intent that ok changes and allows.
func (w *world) changeSnapshots(what, name, uid string, ok func(s *server, c *state.Cluster, in *api.ClusterIntent) bool) {
	s := w.up()
	if s == nil || w.isCalm() || !w.cfg.Kinds.Has(Snapshot) {
		return
	}
	c := s.cluster(name, uid)
	if c == nil {
		return
	}
	changed := c.Intent
	changed.Snapshots = slices.Clone(changed.Snapshots)
	if !ok(s, c, &changed) {
		return
	}
	w.happened(Snapshot.String())
	w.checks.disturbed.Add(1)
	w.trace("%s of %s", what, name)
	w.put(s, name, uid, changed)
}

func (w *world) askSnapshot(name, uid, snapshot string) {
	w.changeSnapshots("snapshot "+snapshot, name, uid, func(s *server, c *state.Cluster, in *api.ClusterIntent) bool {
		for _, g := range in.Spec.Groups {
			if g.Stack == api.StackMetal || len(g.Devices) > 0 || g.HasFunctions() {
				return false
			}
		}
		if hasDisk(s.cache.View(), &c.Intent) {
			return false
		}
		in.Snapshots = append(in.Snapshots, api.SnapshotIntent{Name: snapshot, AskedAt: s.now()})
		return standsOrRuns(c) && len(in.Snapshots) <= api.MaxSnapshots
	})
}

func (w *world) dropSnapshot(name, uid, snapshot string) {
	w.changeSnapshots("end of snapshot "+snapshot, name, uid, func(_ *server, c *state.Cluster, in *api.ClusterIntent) bool {
		in.Snapshots = slices.DeleteFunc(in.Snapshots, func(s api.SnapshotIntent) bool { return s.Name == snapshot })
		return len(in.Snapshots) < len(c.Intent.Snapshots)
	})
}

func (w *world) goBack(name, uid, snapshot string) {
	w.changeSnapshots("way back to snapshot "+snapshot, name, uid, func(s *server, c *state.Cluster, in *api.ClusterIntent) bool {
		now := s.now()
		in.SnapshotRestore = &api.SnapshotIntent{Name: snapshot, AskedAt: now}
		in.Saved, in.SaveAskedAt = false, &now
		return standsOrRuns(c) && lifecycle.Unrestorable(&c.Intent, c.Record, snapshot, c.Decision().Assignments()) == ""
	})
}

// takeSnapshot writes the state of a member that stands still, and checks that no member of its cluster runs meanwhile whose leader has it.
func (a *agent) takeSnapshot(id string, m *memberMemory, d wanted) {
	of := a.n.host[d.of]
	if of == nil || of.state != lifecycle.HostPaused {
		m.attempts = m.attempts.Fail("the member does not stand still", time.Now())
		a.wake(0)
		return
	}
	if a.member(d.of).busy {
		return // its end wakes the agent
	}
	source := a.member(d.of)
	source.busy = true
	a.n.host[id] = d.prepared()
	a.drive(id, m, FreezeFails, "snapshot", 3*time.Second, func(h *hostMember) {
		switch of.state {
		case lifecycle.HostPaused:
		case lifecycle.HostRunning:
			a.n.w.fail("snapshot", "the state of %s was written on %s while the member ran", d.of, a.n.record.Name)
		default: // it has ended meanwhile, and nothing is left to write
			m.attempts = m.attempts.Fail("the member has ended", time.Now())
			return
		}
		h.state, h.jobs, h.everIll, h.life = lifecycle.HostSaved, of.copyJobs(), of.everIll, of.life
		a.n.w.happened("state written")
	}, func() { source.busy = false })
}

func (a *agent) verifySnapshot(id string, m *memberMemory, d wanted) {
	w := a.n.w
	m.busy = true
	failed := w.chance(FreezeFails, 12)
	if failed {
		w.checks.disturbed.Add(1)
	}
	w.after(w.between(time.Millisecond, 2*time.Second), func() {
		a.run(func() {
			m.busy, m.verified, m.unverified = false, d.verify, ""
			if failed {
				m.unverified = "it is damaged"
			}
			a.wake(0)
		})
	})
}

func (a *agent) layDown(id string, m *memberMemory, d wanted) {
	m.cleaned = false
	a.n.host[id] = d.prepared()
	a.drive(id, m, FreezeFails, "lay down", time.Second, func(h *hostMember) {
		from := a.n.host[d.resumes]
		if from == nil || from.state != lifecycle.HostSaved {
			m.attempts = m.attempts.Fail("nothing is saved", time.Now())
			return
		}
		a.n.w.lives++ // a copy, of which there may be more
		h.state, h.jobs, h.everIll, h.life = lifecycle.HostSaved, from.copyJobs(), from.everIll, a.n.w.lives
		a.n.w.happened("state laid down")
	})
}

// checkSnapshotsAtRest checks that every request about snapshots has ended, and that the state of each member in a complete one is on its node's
// disk, unless the node says that it is gone.
func (w *world) checkSnapshotsAtRest(site *situation.Site, c *state.Cluster) {
	if c.Record == nil || c.Record.Phase != api.ClusterReady && c.Record.Phase != api.ClusterPaused {
		return
	}
	if asked := lifecycle.SnapshotRestoreOf(&c.Intent, c.Record); asked != nil {
		w.fail("rest", "the restore of snapshot %s of cluster %s has not ended", asked.Name, c.Name())
	}
	for _, s := range c.Intent.Snapshots {
		if !slices.ContainsFunc(c.Record.Snapshots, func(r api.SnapshotRecord) bool { return r.Name == s.Name && r.AskedAt.Equal(s.AskedAt) }) {
			w.fail("rest", "snapshot %s of cluster %s is neither made nor given up", s.Name, c.Name())
		}
	}
	in := site.Cluster(c)
	for _, a := range in.Assignments {
		if a.Releasing || !a.IsSnapshot() {
			continue
		}
		h := w.node(a.Node).host[a.ID]
		phase, _ := lifecycle.MemberPhase(a, in.Observed, in.Nodes)
		if (h == nil || h.state != lifecycle.HostSaved) && phase != api.MemberFailed && phase != api.MemberUnknown {
			w.fail("rest", "cluster %s has %s in snapshot %s, and nothing of it is on %s", c.Name(), a.ID, a.Snapshot.Name, a.Node)
		}
	}
}
