package apiserver

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// oneGateway refuses groups on two networks of the project that lead further by their gateways: a member would have two ways to one place. Groups
// that the cluster had before are not looked at.
func oneGateway(was, want api.ClusterSpec, project string, view *state.View) error {
	for i, g := range want.Groups {
		if groupIndex(was, g.Name) >= 0 {
			continue
		}
		first := ""
		for j, network := range g.Networks {
			own, joined := api.CutProjectNetwork(network.Name)
			in := view.NetworkIntent(state.NetworkIntentName(project, own))
			if !joined || in == nil || !in.HasGateway() {
				continue
			}
			if first == "" {
				first = network.Name
				continue
			}
			message := fmt.Sprintf("networks %s and %s both have a gateway (egress or routed); a group can be on one such network only", first, network.Name)
			f := fail(codeInvalidCluster, "group %q: %s; omit one of them, or use two groups", g.Name, message)
			f.Errors = []api.FieldProblem{{Location: fmt.Sprintf("%s[%d]", groupField(want, i, "networks"), j), Value: network.Name, Message: message}}
			return f
		}
	}
	return nil
}
