package lifecycle

import (
	"fmt"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestHowAClusterChangesItsSize(t *testing.T) {
	const ready, starting, failed = api.MemberReady, api.MemberStarting, api.MemberFailed
	checkSteps(t, []step{
		{
			"new members are asked for together, with the next names and ranks", api.ClusterReady,
			func(l *life) { l.seeAll(ready); l.size(4) },
			[]string{
				"SetPhase scaling: resizing to 4 members", "Emit Scaling: resizing to 4 members||", "Need scale c-2@2 c-3@3",
			},
		},
		{
			"while it waits for room nothing is said again", api.ClusterScaling,
			func(l *life) { l.seeAll(ready); l.size(4); l.Record.Message = "resizing to 4 members" },
			[]string{"Need scale c-2@2 c-3@3"},
		},
		{
			"names and ranks that are free are used first", api.ClusterScaling,
			func(l *life) {
				l.size(4)
				l.Assignments[1].Member, l.Assignments[1].Rank = "c-3", 3
				l.seeAll(ready)
				l.Record.Message = "resizing to 4 members"
			},
			[]string{"Need scale c-1@1 c-2@2"},
		},
		{
			"the rank of a lost member is kept for it", api.ClusterDegraded,
			func(l *life) {
				l.seeAll(ready)
				l.lose(0, 1, "x")
				l.size(3)
				l.Record.Message = "c-0 on n1 is lost (x)"
			},
			[]string{"WakeAt 10m0s", "Need heal c-0@0(for a0, not n1, attempt 1)", "Need scale c-2@2"},
		},
		{
			"members that are added do not make it less usable", api.ClusterScaling,
			func(l *life) {
				l.seeAll(ready)
				l.size(3)
				l.add("c-2", "n3", 2).TakenAt = t0.Add(50 * time.Second)
				l.see("a2", starting, "")
				l.Record.Message = "resizing to 3 members"
			},
			[]string{"WakeAt 5m50s"},
		},
		{
			"but one that was ready with them is degraded without them", api.ClusterReady,
			func(l *life) {
				l.seeAll(ready)
				l.size(3)
				l.add("c-2", "n3", 2).TakenAt = t0.Add(50 * time.Second)
				l.see("a2", starting, "")
			},
			[]string{"SetPhase degraded: c-2 on n3 is coming up", "Emit Degraded: c-2 on n3 is coming up||", "WakeAt 5m50s"},
		},
		{
			"and stays so until they are back", api.ClusterDegraded,
			func(l *life) {
				l.seeAll(ready)
				l.size(3)
				l.add("c-2", "n3", 2).TakenAt = t0.Add(50 * time.Second)
				l.see("a2", starting, "")
				l.Record.Message = "c-2 on n3 is coming up"
			},
			[]string{"WakeAt 5m50s"},
		},
		{
			"one that was paused while members were added goes on adding them", api.ClusterResuming,
			func(l *life) {
				l.seeAll(ready)
				l.size(3)
				l.add("c-2", "n3", 2).TakenAt = t0.Add(50 * time.Second)
				l.see("a2", starting, "")
			},
			[]string{"SetPhase scaling: resizing to 3 members", "Emit Scaling: resizing to 3 members||", "WakeAt 5m50s"},
		},
		{
			"a replacement that comes up is trouble, though members are added", api.ClusterScaling,
			func(l *life) {
				l.seeAll(ready)
				l.size(3)
				l.add("c-2", "n3", 2).TakenAt = t0.Add(50 * time.Second)
				l.see("a2", starting, "")
				l.Assignments[2].Replaces = "x"
			},
			[]string{"SetPhase degraded: c-2 on n3 is coming up", "Emit Degraded: c-2 on n3 is coming up||", "WakeAt 5m50s"},
		},
		{
			"so is any member where it is not known since when the cluster is ready", api.ClusterScaling,
			func(l *life) {
				l.seeAll(ready)
				l.size(3)
				l.add("c-2", "n3", 2).TakenAt = t0.Add(50 * time.Second)
				l.see("a2", starting, "")
				l.Record.ReadyAt = nil
			},
			[]string{"SetPhase degraded: c-2 on n3 is coming up", "Emit Degraded: c-2 on n3 is coming up||", "WakeAt 5m50s"},
		},
		{
			"a degraded one that is whole again and is to grow scales", api.ClusterDegraded,
			func(l *life) {
				l.seeAll(ready)
				l.size(3)
			},
			[]string{"SetPhase scaling: resizing to 3 members", "Emit Scaling: resizing to 3 members||", "Need scale c-2@2"},
		},
		{
			"a ready one scales though a node is not reporting", api.ClusterReady,
			func(l *life) {
				l.seeAll(ready)
				l.size(3)
				l.node("n2", api.NodeUnknown)
			},
			[]string{"SetPhase scaling: resizing to 3 members", "Emit Scaling: resizing to 3 members||", "Need scale c-2@2"},
		},
		{
			"one that is on its way is looked at when it begins to count", api.ClusterScaling,
			func(l *life) {
				l.seeAll(ready)
				l.size(3)
				l.add("c-2", "n3", 2).TakenAt = t0.Add(50 * time.Second)
				l.Observed["a2"] = Observation{Phase: starting, Current: true, Since: t0.Add(4 * time.Minute)}
				l.Record.Message = "resizing to 3 members"
				l.Now = t0.Add(4*time.Minute + time.Second)
			},
			[]string{"WakeAt 5m50s"},
		},
		{
			"one that takes too long is replaced", api.ClusterScaling,
			func(l *life) {
				l.seeAll(ready)
				l.size(3)
				l.add("c-2", "n3", 2).TakenAt = t0.Add(time.Second)
				l.see("a2", starting, "")
				l.Now = t0.Add(5*time.Minute + time.Second)
			},
			[]string{
				"Lose [a2]: still starting after 5m0s", "Emit MemberLost: c-2 on n3 is lost (still starting after 5m0s)|c-2|n3",
				"SetPhase degraded: c-2 on n3 is lost (still starting after 5m0s)",
				"Emit Degraded: c-2 on n3 is lost (still starting after 5m0s)||",
			},
		},
		{
			"nor is one that its node does not know waited for longer", api.ClusterScaling,
			func(l *life) {
				l.seeAll(ready)
				l.size(3)
				l.add("c-2", "n3", 2).TakenAt = t0.Add(time.Second)
				l.Now = t0.Add(5*time.Minute + time.Second)
			},
			[]string{
				"Lose [a2]: not started within 5m0s", "Emit MemberLost: c-2 on n3 is lost (not started within 5m0s)|c-2|n3",
				"SetPhase degraded: c-2 on n3 is lost (not started within 5m0s)", "Emit Degraded: c-2 on n3 is lost (not started within 5m0s)||",
			},
		},
		{
			"an unhealthy new member is trouble like any", api.ClusterScaling,
			func(l *life) {
				l.seeAll(ready)
				l.size(3)
				l.add("c-2", "n3", 2).TakenAt = t0.Add(50 * time.Second)
				l.Observed["a2"] = Observation{Phase: api.MemberUnhealthy, Since: l.Now}
			},
			[]string{"SetPhase degraded: c-2 on n3 is unhealthy", "Emit Degraded: c-2 on n3 is unhealthy||", "WakeAt 1m10s"},
		},
		{
			"a member of old that does not run is trouble though others are added", api.ClusterScaling,
			func(l *life) { l.seeAll(ready); l.see("a1", starting, ""); l.size(3) },
			[]string{"SetPhase degraded: c-1 on n2 is coming up", "Emit Degraded: c-1 on n2 is coming up||", "Need scale c-2@2", "WakeAt 5m0s"},
		},
		{
			"with all there it is ready again", api.ClusterScaling,
			func(l *life) { l.size(3); l.add("c-2", "n3", 2); l.seeAll(ready) },
			[]string{"SetPhase ready: ", "Emit Ready: 3 members ready||"},
		},
		{
			"not before those of old have the new names", api.ClusterScaling,
			func(l *life) {
				l.size(3)
				l.add("c-2", "n3", 2)
				l.seeAll(ready)
				l.Observed["a0"] = Observation{Phase: ready}
			},
			[]string{},
		},
		{
			"a smaller size releases the highest ranks", api.ClusterReady,
			func(l *life) {
				l.add("c-2", "n3", 2)
				l.add("c-3", "n3", 3)
				l.seeAll(ready)
			},
			[]string{
				"Release [a3 a2]: no longer needed", "Emit Released: released 2 members: c-3; c-2||",
				"SetPhase scaling: resizing to 2 members", "Emit Scaling: resizing to 2 members||",
			},
		},
		{
			"members taken out by name go, others keep their names and ranks", api.ClusterReady,
			func(l *life) { l.add("c-2", "n3", 2); l.seeAll(ready); l.size(2, "c-1") },
			[]string{
				"Release [a1]: no longer needed", "Emit Released: released 1 member: c-1||",
				"SetPhase scaling: resizing to 2 members", "Emit Scaling: resizing to 2 members||",
			},
		},
		{
			"a surplus member that failed is not replaced", api.ClusterScaling,
			func(l *life) {
				l.size(1)
				l.seeAll(ready)
				l.see("a1", failed, "x")
				l.Record.Message = "resizing to 1 member"
			},
			[]string{"Release [a1]: no longer needed", "Emit Released: released 1 member: c-1||"},
		},
		{
			"a lost member that nobody wants any more is dropped", api.ClusterDegraded,
			func(l *life) { l.seeAll(ready); l.lose(1, 1, "x"); l.size(1) },
			[]string{"WakeAt 10m0s", "Drop{Members:[c-1]}"},
		},
		{
			"after which the cluster is whole", api.ClusterDegraded,
			func(l *life) { l.seeAll(ready); l.release("a1"); l.size(1) },
			[]string{"WakeAt 10m0s", "SetPhase ready: ", "Emit Ready: 1 member ready||"},
		},
		{
			"one that starts may be resized, too", api.ClusterStarting,
			func(l *life) { l.size(2, "c-0"); l.see("a0", ready, "") },
			[]string{
				"Release [a0]: no longer needed", "Emit Released: released 1 member: c-0||", "Need scale c-2@2", "WakeAt 5m0s",
			},
		},
	})
}

func TestHowSparesAreHeld(t *testing.T) {
	spares := func(l *life, n int) { l.Intent.Spec.Groups[0].Spares = n; l.seeAll(api.MemberReady) }
	spare := func(l *life, i int, node string) {
		l.add(fmt.Sprintf("c-spare-%d", i), node, NoRank).Spare = true
	}
	checkSteps(t, []step{
		{
			"each is asked for by itself", api.ClusterReady, func(l *life) { spares(l, 2) },
			[]string{"Need spare c-spare-0@-1", "Need spare c-spare-1@-1"},
		},
		{
			"those that are there are not asked for, and are no members to wait for", api.ClusterReady,
			func(l *life) { spares(l, 2); spare(l, 0, "n3") },
			[]string{"Need spare c-spare-1@-1"},
		},
		{
			"they count for nothing in whether the cluster is ready", api.ClusterStarting,
			func(l *life) { spares(l, 1); spare(l, 0, "n3") },
			[]string{"SetPhase ready: ", "Emit Ready: 2 members ready||"},
		},
		{
			"those nobody wants go without a word", api.ClusterReady,
			func(l *life) { spares(l, 0); spare(l, 0, "n3") },
			[]string{"Release [a2]: no longer needed"},
		},
		{
			"one on a drained node is let go, so that the node becomes empty", api.ClusterReady, func(l *life) {
				spares(l, 1)
				spare(l, 0, "n3")
				l.Nodes["n3"] = NodeState{Phase: api.NodeReady, Reported: true, Drained: true}
			},
			[]string{"Release [a2]: no longer needed", "Need spare c-spare-0@-1"},
		},
		{
			"room on a node that is down is given up, and asked for elsewhere", api.ClusterReady,
			func(l *life) { spares(l, 1); spare(l, 0, "n3"); l.node("n3", api.NodeDown) },
			[]string{"Release [a2]: no longer needed", "Need spare c-spare-0@-1"},
		},
	})
}
