package lifecycle

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestAMemberIsNoFurtherThanItsParts(t *testing.T) {
	const ready, starting, failed = api.MemberReady, api.MemberStarting, api.MemberFailed
	lost := func(reason string) []string {
		text := "c-0 on n1 is lost (" + reason + ")"
		return []string{"Lose [a0]: " + reason, "Emit MemberLost: " + text + "|c-0|n1", "SetPhase degraded: " + text, "Emit Degraded: " + text + "||"}
	}
	withPart := func(change func(*life)) func(*life) {
		return func(l *life) {
			l.part("a0", "n3")
			l.seeAll(ready)
			change(l)
		}
	}
	checkSteps(t, []step{
		{"a member is ready with its part", api.ClusterReady, withPart(func(*life) {}), []string{}},
		{
			"a starting cluster waits for a part", api.ClusterStarting,
			withPart(func(l *life) { l.see("a2", starting, "") }),
			[]string{"WakeAt 5m0s"},
		},
		{
			"a part that nothing is heard of is not ready", api.ClusterStarting,
			withPart(func(l *life) { delete(l.Observed, "a2") }),
			[]string{"WakeAt 5m0s"},
		},
		{
			"a starting cluster is ready when the part is", api.ClusterStarting, withPart(func(*life) {}),
			[]string{"SetPhase ready: ", "Emit Ready: 2 members ready||"},
		},
		{
			"a part that failed is the loss of its member", api.ClusterReady,
			withPart(func(l *life) { l.see("a2", failed, "no such device") }), lost("its part a2 on node n3 failed: no such device"),
		},
		{
			"a part whose node is down is the loss of its member", api.ClusterReady,
			withPart(func(l *life) { l.node("n3", api.NodeDown) }), lost("its part a2 is on node n3, which is down"),
		},
		{
			"a part whose node is not heard of is no evidence", api.ClusterReady,
			withPart(func(l *life) { l.node("n3", api.NodeUnknown) }),
			[]string{},
		},
	})
}
