package lifecycle

import (
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
