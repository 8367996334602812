package situation

import (
	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// machines say why the members of a cluster have their whole machines, and whether its groups could have the others.
func (p plan) machines(c *state.Cluster) []api.MachineFit {
	var all []api.MachineFit
	free := p.free.Sketch()
	for _, g := range p.site.groups(&c.Intent) {
		has := map[string]bool{}
		for a, ref := range c.AllWithRef() {
			if a.Group != g.Name || !a.ByProvisioner() || a.Spare || ref.Releasing {
				continue
			}
			has[a.Node] = true
			all = append(all, api.MachineFit{Group: g.Name, Node: a.Node, Member: a.Member, Fits: true, Reason: whyHas(p.site.View.Machine(a.Node), a)})
		}
		for _, fit := range free.Machines(g) {
			if !has[fit.Node] {
				all = append(all, api.MachineFit{Group: g.Name, Node: fit.Node, Fits: fit.Fits, Reason: fit.Reason})
			}
		}
	}
	return all
}

// whyHas says how a member came to its machine.
func whyHas(m *state.Machine, a *api.Assignment) string {
	switch {
	case m == nil || m.Record == nil || m.Record.Boot == nil || m.Record.Boot.Member != a.ID:
		return a.Node + " is about to boot for it"
	case m.Record.Boot.Warm:
		return a.Node + " was warm, and booted from its boot agent"
	default:
		return a.Node + " was off"
	}
}
