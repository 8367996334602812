package sim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/portgroups"
	"github.com/nearmetal/nearmetal/internal/state"
)

// guardRules are the rules that users give the security group web, in turn.
var guardRules = [][]string{{"in any from group ops"}, {}, {"in any from group web", "in any from group ops"}}

// makeGuards makes the security groups web and ops for each project, which last until all clusters are deleted, and lets users change rules.
func (w *world) makeGuards(repo *state.Repo) {
	for _, project := range []string{api.DefaultProject, "lab", "class"} {
		for _, name := range []string{"ops", "web"} {
			full := state.SecurityGroupName(project, name)
			_, err := repo.CreateSecurityGroup(w.ctx, api.SecurityGroup{Name: full, UID: "group-" + full, Project: project, CreatedAt: time.Now()})
			w.must(err)
		}
		w.changeGuard(state.SecurityGroupName(project, "web"), 0)
	}
}

// changeGuard changes the rules of a security group after a while, and again, until the run is calm.
func (w *world) changeGuard(name string, turn int) {
	pause := 20 + w.drawnFor(fmt.Sprintf("rules %d of %s", turn, name), 120)
	w.after(time.Duration(pause)*time.Second, func() {
		if w.isCalm() {
			return
		}
		if s := w.up(); s != nil {
			rules := guardRules[turn%len(guardRules)]
			_, _, err := s.repo.ChangeSecurityGroup(s.ctx, name, s.now(), func([]string) ([]string, error) { return rules, nil })
			w.trace("the rules of security group %s become %q: %v", name, rules, err)
		}
		w.changeGuard(name, turn+1)
	})
}

// drawGuards lets ports of a group on the network of its project have security groups.
func (w *world) drawGuards(cluster, group string) []string {
	return [][]string{nil, {"web"}, {"ops"}, {"ops", "web"}}[w.drawnFor(cluster+" "+group+" guards", 4)]
}

// endGuards deletes all security groups, and reports whether that is done.
func (w *world) endGuards(s *server) bool {
	for _, g := range slices.Backward(s.cache.View().SecurityGroups) { // web, whose rules name ops, comes before ops
		if _, err := s.repo.DeleteSecurityGroup(s.ctx, g.Name); err != nil && !errors.Is(err, state.ErrNotFound) {
			return false
		}
	}
	return true
}

// checkGuards checks that no port comes to a node without the security groups that its member has it with.
func (w *world) checkGuards(n *node, d *agentstream.Desired) {
	for i := range d.Members {
		a := &d.Members[i].Assignment
		for at := range a.Ports {
			id := fabric.PortOf(a, at).ID
			j := slices.IndexFunc(d.Networks, func(n fabric.Network) bool { return n.UID == a.Ports[at].Network })
			if j < 0 || !slices.ContainsFunc(d.Networks[j].Ports, func(p fabric.Port) bool { return p.ID == id }) {
				continue
			}
			var has []string
			for _, g := range d.Networks[j].GroupsOf(id) {
				has = append(has, g.ID)
			}
			if want := slices.Sorted(slices.Values(a.Ports[at].SecurityGroups)); !slices.Equal(has, want) {
				w.fail("security groups", "%s has port %s with the security groups %v, want %v", n.record.Name, id, has, want)
			}
		}
	}
}

// guardedEnd is a port of a member on a network of a project, as its assignment says.
type guardedEnd struct {
	assignment *api.Assignment
	claim      *api.PortClaim
	project    string
	index      int
}

// checkReachAtRest checks that each node lets members of a network reach its own as the stored rules say, and nobody else.
func (w *world) checkReachAtRest() {
	s := w.up()
	if s == nil {
		return
	}
	view, ends := s.cache.View(), map[string][]guardedEnd{}
	for _, c := range view.Clusters {
		for a := range c.Held() {
			for i := range a.Ports {
				if n := view.Network(a.Ports[i].Network); n != nil && n.OfProject() && !a.Spare && !a.IsPart() && !a.Saved {
					reached := cmp.Or(fabric.Router(*n), n.UID)
					ends[reached] = append(ends[reached], guardedEnd{a, &a.Ports[i], c.Intent.Project, n.Index})
				}
			}
		}
	}
	for uid, all := range ends {
		for _, to := range all {
			groups, told := w.groupsAt(to)
			for _, from := range all {
				got, want := reaches(groups, from, to), mayReach(view, from, to)
				if told && want && len(to.claim.SecurityGroups) > 0 {
					w.happened("reached by a rule")
				}
				if told && want && from.index != to.index {
					w.happened("reached by a router")
					w.checkRoute(from, to)
				}
				if told && got != want {
					w.fail("security groups", "on %s, %s reaches %s: %v, want %v", uid, from.assignment.ID, to.assignment.ID, got, want)
				}
			}
		}
	}
}

// groupsAt returns the security groups of a port's network on its node, and whether the node knows the network.
func (w *world) groupsAt(e guardedEnd) ([]fabric.Group, bool) {
	for _, n := range w.nodes {
		if n.record.Name == e.assignment.Node {
			net, told := n.networks[e.index]
			return net.groups, told
		}
	}
	return nil, false
}

// checkRoute checks that the node of a member knows where a member of another routed network is.
func (w *world) checkRoute(from, to guardedEnd) {
	for _, n := range w.nodes {
		net, told := n.networks[from.index]
		if n.record.Name != from.assignment.Node || !told || from.assignment.Node == to.assignment.Node {
			continue
		}
		knows := func(r remote) bool { return r.address == to.claim.Address }
		if len(net.ports) > 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(n.networks[to.index].remotes)), knows) {
			w.fail("routes", "%s of %s does not know %s of %s", n.record.Name, from.assignment.ID, to.claim.Address, to.assignment.ID)
		}
	}
}

// mayReach reports whether stored rules let a port reach another.
func mayReach(view *state.View, from, to guardedEnd) bool {
	for _, name := range to.claim.SecurityGroups {
		g := view.SecurityGroup(state.SecurityGroupName(to.project, name))
		if g == nil {
			continue
		}
		for _, named := range portgroups.Named(g.Rules) {
			if slices.Contains(from.claim.SecurityGroups, named) {
				return true
			}
		}
	}
	return len(to.claim.SecurityGroups) == 0
}

// reaches reports whether the groups of a node let a port reach another, on this node.
func reaches(groups []fabric.Group, from, to guardedEnd) bool {
	guarded := false
	for _, g := range groups {
		if !slices.ContainsFunc(g.Ports, func(id string) bool { return fabric.AssignmentOf(id) == to.assignment.ID }) {
			continue
		}
		guarded = true
		for _, r := range g.Rules {
			i := slices.IndexFunc(groups, func(other fabric.Group) bool { return other.ID == r.Group })
			if i >= 0 && slices.Contains(groups[i].Members, from.claim.Address) {
				return true
			}
		}
	}
	return !guarded
}
