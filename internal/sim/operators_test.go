package sim

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// scheduleOperators lets operators drain nodes for a while, take some away that are down, and change quotas.
func (w *world) scheduleOperators() {
	r := w.faultRandom
	w.after(span(r, time.Second, 3*time.Minute), func() {
		if w.isCalm() {
			return
		}
		at, away := w.nodes[r.IntN((mostNodes+mostBoxes)*16)%len(w.nodes)], span(r, time.Second, 5*time.Minute)
		n := at.record.Name
		if w.cfg.Kinds.Has(Drain) && w.drain(n) {
			w.happened(Drain.String())
			w.after(away, func() { w.undrain(n) })
		}
		if taken := r.IntN(6) == 0; taken && w.cfg.Kinds.Has(Forget) && at.box == nil {
			w.forget(at, 5*time.Minute)
		}
		project, quota := []string{"lab", "class"}[r.IntN(2)], 2+r.IntN(12)
		if rare := r.IntN(4) == 0; rare && w.cfg.Kinds.Has(Quotas) {
			w.setQuota(project, quota)
		}
		w.scheduleOperators()
	})
}

func (w *world) drain(node string) bool {
	s := w.up()
	if s == nil || s.cache.View().Agent(node) == nil {
		return false
	}
	w.trace("%s is drained", node)
	w.checks.disturbed.Add(1)
	_, _, err := s.repo.SetDrain(s.ctx, node, "", "operator", s.now())
	return err == nil
}

func (w *world) undrain(node string) {
	s := w.up()
	if s == nil {
		w.after(time.Second, func() { w.undrain(node) })
		return
	}
	w.trace("%s is drained no longer", node)
	w.checks.disturbed.Add(1)
	_, _ = s.repo.Undrain(s.ctx, node)
}

// forget takes a node out of the inventory as soon as it is down and nothing is on it, as the API does, and away: what comes back later is
// installed anew.
func (w *world) forget(n *node, patience time.Duration) {
	s, name := w.up(), n.record.Name
	if w.isCalm() || patience < 0 {
		return
	}
	again := func() { w.after(time.Second, func() { w.forget(n, patience-time.Second) }) }
	if s == nil || s.cache.View().Agent(name) == nil {
		again()
		return
	}
	if phase, _, _ := s.monitor.Node(name); phase != api.NodeDown {
		again()
		return
	}
	if _, err := s.repo.ForgetNode(s.ctx, s.cache.View(), name); err != nil {
		again()
		return
	}
	w.happened(Forget.String())
	w.trace("%s is forgotten", name)
	w.checks.disturbed.Add(1)
	n.forgotten = true
	n.loseMemory()
	n.loseDisk()
	n.boot(longestUnaware + patience)
}

// setQuota changes what a project may hold at once; it may hold more already, and then gets nothing.
func (w *world) setQuota(project string, n int) {
	s := w.up()
	if s == nil {
		return
	}
	w.trace("quota of %s: %d", project, n)
	w.happened(Quotas.String())
	w.checks.disturbed.Add(1)
	_, _, err := s.repo.UpdateProject(s.ctx, project, func(p *api.Project) error {
		if p.Quota.Cores != 0 {
			p.Quota.Cores = n
		} else {
			p.Quota.Members = n
		}
		return nil
	})
	if s.ctx.Err() == nil {
		w.must(err)
	}
}

func (w *world) undrainAll() {
	s := w.up()
	for _, n := range s.cache.View().Nodes {
		if n.Drained() {
			w.undrain(n.Name)
		}
	}
}
