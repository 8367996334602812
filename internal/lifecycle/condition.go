package lifecycle

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// ConditionRefused returns why the network of a cluster can't have a condition, or "".
func ConditionRefused(spec *api.ClusterSpec) string {
	for i := range spec.Groups {
		if g := &spec.Groups[i]; g.Stack != api.StackContainer {
			return fmt.Sprintf("members of group %q run on stack %q, and only what members on stack %q send can have one: it passes a forwarder of their node", g.Name, g.Stack, api.StackContainer)
		}
	}
	return ""
}
