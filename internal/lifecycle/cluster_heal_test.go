package lifecycle

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestHowAClusterHeals(t *testing.T) {
	const ready, starting, failed, unhealthy = api.MemberReady, api.MemberStarting, api.MemberFailed, api.MemberUnhealthy
	degraded := func(message string) []string {
		return []string{"SetPhase degraded: " + message, "Emit Degraded: " + message + "||"}
	}
	checkSteps(t, []step{
		{"a ready cluster with ready members rests", api.ClusterReady, func(l *life) { l.seeAll(ready) }, []string{}},
		{
			"files that are not the newest do not make it less than ready", api.ClusterReady,
			func(l *life) { l.seeAll(ready); l.Observed["a1"] = Observation{Phase: ready} },
			[]string{},
		},
		{
			"it stays ready while a node is only not heard of", api.ClusterReady,
			func(l *life) { l.seeAll(ready); l.node("n2", api.NodeUnknown) },
			[]string{},
		},
		{
			"it stays ready while a node has connected and not yet told what it has", api.ClusterReady,
			func(l *life) { l.see("a0", ready, ""); l.Nodes["n2"] = NodeState{Phase: api.NodeReady} },
			[]string{},
		},
		{
			"the members of a node that is down are lost", api.ClusterReady,
			func(l *life) { l.seeAll(ready); l.node("n2", api.NodeDown) },
			append([]string{"Lose [a1]: node n2 is down", "Emit MemberLost: c-1 on n2 is lost (node n2 is down)|c-1|n2"},
				degraded("c-1 on n2 is lost (node n2 is down)")...),
		},
		{
			"a member that ended is lost at once", api.ClusterReady,
			func(l *life) { l.seeAll(ready); l.see("a0", failed, "ended by signal 9") },
			append([]string{"Lose [a0]: ended by signal 9", "Emit MemberLost: c-0 on n1 is lost (ended by signal 9)|c-0|n1"},
				degraded("c-0 on n1 is lost (ended by signal 9)")...),
		},
		{
			"a member known only to have exited is replaced, too", api.ClusterDegraded,
			func(l *life) {
				l.seeAll(ready)
				l.see("a0", failed, "")
				l.Record.Message = "c-0 on n1 is lost (the member exited)"
			},
			[]string{"Lose [a0]: the member exited", "Emit MemberLost: c-0 on n1 is lost (the member exited)|c-0|n1"},
		},
		{
			"an unhealthy member degrades it and has some time", api.ClusterReady,
			func(l *life) {
				l.seeAll(ready)
				l.Observed["a1"] = Observation{Phase: unhealthy, Message: "no SSH", Current: true, Since: l.Now.Add(-9 * time.Second)}
			},
			append(degraded("c-1 on n2 is unhealthy (no SSH)"), "WakeAt 1m1s"),
		},
		{
			"then it is lost", api.ClusterDegraded,
			func(l *life) {
				l.seeAll(ready)
				l.Observed["a1"] = Observation{Phase: unhealthy, Message: "no SSH", Current: true, Since: l.Now.Add(-10 * time.Second)}
			},
			[]string{
				"Lose [a1]: unhealthy for 10s: no SSH", "Emit MemberLost: c-1 on n2 is lost (unhealthy for 10s: no SSH)|c-1|n2",
				"SetPhase degraded: c-1 on n2 is lost (unhealthy for 10s: no SSH)",
			},
		},
		{
			"the patience with each ends by itself", api.ClusterDegraded,
			func(l *life) {
				l.size(3)
				l.add("c-2", "n3", 2)
				l.Observed["a0"] = Observation{Phase: unhealthy, Since: l.Now.Add(-time.Second)}
				l.Observed["a1"] = Observation{Phase: unhealthy, Since: l.Now.Add(-3 * time.Second)}
				l.Observed["a2"] = Observation{Phase: unhealthy, Since: l.Now.Add(-2 * time.Second)}
				l.Record.Message = "c-0 on n1 is unhealthy; c-1 on n2 is unhealthy; c-2 on n3 is unhealthy"
			},
			[]string{"WakeAt 1m7s"},
		},
		{
			"whoever is well meanwhile", api.ClusterDegraded,
			func(l *life) {
				l.seeAll(ready)
				l.Observed["a0"] = Observation{Phase: unhealthy, Since: l.Now.Add(-time.Second)}
				l.Record.Message = "c-0 on n1 is unhealthy"
			},
			[]string{"WakeAt 1m9s"},
		},
		{
			"a new leader is patient anew", api.ClusterDegraded,
			func(l *life) {
				l.seeAll(ready)
				l.see("a1", unhealthy, "x")
				l.LeaderSince, l.Record.Message = l.Now, "c-1 on n2 is unhealthy (x)"
			},
			[]string{"WakeAt 1m10s"},
		},
		{
			"one that its node does not have degrades it, and is waited for", api.ClusterReady,
			func(l *life) { l.see("a0", ready, "") },
			append(degraded("c-1 on n2 is coming up"), "WakeAt 5m0s"),
		},
		{
			"not for ever", api.ClusterDegraded,
			func(l *life) { l.see("a0", ready, ""); l.Now = t0.Add(5 * time.Minute) },
			[]string{
				"Lose [a1]: not started within 5m0s", "Emit MemberLost: c-1 on n2 is lost (not started within 5m0s)|c-1|n2",
				"SetPhase degraded: c-1 on n2 is lost (not started within 5m0s)",
			},
		},
		{
			"nor for one that does not come up", api.ClusterDegraded,
			func(l *life) { l.seeAll(ready); l.see("a1", starting, "no route"); l.Now = t0.Add(5 * time.Minute) },
			[]string{
				"Lose [a1]: still starting after 5m0s: no route", "Emit MemberLost: c-1 on n2 is lost (still starting after 5m0s: no route)|c-1|n2",
				"SetPhase degraded: c-1 on n2 is lost (still starting after 5m0s: no route)",
			},
		},
		{
			"nor for one that is made and made again", api.ClusterDegraded,
			func(l *life) {
				l.seeAll(ready)
				l.see("a1", api.MemberPreparing, "no space")
				l.Now = t0.Add(5 * time.Minute)
			},
			[]string{
				"Lose [a1]: still preparing after 5m0s: no space",
				"Emit MemberLost: c-1 on n2 is lost (still preparing after 5m0s: no space)|c-1|n2",
				"SetPhase degraded: c-1 on n2 is lost (still preparing after 5m0s: no space)",
			},
		},
		{
			"each lost member asks for its own replacement", api.ClusterDegraded,
			func(l *life) {
				l.add("c-2", "n3", 2)
				l.size(3)
				l.seeAll(ready)
				l.lose(0, 1, "x")
				l.lose(2, 2, "y")
				l.Record.Message = "c-0 on n1 is lost (x); c-2 on n3 is lost (y)"
			},
			[]string{"WakeAt 10m0s", "Need heal c-0@0(for a0, not n1, attempt 1)", "Need heal c-2@2(for a2, not n3, attempt 2)"},
		},
		{
			"what dies again and again is replaced more slowly", api.ClusterDegraded,
			func(l *life) {
				l.seeAll(ready)
				l.lose(1, 4, "x")
				l.Record.Message = "c-1 on n2 is lost (x)"
				l.Now = t0.Add(14 * time.Second)
			},
			[]string{"WakeAt 10m0s", "WakeAt 15s"},
		},
		{
			"a second loss is just another one", api.ClusterDegraded,
			func(l *life) {
				l.seeAll(ready)
				l.lose(1, 1, "x")
				l.see("a0", failed, "y")
				l.Record.Message = "c-1 on n2 is lost (x)"
			},
			[]string{
				"WakeAt 10m0s", "Lose [a0]: y", "Emit MemberLost: c-0 on n1 is lost (y)|c-0|n1",
				"SetPhase degraded: c-1 on n2 is lost (x); c-0 on n1 is lost (y)", "Need heal c-1@1(for a1, not n2, attempt 1)",
			},
		},
		{
			"while the replacement comes up the cluster stays degraded", api.ClusterDegraded,
			func(l *life) {
				l.seeAll(ready)
				l.release("a1")
				l.add("c-1", "n3", 1).Replaces = "a1"
				l.see("a2", starting, "")
			},
			[]string{"WakeAt 10m0s", "SetPhase degraded: c-1 on n3 is coming up", "WakeAt 5m0s"},
		},
		{
			"it is ready again when all are and know each other", api.ClusterDegraded,
			func(l *life) {
				l.seeAll(ready)
				l.release("a1")
				l.add("c-1", "n3", 1).Replaces = "a1"
				l.see("a2", ready, "")
			},
			[]string{"WakeAt 10m0s", "SetPhase ready: ", "Emit Ready: 2 members ready||"},
		},
		{
			"not before everyone has the new names", api.ClusterDegraded,
			func(l *life) { l.seeAll(ready); l.Observed["a0"] = Observation{Phase: ready} },
			[]string{},
		},
		{
			"nor before everyone is heard of", api.ClusterDegraded,
			func(l *life) { l.seeAll(ready); l.node("n2", api.NodeUnknown); l.size(3) },
			[]string{"Need scale c-2@2"},
		},
	})
}
