package lifecycle

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// DiskBearable returns why a cluster can't have a block volume, or "". It is the disk of one machine: two would each take what is there for their own.
func DiskBearable(spec *api.ClusterSpec) string {
	members := 0
	for i := range spec.Groups {
		g := &spec.Groups[i]
		if g.Stack != api.StackVM {
			return fmt.Sprintf("members of group %q run on stack %q; only members of stack %q have disks", g.Name, g.Stack, api.StackVM)
		}
		if members += g.Size + g.Spares; members > 1 {
			return "only a cluster of one member, without spares, can have one"
		}
	}
	return ""
}
