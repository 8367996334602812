package sim

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// owner is a member that is alive on a machine.
type owner struct {
	id   string
	node *node
	h    *hostMember
}

// checkIdentities checks that of the living members of one name in one cluster at most one is not fenced: others may run on machines that
// nobody hears of, but they are talked to by nobody who is up to date.
func (w *world) checkIdentities() {
	var owners map[string][]owner
	seen := map[string]string{}
	for _, n := range w.nodes {
		if !n.box.carries(n.life) {
			continue
		}
		for id, h := range n.host {
			if !h.runs() || h.part {
				continue
			}
			name := h.cluster + "." + h.name
			if first, twice := seen[name]; twice && first != id {
				if owners == nil {
					owners = map[string][]owner{}
				}
				owners[name] = nil
			}
			seen[name] = id
		}
	}
	if owners == nil {
		return
	}
	w.happened("two alive")
	for _, n := range w.nodes {
		if !n.box.carries(n.life) {
			continue
		}
		for id, h := range n.host {
			name := h.cluster + "." + h.name
			if _, twice := owners[name]; twice && h.runs() && !h.part {
				owners[name] = append(owners[name], owner{id: id, node: n, h: h})
			}
		}
	}
	for name, all := range owners {
		var open []string
		why := ""
		for _, o := range all {
			if reason := w.unfenced(o); reason != "" {
				open = append(open, o.id)
				why += "; " + o.id + " " + reason
			}
		}
		if len(open) > 1 {
			w.fail("identity", "%s has %d living owners that are not fenced: %v%s", name, len(open), open, why)
		}
	}
}

// unfenced tells why a living member is not fenced, "" when it is: its assignment is releasing in the store, and no node that is up to
// date talks to its node on the cluster's network, unless for the sake of another member there.
func (w *world) unfenced(o owner) (why string) {
	w.read(func(m *mirror) { why = w.unfencedIn(m, o) })
	return why
}

func (w *world) unfencedIn(m *mirror, o owner) string {
	if m.released[o.id] == 0 {
		return "holds its assignment"
	}
	for _, name := range m.names() {
		e := m.clusters[name]
		if e.intent == nil || e.intent.UID != o.h.cluster || e.record == nil {
			continue
		}
		for _, a := range m.assignments(e.record) {
			// Those that are deleted with their cluster go together, and are talked to until then.
			together := e.record.Phase == api.ClusterDeleting && a.releasedAt != nil && !a.releasedAt.Before(e.record.ChangedAt)
			if a.Node == o.node.record.Name && a.ID != o.id && !a.IsSnapshot() && (!a.IsPart() || a.IsSuccessor()) && (a.releasedAt == nil || together) {
				return "" // its node is talked to for another's sake
			}
		}
	}
	left, term := m.left[onNode{o.h.cluster, o.node.record.Name}], w.store.term
	for _, n := range w.nodes {
		current := n.applied.Term == term && n.applied.Revision >= left
		if n != o.node && current && n.networks[o.h.index].peers[o.node.record.Underlay] {
			return fmt.Sprintf("can be talked to by %s", n.record.Name)
		}
	}
	return ""
}

// checkObedience checks that an agent takes no orders of a deposed leader after those of its successor, nor older ones of the same.
func (w *world) checkObedience(a *agent, next lifecycle.Epoch) {
	switch {
	case next.Term < a.n.newest.Term:
		w.fail("obedience", "the agent of %s obeys the leader of term %d after that of term %d", a.n.record.Name, next.Term, a.n.newest.Term)
	case next.Term == a.n.newest.Term && next.Revision < a.epoch.Revision && a.epoch.Term == next.Term:
		w.fail("obedience", "the agent of %s obeys revision %d of term %d after revision %d", a.n.record.Name, next.Revision, next.Term, a.epoch.Revision)
	}
	if next.Term > a.n.newest.Term || next.Revision > a.n.newest.Revision {
		a.n.newest = next
	}
}
