package manifest

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestDisksOfMachinesAreForWholeMachines(t *testing.T) {
	for name, tc := range map[string]struct {
		stack api.Stack
		disks []api.DiskRequest
		want  string
	}{
		"of a whole machine":        {api.StackMetal, []api.DiskRequest{"1:500GB:nvme", "2:1TiB"}, ""},
		"of a container":            {api.StackContainer, []api.DiskRequest{"1:500GB"}, "have no disks of a machine"},
		"of a virtual machine":      {api.StackVM, []api.DiskRequest{"1:500GB"}, "have no disks of a machine"},
		"of a kind that nobody has": {api.StackMetal, []api.DiskRequest{"1:500GB:tape"}, `"tape" is no kind of disk`},
		"none":                      {api.StackMetal, []api.DiskRequest{"0:500GB"}, "is not between 1 and 99"},
		"of no size":                {api.StackMetal, []api.DiskRequest{"1:much"}, "is not a size"},
		"without a size":            {api.StackMetal, []api.DiskRequest{"1"}, "write COUNT:SIZE"},
		"too many requests":         {api.StackMetal, make([]api.DiskRequest, 9), "at most 8 are possible"},
	} {
		_, err := Normalize(api.ClusterRequest{Name: "c", Stack: tc.stack, LocalDisks: tc.disks}, nil)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
