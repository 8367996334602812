package sim

import (
	"maps"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
)

// checkRest checks where clusters are when nothing has gone wrong for long: ready, paused, refused, failed, queued with a reason, or
// degraded or scaling since there is no room indeed.
func (w *world) checkRest() {
	if w.leader == nil {
		w.fail("rest", "nobody leads, and nothing keeps anybody from it")
		return
	}
	p := &pass{leader: w.leader, at: w.leader.now(), nodes: map[string]lifecycle.NodeState{}, committed: map[string]bool{}}
	for name, s := range w.leader.states {
		p.nodes[name] = lifecycle.NodeState{Phase: s.phase, Reported: true}
		if s.phase != api.NodeReady {
			w.fail("rest", "node %s is %s, and nothing is wrong with it", name, s.phase)
		}
	}
	free, _ := p.free()
	for _, name := range w.store.names() {
		e := w.store.clusters[name]
		phase, message := api.ClusterPending, ""
		if e.record != nil {
			phase, message = e.record.Phase, e.record.Message
		}
		w.happened("at rest " + string(phase))
		switch phase {
		case api.ClusterReady, api.ClusterPaused, api.ClusterRefused, api.ClusterFailed:
		case api.ClusterQueued:
			if message == "" {
				w.fail("rest", "cluster %s is queued, and does not say why", name)
			}
		case api.ClusterDegraded, api.ClusterScaling:
			w.checkNoRoom(p, free, name, e)
		default:
			w.fail("rest", "cluster %s is %s (%s) for %s after nothing has gone wrong for %s", name, phase, message,
				p.at.Sub(e.record.ChangedAt), settling)
		}
		w.checkMembersAtRest(name, e)
	}
}

// checkNoRoom checks that what a cluster waits for can't be placed.
func (w *world) checkNoRoom(p *pass, free *placement.View, name string, e entry) {
	in := p.input(name, w.store.cluster(name))
	for _, op := range lifecycle.PlanCluster(in) {
		need, ok := op.(lifecycle.Need)
		if !ok || need.Kind == lifecycle.NeedSpare {
			continue
		}
		r := p.request(asked{name, need})
		if _, refusal := placement.Place(free, placement.Request{Cluster: name, Groups: r.Groups}); refusal != nil {
			return
		}
		if need.Kind == lifecycle.NeedScale && (w.anyoneQueued() || w.store.projects[e.intent.Project].Quota != (api.Quota{})) {
			return // it fits, and may not go before others or above a quota
		}
	}
	w.fail("rest", "cluster %s is %s (%s), and there is room for all it waits for", name, e.record.Phase, e.record.Message)
}

func (w *world) anyoneQueued() bool {
	for _, e := range w.store.clusters {
		if e.record != nil && (e.record.Phase == api.ClusterQueued || e.record.Phase == api.ClusterScaling) {
			return true
		}
	}
	return false
}

// checkMembersAtRest checks that nothing is left of what was lost or let go of, and that a ready cluster runs indeed.
func (w *world) checkMembersAtRest(name string, e entry) {
	for _, a := range w.store.assignments(e.record) {
		if a.releasedAt != nil && !a.clean {
			w.fail("rest", "%s of cluster %s is still being cleaned", a.ID, name)
		}
		if a.releasedAt != nil || a.Spare {
			continue
		}
		h := w.node(a.Node).host[a.ID]
		if e.record.Phase == api.ClusterReady && (h == nil || h.state != lifecycle.HostRunning) {
			w.fail("rest", "cluster %s is ready, and %s does not run", name, a.ID)
		}
		if e.record.Phase == api.ClusterPaused && (h == nil || h.state != lifecycle.HostPaused) {
			w.fail("rest", "cluster %s is paused, and %s is not frozen", name, a.ID)
		}
	}
	if e.record != nil && len(e.record.Clean) > 0 {
		all := w.store.assignments(e.record)
		for _, id := range e.record.Clean {
			if !slices.ContainsFunc(all, func(a held) bool { return a.ID == id }) {
				w.fail("rest", "cluster %s keeps %s on its clean list, of which there is no chunk any more", name, id)
			}
		}
	}
}

// checkEnd checks that nothing is left when all is deleted and calm, but the records of use.
func (w *world) checkEnd() {
	s := w.store
	if names := s.names(); len(names) > 0 {
		phase := api.ClusterPending
		if r := s.clusters[names[0]].record; r != nil {
			phase = r.Phase
		}
		w.fail("end", "clusters %v were deleted and never go, %s is %s", names, names[0], phase)
	}
	if len(s.chunks)+len(s.quarantines) > 0 {
		w.fail("end", "%v and %v are never removed", slices.Sorted(maps.Keys(s.chunks)), slices.Sorted(maps.Keys(s.quarantines)))
	}
	for _, n := range w.nodes {
		for id, h := range n.host {
			w.fail("end", "%s is never removed from %s: %s", id, n.record.Name, h.state)
		}
		if len(n.networks) > 0 {
			w.fail("end", "networks of %v are never removed from %s", slices.Sorted(maps.Keys(n.networks)), n.record.Name)
		}
	}
	for uid, a := range w.checks.ledger {
		for _, kind := range spanKinds {
			if a.rate[kind] != 0 || a.recorded[kind] != a.total[kind] {
				w.fail("end", "the records of %s come to %d core-nanoseconds %s, it used %d", uid, a.recorded[kind], kind, a.total[kind])
			}
		}
	}
	seen := map[string]bool{}
	for _, r := range s.usage {
		key := r.UID + strings.Repeat("|", int(r.Seq))
		if r.Seq > 0 && seen[key] {
			w.fail("end", "usage record %d of %s was written twice", r.Seq, r.UID)
		}
		seen[key] = true
	}
	w.checkReport()
}

// checkGarbage checks that nothing of what never became true outlives the leader that wrote it.
func (w *world) checkGarbage() {
	if left := w.store.garbage(); len(left) > 0 {
		w.fail("garbage", "chunks %v are named by no record, and a new leader leaves them where they are", left)
	}
}

// everyTransition lists the transitions of all tables as Stats names them.
func everyTransition() []string {
	return slices.Concat(transitionsOf(lifecycle.Clusters()), transitionsOf(lifecycle.Members()), transitionsOf(lifecycle.Nodes()))
}

func transitionsOf[P ~string](m lifecycle.Machine[P]) []string {
	var all []string
	for _, t := range m.Transitions {
		for _, from := range t.From {
			all = append(all, transitionName(m.Name, from, t.To))
		}
	}
	return all
}
