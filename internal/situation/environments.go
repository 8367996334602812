package situation

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/compatibility"
	"github.com/nearmetal/nearmetal/internal/state"
)

// Offered is a node as placement sees it: with the environments its agent told of, and the built ones that suit it. The record is the
// stored one when nothing is added.
func Offered(view *state.View, n *api.NodeRecord) *api.NodeRecord {
	if !n.Images || len(view.Environments) == 0 {
		return n
	}
	offered := *n
	offered.Environments = slices.Clone(n.Environments)
	for _, e := range view.Environments {
		if on, ok := EnvironmentOn(view, e, n); ok {
			offered.Environments = append(offered.Environments, on)
		}
	}
	return &offered
}

// EnvironmentOn tells whether a built environment can run in members of a node; false when it is not for members at all.
func EnvironmentOn(view *state.View, e *api.EnvironmentRecord, n *api.NodeRecord) (api.EnvironmentOnNode, bool) {
	img := view.Image(e.Digest)
	if img == nil || !slices.Contains(img.Stacks, api.StackContainer) {
		return api.EnvironmentOnNode{}, false
	}
	on := api.EnvironmentOnNode{Name: e.Name, Description: img.Description, Stacks: []api.Stack{api.StackContainer}, Digest: img.Digest}
	if !n.Images {
		on.Problems = []string{"the node's kernel can't mount images; see: nearmetal node show " + n.Name}
	}
	if m := view.Machine(n.Name); m != nil && m.Hardware != nil {
		on.Problems = append(on.Problems, compatibility.CheckMember(m.Hardware, *img)...)
	}
	on.OK = len(on.Problems) == 0
	return on, true
}
