package manifest

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cpumodel"
)

// cpuModel checks the CPU model of a group, and returns it in its normal form: nothing for the node's own.
func (n *normalizer) cpuModel(path string, g api.Group) string {
	switch {
	case g.CPUModel == "" && !n.src.Has(path):
	case g.Stack != api.StackVM:
		n.add(path, g.CPUModel, "members on the stack %q have their node's own processor; omit it, or use the stack %q", g.Stack, api.StackVM)
	case g.CPUModel == cpumodel.Host:
		return ""
	case !cpumodel.Known(g.CPUModel):
		hint := fmt.Sprintf("use %q, or a model such as \"Haswell\" or \"EPYC-Rome\"; 'nearmetal node show NODE' lists those of a node", cpumodel.Host)
		if near := Closest(g.CPUModel, cpumodel.Names()); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		n.add(path, g.CPUModel, "%q is not a CPU model; %s", g.CPUModel, hint)
	}
	return g.CPUModel
}
