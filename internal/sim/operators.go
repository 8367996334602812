package sim

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// scheduleOperators lets operators drain machines for a while.
func (w *world) scheduleOperators() {
	r := w.faultRandom
	w.after(span(r, time.Second, 3*time.Minute), func() {
		if w.calm {
			return
		}
		n, away := w.nodes[r.IntN(mostNodes)%len(w.nodes)].record.Name, span(r, time.Second, 5*time.Minute)
		if w.cfg.Kinds.Has(Drain) && w.leader != nil {
			w.happened(Drain.String())
			w.drain(n, true)
			w.after(away, func() { w.drain(n, false) })
		}
		project, quota := []string{"lab", "class"}[r.IntN(2)], 2+r.IntN(12)
		if rare := r.IntN(4) == 0; rare && w.cfg.Kinds.Has(Quotas) {
			w.setQuota(project, quota)
		}
		w.scheduleOperators()
	})
}

func (w *world) drain(node string, drained bool) {
	w.trace("%s drained: %t", node, drained)
	w.checks.disturbed++
	since := w.store.newestTime()
	if w.leader != nil {
		since = w.leader.now()
	}
	w.store.revision++
	w.store.controls[node] = api.NodeControl{Name: node, Drained: drained, Since: since}
	w.wakeLeader()
}

// setQuota changes what a project may hold at once; it may hold more already, and then gets nothing.
func (w *world) setQuota(project string, n int) {
	w.trace("quota of %s: %d", project, n)
	w.happened(Quotas.String())
	w.checks.disturbed++
	p := w.store.projects[project]
	if p.Quota.Cores != 0 {
		p.Quota.Cores = n
	} else {
		p.Quota.Members = n
	}
	w.store.revision++
	w.store.projects[project] = p
	w.wakeLeader()
}

func (w *world) undrainAll() {
	for _, n := range w.nodes {
		if w.store.controls[n.record.Name].Drained {
			w.drain(n.record.Name, false)
		}
	}
}
