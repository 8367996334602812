package sim

import (
	"fmt"
	"net/netip"
	"slices"

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
// date talks to it on any network. Another member on its node may be talked to.
func (w *world) unfenced(o owner) (why string) {
	w.read(func(m *mirror) { why = w.unfencedIn(m, o) })
	return why
}

func (w *world) unfencedIn(m *mirror, o owner) string {
	if m.released[o.id] == 0 {
		return "holds its assignment"
	}
	if m.succeededThere(o) {
		return "" // its addresses are talked to for the other's sake
	}
	left, term := m.left[onNode{o.h.cluster, o.node.record.Name}], w.store.term
	for _, n := range w.nodes {
		current := n.applied.Term == term && n.applied.Revision >= left
		for _, net := range n.networks {
			talks := func(address netip.Addr) bool { return net.remotes[remote{address, o.node.record.Underlay}] }
			if n != o.node && current && slices.ContainsFunc(o.h.addresses, talks) {
				return fmt.Sprintf("can be talked to by %s", n.record.Name)
			}
		}
	}
	return ""
}

// succeededThere reports whether a member on the same node holds an address of a living one. Members that are deleted with their cluster go
// together, and are talked to until then.
func (m *mirror) succeededThere(o owner) bool {
	for _, name := range m.names() {
		e := m.clusters[name]
		if e.intent == nil || e.intent.UID != o.h.cluster || e.record == nil {
			continue
		}
		for _, a := range m.assignments(e.record) {
			together := e.record.Phase == api.ClusterDeleting && a.releasedAt != nil && !a.releasedAt.Before(e.record.ChangedAt)
			if a.Node != o.node.record.Name || a.ID == o.id || a.releasedAt != nil && !together {
				continue
			}
			if slices.ContainsFunc(a.Ports, func(p api.PortClaim) bool { return slices.Contains(o.h.addresses, p.Address) }) {
				return true
			}
		}
	}
	return false
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
