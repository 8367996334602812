package decision

import (
	"net/netip"
	"strings"
	"testing"
	"time"

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

// serverOf is a server of remote GPUs of a member, on a node.
func serverOf(member api.Assignment, id, node string, generation int64) api.Assignment {
	return api.Assignment{
		ID: member.ID + id, Of: member.ID, ClusterUID: member.ClusterUID, Cluster: member.Cluster, Generation: generation, Member: member.Member, Rank: lifecycle.NoRank, Node: node,
		CleanBy: api.ByAgents(node), Devices: []api.DeviceClaim{{Class: "gpu", Device: "g", Way: "remote", Takes: map[string]int64{"remote-mib": 512}}},
	}
}

func TestRemoteGPUsAreServersAlsoOnTheMembersOwnNode(t *testing.T) {
	whole, remote := api.DeviceClaim{Class: "hca", Device: "h", Way: "vf"}, api.DeviceClaim{Class: "gpu", Device: "g", Way: "remote"}
	members := []api.Assignment{{ID: "u.c-0.1", Member: "c-0", Node: "n1", Generation: 1}}
	parts := addDevices(members, []placement.Placed{{Devices: []placement.DevicesOn{{Node: "n1", Claims: []api.DeviceClaim{whole, remote}}}}})
	if len(members[0].Devices) != 1 || members[0].Devices[0].Device != "h" {
		t.Errorf("the member has %+v, want what is no remote GPU", members[0].Devices)
	}
	if len(parts) != 1 || !parts[0].ServesGPU() || parts[0].Node != "n1" || parts[0].Of != "u.c-0.1" {
		t.Errorf("the parts are %+v, want one server on the member's node", parts)
	}
}

func TestTheServerOfAVirtualMachinesGPUIsAContainer(t *testing.T) {
	remote := api.DeviceClaim{Class: "gpu", Device: "g", Way: "remote"}
	on := []placement.DevicesOn{{Node: "n2", Claims: []api.DeviceClaim{remote, {Class: "hca", Device: "h", Way: "vf"}}}}
	members := []api.Assignment{{ID: "u.c-0.1", Member: "c-0", Node: "n1", Stack: api.StackVM}}
	for _, p := range addDevices(members, []placement.Placed{{Devices: on}}) {
		want := api.StackVM
		if p.ServesGPU() {
			want = api.StackContainer
		}
		if p.Stack != want {
			t.Errorf("part %s with %+v is of stack %q, want %q", p.ID, p.Devices, p.Stack, want)
		}
	}
	own := &api.Network{UID: "u", Index: 1, Prefix: netip.MustParsePrefix("10.64.0.0/20")}
	later, err := AssignServer(&members[0], []placement.DevicesOn{{Node: "n2", Claims: []api.DeviceClaim{remote}}}, own, placement.Decision{})
	if err != nil || len(later) != 1 || later[0].Stack != api.StackContainer {
		t.Errorf("a server that it gets later is %+v, %v; want a container", later, err)
	}
}

func TestAMemberKeepsItsPlaceWhileItsServerGoes(t *testing.T) {
	c := running()
	member := assignment("c-7", 7, 4)
	first := serverOf(member, "-d0", "n9", 4)
	change := apply(t, c, time.Minute, lifecycle.Hold{Assignments: []api.Assignment{member, first}})
	c.Record = &change.Record
	ref := api.ChunkRef{ID: "k9", Count: 2}
	c.Record.Chunks = append(c.Record.Chunks, ref)
	c.Chunks = append(c.Chunks, Chunk{Ref: ref, Assignments: change.Add[0].Assignments})
	second := serverOf(member, "-s5-0", "n8", c.Record.Generation+1)
	hold := lifecycle.Hold{Assignments: []api.Assignment{second}}
	release := lifecycle.ReleaseServers{IDs: []string{first.ID}}
	for why, ops := range map[string][]lifecycle.ClusterOperation{
		"which has one":         {hold},
		"is no server of GPUs":  {lifecycle.ReleaseServers{IDs: []string{member.ID}}},
		"which is no member":    {release, lifecycle.Hold{Assignments: []api.Assignment{func() api.Assignment { s := second; s.Rank = 3; return s }()}}},
		"is a server of u1.x.1": {release, lifecycle.Hold{Assignments: []api.Assignment{func() api.Assignment { s := second; s.Of = "u1.x.1"; return s }()}}},
	} {
		if _, err := Apply(c, ops, t0.Add(2*time.Minute)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("want %q, got %v", why, err)
		}
	}
	change = apply(t, c, 2*time.Minute, release, hold)
	if len(change.Record.Lost) > 0 {
		t.Errorf("lost are %+v, want none: the member runs on", change.Record.Lost)
	}
	equal(t, "usage", []string{"allocated n9 1m0s-2m0s 0 members 0 cores 0 bytes map[gpu/remote-mib:512]"}, usage(change))
}
