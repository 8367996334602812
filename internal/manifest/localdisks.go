package manifest

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// maxDiskRequests bounds the requests for disks of a group.
const maxDiskRequests = 8

// localDisks checks the disks that the machines of a group should have.
func (n *normalizer) localDisks(path string, g api.Group) {
	switch {
	case len(g.LocalDisks) == 0 && !n.src.Has(path):
		return
	case g.Stack != api.StackMetal:
		n.add(path, "", "members on the stack %q have no disks of a machine; omit it, use the stack %q, or give the cluster a volume", g.Stack, api.StackMetal)
		return
	case len(g.LocalDisks) > maxDiskRequests:
		n.add(path, "", "has %d requests; at most %d are possible", len(g.LocalDisks), maxDiskRequests)
		return
	}
	for i, r := range g.LocalDisks {
		if _, err := r.Parse(); err != nil {
			n.add(fmt.Sprintf("%s[%d]", path, i), string(r), "%v", err)
		}
	}
}
