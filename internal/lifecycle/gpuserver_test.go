package lifecycle

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestAMemberOutlivesTheServerOfItsGPU(t *testing.T) {
	const ready, starting, failed = api.MemberReady, api.MemberStarting, api.MemberFailed
	withServer := func(change func(*life)) func(*life) {
		return func(l *life) {
			p := l.part("a0", "n3")
			p.Devices = []api.DeviceClaim{{Class: api.ClassGPU, Way: api.WayRemote}}
			g := &l.Intent.Spec.Groups[0]
			g.Devices = []api.DeviceRequest{{Class: api.ClassGPU, Way: api.WayRemote, Remote: true}}
			l.part("a1", "n4").Devices = p.Devices // the other member has a server, too
			l.seeAll(ready)
			change(l)
		}
	}
	lost := func(why string) []string {
		return []string{
			"ReleaseServers [a2]", "Emit GPUServerLost: the GPU server of c-0 is lost: " + why + "; programs that use it get an error, and later ones another server|c-0|n3",
			"SetPhase degraded: c-0 on n1 is unhealthy (it has no GPU server: " + why + ")", "Emit Degraded: c-0 on n1 is unhealthy (it has no GPU server: " + why + ")||",
		}
	}
	checkSteps(t, []step{
		{"a member is ready with its server", api.ClusterReady, withServer(func(*life) {}), []string{}},
		{"a starting cluster waits for a server", api.ClusterStarting, withServer(func(l *life) { l.see("a2", starting, "") }), []string{"WakeAt 5m0s"}},
		{
			"a server that failed", api.ClusterReady,
			withServer(func(l *life) { l.see("a2", failed, "its first process has ended; its last output: x") }), lost("it failed on node n3: its first process has ended"),
		},
		{"a server whose node is down", api.ClusterReady, withServer(func(l *life) { l.node("n3", api.NodeDown) }), lost("node n3 is down")},
		{"a server whose node is not heard of is no evidence", api.ClusterReady, withServer(func(l *life) { l.node("n3", api.NodeUnknown) }), []string{}},
		{
			"a member whose server is not heard of is ready all the same", api.ClusterDegraded, withServer(func(l *life) { l.node("n3", api.NodeUnknown) }),
			[]string{"SetPhase ready: ", "Emit Ready: 2 members ready||"},
		},
		{
			"a member without a server is known to be", api.ClusterReady, withServer(func(l *life) { l.Assignments[2].Releasing, l.Assignments[2].Clean = true, true }),
			[]string{
				"SetPhase degraded: c-0 on n1 is unhealthy (it has no GPU server: no node has room for it)", "Emit Degraded: c-0 on n1 is unhealthy (it has no GPU server: no node has room for it)||",
			},
		},
	})
}

func TestAServerLeavesADrainedNodeThatItsMemberIsNotOn(t *testing.T) {
	drained := NodeState{Phase: api.NodeReady, Drained: true, DrainedAt: t0}
	for name, c := range map[string]struct {
		phase  api.ClusterPhase
		node   NodeState
		on     string
		saved  bool
		leaves bool
	}{
		"a ready cluster's, on a drained node":                     {api.ClusterReady, drained, "n3", false, true},
		"a degraded cluster's":                                     {api.ClusterDegraded, drained, "n3", false, true},
		"on a node that is not drained":                            {api.ClusterReady, NodeState{Phase: api.NodeReady}, "n3", false, false},
		"on a node that was drained by policy, whose members stay": {api.ClusterReady, NodeState{Phase: api.NodeReady, Drained: true}, "n3", false, false},
		"beside its member, which stays":                           {api.ClusterReady, drained, "n1", false, false},
		"of a cluster that starts":                                 {api.ClusterStarting, drained, "n3", false, false},
		"of a paused cluster":                                      {api.ClusterPaused, drained, "n3", false, false},
		"of a saved member":                                        {api.ClusterReady, drained, "n3", true, false},
	} {
		member, server := &api.Assignment{ID: "a0", Node: "n1", Saved: c.saved}, &api.Assignment{ID: "a1", Of: "a0", Node: c.on}
		nodes := map[string]NodeState{"n1": {Phase: api.NodeReady}, c.on: c.node}
		if got := LeavesNode(c.phase, member, server, nodes); got != c.leaves {
			t.Errorf("%s: the server leaves: %t, want %t", name, got, c.leaves)
		}
	}
}

func TestAServerIsReleasedInTheSameCommitAsAnotherIsPlaced(t *testing.T) {
	on := func(id, member, node string) api.Assignment {
		return api.Assignment{ID: id, Member: member, Node: node}
	}
	old := on("s1", "c-0", "n1")
	for want, servers := range map[string][]NewServer{
		"Hold [s2] network false spares [] / Emit GPUServerPlaced: programs that c-1 starts from now on use the GPU server on n2|c-1|n2": {{Assignment: on("s2", "c-1", "n2")}},
		"ReleaseServers [s1] / Hold [s3] network false spares [] / Emit GPUServerMoved: the GPU server of c-0 left node n1, which is drained, for n3; " +
			"programs that used it get an error, and those that c-0 starts from now on use the other one|c-0|n3": {{Assignment: on("s3", "c-0", "n3"), Leaves: &old}},
	} {
		if got := strings.Join(sketch(PlanServers(servers)), " / "); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
