package sim

import (
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// checks remember what the checks need to know from step to step.
type checks struct {
	// live are the IDs of assignments that hold something, as of the revision checked; hosts tells that a host has changed since.
	live    map[string]bool
	checked int64
	hosts   bool
	// disturbed counts what makes forecasts void.
	disturbed int
	promise   promise
	ledger    map[string]*account
	used      map[string]resource.Vector // by project, when it was last checked
	ready     map[string]time.Time       // when a cluster was last called ready, by the world's clock
}

func newChecks() checks {
	return checks{checked: -1, ledger: map[string]*account{}, used: map[string]resource.Vector{}, ready: map[string]time.Time{}}
}

// touched notes that something on a host has changed.
func (w *world) touched() { w.checks.hosts = true }

// check fails with the first thing that does not hold though it always must. What only a commit or a host can break is looked at when
// one of them has changed.
func (w *world) check() {
	c := &w.checks
	stored := c.checked != w.store.revision
	if stored {
		w.checkAllocations()
		w.checkMembers()
		w.checkQuotas()
		c.checked = w.store.revision
	}
	if stored || c.hosts {
		w.checkHosts()
		w.checkIdentities()
		c.hosts = false
	}
	if w.stats.Steps%16 == 0 {
		w.checkDeadlines()
		w.checkSilence()
	}
	if w.stats.Steps%4096 == 0 {
		w.checkReport()
	}
}

// checkAllocations checks, over what is committed, that no core slot, no memory, no address and no network is allocated twice.
func (w *world) checkAllocations() {
	live := map[string]bool{}
	holders := map[any]string{}
	memory := map[string]int64{}
	for _, n := range w.nodes {
		memory[n.record.Name] = n.record.Capacity.MemoryBytes
	}
	networks := map[int]string{}
	type slot struct {
		node string
		slot int
	}
	take := func(a *api.Assignment) {
		live[a.ID] = true
		for _, s := range a.Slots {
			key := slot{a.Node, s}
			if other, taken := holders[key]; taken {
				w.fail("double allocation", "core slot %d of %s is allocated twice: to %s and %s", s, a.Node, other, a.ID)
			}
			holders[key] = a.ID
		}
		if memory[a.Node] -= a.MemoryBytes; memory[a.Node] < 0 {
			w.fail("double allocation", "more memory of %s is allocated than it has, last to %s", a.Node, a.ID)
		}
		if other, taken := holders[a.Address]; taken {
			w.fail("double allocation", "address %s is allocated twice: to %s and %s", a.Address, other, a.ID)
		}
		holders[a.Address] = a.ID
		index, _ := placement.DefaultPool.IndexOf(a.Address)
		if other, taken := networks[index]; taken && other != a.ClusterUID {
			w.fail("double allocation", "network %d is allocated twice: to %s and %s", index, other, a.ClusterUID)
		}
		networks[index] = a.ClusterUID
	}
	for _, name := range w.store.names() {
		for _, a := range w.store.assignments(w.store.clusters[name].record) {
			if !a.clean {
				take(a.Assignment)
			}
		}
	}
	for _, q := range w.store.quarantines {
		take(&q.Assignment)
	}
	w.checks.live = live
}

// checkMembers checks that names and ranks are unique among the held and the lost members of each cluster.
func (w *world) checkMembers() {
	for _, name := range w.store.names() {
		r := w.store.clusters[name].record
		names, ranks := map[string]string{}, map[int]string{}
		see := func(member string, rank int, what string) {
			if other, taken := names[member]; taken {
				w.fail("identity", "cluster %s has two members %s: %s and %s", name, member, other, what)
			}
			if other, taken := ranks[rank]; taken && rank != lifecycle.SpareRank {
				w.fail("identity", "cluster %s has two members of rank %d: %s and %s", name, rank, other, what)
			}
			names[member], ranks[rank] = what, what
		}
		for _, a := range w.store.assignments(r) {
			if a.releasedAt == nil {
				see(a.Member, a.Rank, a.ID)
			}
			if a.Spare && a.releasedAt != nil {
				w.fail("spare", "spare %s is released, and nothing can be cleaned of it", a.ID)
			}
		}
		if r != nil {
			for _, l := range r.Lost {
				see(l.Member, l.Rank, "lost "+l.Assignment)
			}
		}
	}
}

// checkQuotas checks that no project gets more than it may hold. One whose quota was lowered keeps what it has.
func (w *world) checkQuotas() {
	for name, p := range w.store.projects {
		used, had, limit := w.store.used(name), w.checks.used[name], resource.Limit(resource.OfQuota(p.Quota))
		w.checks.used[name] = used
		for _, c := range limit.Exceeded(had, used.Beyond(had)) {
			w.fail("quota", "project %s is given %s, its quota is %s", name, c.Text(used[c]), c.Text(limit[c]))
		}
	}
}

// checkHosts checks that nothing is left on any host of what was confirmed clean: its cores and addresses may be another's by now.
func (w *world) checkHosts() {
	for _, n := range w.nodes {
		for id, h := range n.host {
			if !w.checks.live[id] {
				w.fail("hosts", "%s on %s was confirmed clean and is %s", id, n.record.Name, h.state)
			}
		}
	}
}

// checkPhase checks what a change of phase says against what is so.
func (w *world) checkPhase(r *api.ClusterRecord, from api.ClusterPhase) {
	all := w.store.assignments(r)
	switch {
	case r.Phase == api.ClusterDegraded && from == api.ClusterReady && len(r.Lost) == 0:
		w.checkAlarm(r, all)
	case r.Phase == api.ClusterReady:
		w.checks.ready[r.Name] = w.now
		w.checkReady(r, all)
	case r.Phase == api.ClusterFailed && w.leader != nil:
		w.checkFailed(r, all)
	case r.Phase == api.ClusterDeleting:
		for _, a := range all {
			if a.releasedAt == nil && !a.clean {
				w.fail("phases", "cluster %s is being deleted and still holds %s", r.Name, a.ID)
			}
		}
	}
}

// checkReady checks that a cluster is called ready with all that its user asked for in place.
func (w *world) checkReady(r *api.ClusterRecord, all []held) {
	in := w.store.clusters[r.Name].intent
	names := map[string]bool{}
	for _, a := range all {
		if a.releasedAt == nil && !a.Spare {
			names[a.Member] = true
		}
	}
	for _, m := range lifecycle.DesiredMembers(in.Spec, in.Removed) {
		if !names[m.Member] {
			w.fail("ready", "cluster %s is called ready without %s", r.Name, m.Member)
		}
		delete(names, m.Member)
	}
	if len(names) > 0 {
		w.fail("ready", "cluster %s is called ready with %v, which its user does not want", r.Name, names)
	}
}

// checkFailed checks that a cluster is not called failed all of whose members run and are well.
func (w *world) checkFailed(r *api.ClusterRecord, all []held) {
	for _, a := range all {
		if a.releasedAt != nil || a.Spare {
			continue
		}
		h := w.node(a.Node).host[a.ID]
		if h == nil || h.state != lifecycle.HostRunning || h.everIll || w.now.Sub(h.since) < time.Minute || h.files != w.leader.filesOf(r.Name) {
			return
		}
		if s := w.leader.states[a.Node]; s.phase != api.NodeReady || s.observed[a.ID].Phase != api.MemberReady {
			return
		}
	}
	if len(r.Lost) == 0 {
		w.fail("failed", "cluster %s is called failed (%s), and all members it has run and are well", r.Name, r.Message)
	}
}

// checkAlarm checks that a cluster is not called degraded whose members all run as they did when it was ready, well and with
// nodes that are not down.
func (w *world) checkAlarm(r *api.ClusterRecord, all []held) {
	for _, a := range all {
		if a.releasedAt != nil || a.Spare {
			continue
		}
		n := w.node(a.Node)
		h := n.host[a.ID]
		trouble := w.leader != nil && w.leader.states[a.Node].phase == api.NodeDown
		if trouble || h == nil || h.state != lifecycle.HostRunning || h.everIll || h.since.After(w.checks.ready[r.Name]) {
			return
		}
	}
	w.fail("alarm", "cluster %s is called degraded (%s), and every member of it runs as it did when it was ready", r.Name, r.Message)
}

// checkDeath checks that no node is called down that was heard of, or could not have been, within the death timer.
func (l *leader) checkDeath(n *node, to api.NodePhase) {
	if to != api.NodeDown {
		return
	}
	if silent := l.w.now.Sub(later(l.clock.read, l.states[n.record.Name].heard)); silent < deathTimer {
		l.w.fail("death", "node %s is called down %s after this leader could first have heard of it", n.record.Name, silent)
	}
}

// noteAnswers notes, before a step, which machines have answered the leader up to now.
func (w *world) noteAnswers() {
	if w.leader == nil {
		return
	}
	for _, n := range w.nodes {
		c := w.leader.states[n.record.Name].conn
		if c != nil && !c.agentGone && !c.a.over && !c.a.asleep && n.up && !n.upCut && !n.downCut {
			n.answered = w.now
		}
	}
}

// checkSilence checks that a machine that can't answer is down for the leader as soon as the death timer has run out.
func (w *world) checkSilence() {
	if w.leader == nil || w.leader.over {
		return
	}
	for _, n := range w.nodes {
		silent := w.now.Sub(later(n.answered, w.leader.clock.read))
		if phase := w.leader.states[n.record.Name].phase; silent > deathTimer+slack && phase != api.NodeDown {
			w.fail("death", "node %s could not answer for %s and is %s", n.record.Name, silent, phase)
		}
	}
}

// slack is how much longer than its deadline something may last until the leader has acted.
const slack = time.Second

// checkDeadlines checks that no phase outlives its timer, and that no assignment is cleaned for longer than it may be.
func (w *world) checkDeadlines() {
	l := w.leader
	if l == nil || l.over || l.inDoubt() {
		return
	}
	now, deadlines := l.now(), lifecycle.DefaultDeadlines()
	for _, name := range w.store.names() {
		e := w.store.clusters[name]
		r := e.record
		overdue := func(what string, since time.Time, bound time.Duration) {
			if lasted := now.Sub(later(l.since, since)); lasted > bound+slack {
				w.fail("deadline", "%s of cluster %s lasts for %s, its deadline is %s", what, name, lasted, bound)
			}
		}
		switch {
		case r == nil:
			overdue("the decision", e.intent.CreatedAt, deathTimer+time.Second)
			continue
		case r.ExpiredAt != nil && r.Phase != api.ClusterDeleting:
			overdue("the grace", *r.ExpiredAt, deadlines.Grace)
		case r.ExpiredAt != nil:
		case r.Phase == api.ClusterStarting:
			overdue("the start", r.ChangedAt, deadlines.Start)
		}
		if e.intent.DeleteRequestedAt != nil && r.Phase != api.ClusterDeleting {
			overdue("the wait for its deletion", *e.intent.DeleteRequestedAt, 0)
		}
		for _, a := range w.store.assignments(r) {
			if a.releasedAt != nil && !a.clean {
				overdue(fmt.Sprintf("the cleaning of %s", a.ID), *a.releasedAt, deadlines.Clean)
			}
		}
	}
}

// inDoubt tells whether the leader has yet to try again what it does not know the outcome of.
func (l *leader) inDoubt() bool { return l.w.now.Sub(l.doubtful) < 15*time.Second }
