package situation

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/compatibility"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/state"
)

// Offer is what a node has for members, with the built environments that suit it.
func Offer(view *state.View, n *state.Node, site offer.Site) api.Offer {
	o := offer.Of(n.Agent, n.Hardware(), n.Machine != nil && Rests(n.Machine), site)
	o.Capacity.Ports = withWired(view, n, o.Capacity.Ports, site)
	var built []api.EnvironmentOnNode
	for _, e := range view.Environments {
		if n.Agent != nil && n.Agent.Images {
			if on, ok := EnvironmentOn(view, e, n); ok {
				built = append(built, on)
			}
		}
		if site.Metal {
			if on, ok := environmentOfMachine(view, e, n); ok {
				built = append(built, on)
			}
		}
	}
	if len(built) > 0 { // the list is the stored one
		o.Environments = slices.Concat(o.Environments, built)
	}
	return o
}

// environmentOfMachine reports whether a machine that was inspected can boot a built environment as a member; false when nobody could.
func environmentOfMachine(view *state.View, e *api.EnvironmentRecord, n *state.Node) (api.EnvironmentOnNode, bool) {
	img := view.Image(e.Digest)
	if n.Hardware() == nil || img == nil || !slices.Contains(img.Stacks, api.StackMetal) {
		return api.EnvironmentOnNode{}, false
	}
	on := api.EnvironmentOnNode{Name: e.Name, Description: img.Description, Stacks: []api.Stack{api.StackMetal}, Digest: img.Digest}
	on.Problems = compatibility.Check(n.Hardware(), *img)
	on.OK = len(on.Problems) == 0
	return on, true
}

// EnvironmentOn reports whether a built environment can run in members of a node with an agent; false when it is not for members at all.
func EnvironmentOn(view *state.View, e *api.EnvironmentRecord, n *state.Node) (api.EnvironmentOnNode, bool) {
	img := view.Image(e.Digest)
	if img == nil {
		return api.EnvironmentOnNode{}, false
	}
	stacks := agentStacks(n.Agent, img)
	if len(stacks) == 0 {
		return api.EnvironmentOnNode{}, false
	}
	on := api.EnvironmentOnNode{Name: e.Name, Description: img.Description, Stacks: stacks, Digest: img.Digest}
	if !n.Agent.Images {
		on.Problems = []string{"the node's kernel can't mount images; see: nearmetal node show " + n.Name}
	}
	if hardware := n.Hardware(); hardware != nil {
		on.Problems = append(on.Problems, compatibility.CheckMember(hardware, *img)...)
	}
	on.OK = len(on.Problems) == 0
	return on, true
}

// agentStacks are the stacks of an image that an agent carries. Containers need no check: what a node lacks for them, its own record says.
func agentStacks(agent *api.NodeRecord, img *api.Image) []api.Stack {
	var stacks []api.Stack
	for _, stack := range []api.Stack{api.StackContainer, api.StackVM} {
		offered := stack == api.StackContainer || slices.ContainsFunc(agent.Stacks, func(c api.StackCheck) bool { return c.Stack == stack && c.OK })
		if offered && slices.Contains(img.Stacks, stack) {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}
