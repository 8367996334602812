package decision

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
)

func TestDevicesOfOtherNodesArePartsThatTheirAgentsProveClean(t *testing.T) {
	gpu := func(id string) []api.DeviceClaim { return []api.DeviceClaim{{Class: "gpu", Device: id, Way: "whole"}} }
	members := []api.Assignment{{ID: "u.c-0.1", Member: "c-0", Node: "n1", RAMBoot: 3, Generation: 1}}
	placed := []placement.Placed{{Devices: []placement.DevicesOn{{Node: "n1", Claims: gpu("gpu0")}, {Node: "n2", Claims: gpu("gpu1")}}}}
	parts := addDevices(members, placed)
	if len(members[0].Devices) != 1 || members[0].Devices[0].Device != "gpu0" || members[0].RAMBoot != 0 {
		t.Errorf("the member is %+v, want the device of its own node, which the end of a boot does not clean", members[0])
	}
	if len(parts) != 1 {
		t.Fatalf("got %d parts, want one for the other node", len(parts))
	}
	p := parts[0]
	if p.ID != "u.c-0.1-d0" || p.Of != "u.c-0.1" || p.Node != "n2" || p.Rank != lifecycle.NoRank || len(p.Devices) != 1 ||
		len(p.CleanBy) != 1 || p.CleanBy[0] != api.ByAgents("n2")[0] {
		t.Errorf("the part is %+v, want gpu1 on n2, cleaned by the agent there", p)
	}
}
