package lifecycle

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestWhatHappensToAClusterWithoutAPlace(t *testing.T) {
	fresh := func(l *life) { l.Record, l.Assignments = nil, nil }
	empty := func(l *life) { l.Record.Chunks, l.Assignments, l.Record.PlacedAt = nil, nil, nil }
	gone := []string{"Forget{}", "Emit Deleted: deleted; the cluster held no resources||"}
	checkSteps(t, []step{
		{"a new one asks for a place for all its members", api.ClusterPending, fresh, []string{"Need create c-0@0 c-1@1"}},
		{"names that were taken out are not asked for", api.ClusterPending, func(l *life) { fresh(l); l.size(2, "c-0") }, []string{"Need create c-1@0 c-2@1"}},
		{"a queued one asks again", api.ClusterQueued, empty, []string{"Need create c-0@0 c-1@1"}},
		{"one deleted before the decision is forgotten", api.ClusterPending, func(l *life) { fresh(l); l.deleteIt() }, gone},
		{"a queued one that is deleted is forgotten", api.ClusterQueued, func(l *life) { empty(l); l.deleteIt() }, gone},
		{"a refused one rests", api.ClusterRefused, empty, []string{}},
		{"a refused one that is deleted is forgotten", api.ClusterRefused, func(l *life) { empty(l); l.deleteIt() }, gone},
	})
}

func TestHowAClusterStarts(t *testing.T) {
	const ready, starting, failed = api.MemberReady, api.MemberStarting, api.MemberFailed
	checkSteps(t, []step{
		{
			"it waits for its members until the deadline", api.ClusterStarting,
			func(l *life) { l.see("a0", ready, "") },
			[]string{"WakeAt 5m0s"},
		},
		{
			"it waits longer for whole machines, which boot", api.ClusterStarting,
			func(l *life) {
				l.see("a0", ready, "")
				l.see("a1", api.MemberPreparing, "its machine boots")
				l.Assignments[1].CleanBy = []api.Prover{{By: api.ExecutorProvisioner, At: "n2"}}
			},
			[]string{"WakeAt 40m0s"},
		},
		{
			"it is ready when all members are", api.ClusterStarting,
			func(l *life) { l.seeAll(ready) },
			[]string{"SetPhase ready: ", "Emit Ready: 2 members ready||"},
		},
		{
			"it is not ready while one has not got the files that name all", api.ClusterStarting,
			func(l *life) { l.seeAll(ready); l.Observed["a1"] = Observation{Phase: ready} },
			[]string{"WakeAt 5m0s"},
		},
		{
			"a member that fails is let go of and noted for replacement", api.ClusterStarting,
			func(l *life) { l.see("a0", ready, ""); l.see("a1", failed, "crun: no space left on device") },
			[]string{
				"Lose [a1]: crun: no space left on device",
				"Emit MemberLost: c-1 on n2 is lost (crun: no space left on device)|c-1|n2",
				"SetPhase starting: c-1 on n2 is lost (crun: no space left on device)",
				"WakeAt 5m0s",
			},
		},
		{
			"a replacement is asked for, not where it failed", api.ClusterStarting,
			func(l *life) {
				l.see("a0", ready, "")
				l.lose(1, 1, "x")
				l.Record.Message = "c-1 on n2 is lost (x)"
			},
			[]string{"WakeAt 10m0s", "Need heal c-1@1(for a1, not n2, attempt 1)", "WakeAt 5m0s"},
		},
		{
			"so is the member of a node that is down", api.ClusterStarting,
			func(l *life) { l.see("a0", ready, ""); l.node("n2", api.NodeDown) },
			[]string{
				"Lose [a1]: node n2 is down", "Emit MemberLost: c-1 on n2 is lost (node n2 is down)|c-1|n2",
				"SetPhase starting: c-1 on n2 is lost (node n2 is down)", "WakeAt 5m0s",
			},
		},
		{
			"the second attempt that fails is followed by a third", api.ClusterStarting,
			func(l *life) {
				l.see("a0", ready, "")
				l.see("a1", failed, "x")
				l.Assignments[1].Attempt = 1
			},
			[]string{"Lose [a1]: x", "Emit MemberLost: c-1 on n2 is lost (x)|c-1|n2", "SetPhase starting: c-1 on n2 is lost (x)", "WakeAt 5m0s"},
		},
		{
			"a third attempt that may still succeed is waited for", api.ClusterStarting,
			func(l *life) {
				l.see("a0", ready, "")
				l.see("a1", starting, "")
				l.Assignments[1].Attempt = 2
			},
			[]string{"WakeAt 5m0s"},
		},
		{
			"who is lost at the deadline is named once", api.ClusterStarting,
			func(l *life) {
				l.see("a0", ready, "")
				l.see("a1", failed, "x")
				l.Now = t0.Add(5 * time.Minute)
			},
			[]string{
				"SetPhase failed: not ready within 5m0s: c-1 on n2 is lost (x)", "Emit Failed: not ready within 5m0s: c-1 on n2 is lost (x)||",
			},
		},
		{
			"the third is the last, and what is left stays to be looked at", api.ClusterStarting,
			func(l *life) {
				l.see("a0", failed, "y")
				l.see("a1", failed, "x")
				l.Assignments[1].Attempt = 2
			},
			[]string{
				"SetPhase failed: c-1 on n2 is lost (x), the last of 3 attempts", "Emit Failed: c-1 on n2 is lost (x), the last of 3 attempts||",
			},
		},
		{
			"it fails at the deadline, naming who is missing", api.ClusterStarting,
			func(l *life) {
				l.see("a0", starting, "")
				l.lose(1, 1, "x")
				l.Now = t0.Add(5 * time.Minute)
			},
			[]string{
				"WakeAt 10m0s",
				"SetPhase failed: not ready within 5m0s: c-1 on n2 is lost (x); c-0 on n1 is coming up",
				"Emit Failed: not ready within 5m0s: c-1 on n2 is lost (x); c-0 on n1 is coming up||",
			},
		},
		{
			"one that was made larger meanwhile does not fail for want of room: it scales once its first members are ready", api.ClusterStarting,
			func(l *life) { l.seeAll(ready); l.size(3); l.Now = t0.Add(5 * time.Minute) },
			[]string{"SetPhase scaling: resizing to 3 members", "Emit Scaling: resizing to 3 members||"},
		},
		{
			"it waits for its first members before it scales", api.ClusterStarting,
			func(l *life) { l.see("a0", ready, ""); l.size(3) },
			[]string{"Need scale c-2@2", "WakeAt 5m0s"},
		},
		{
			"members without files or without a place are named, too", api.ClusterStarting,
			func(l *life) {
				l.size(3)
				l.Observed["a0"] = Observation{Phase: ready}
				l.node("n2", api.NodeUnknown)
				l.Now = t0.Add(5 * time.Minute)
			},
			[]string{
				"SetPhase failed: not ready within 5m0s: c-0 on n1 has not received its new files; c-1 on n2 is unknown (node n2 is not reporting); c-2 is not placed yet",
				"Emit Failed: not ready within 5m0s: c-0 on n1 has not received its new files; c-1 on n2 is unknown (node n2 is not reporting); c-2 is not placed yet||",
			},
		},
		{
			"a new leader counts the deadline from its own start", api.ClusterStarting,
			func(l *life) { l.Now, l.LeaderSince = t0.Add(time.Hour), t0.Add(time.Hour) },
			[]string{"WakeAt 1h5m0s"},
		},
		{
			"it is not frozen before it was ready", api.ClusterStarting,
			func(l *life) { l.Intent.Paused = true; l.see("a0", ready, "") },
			[]string{"WakeAt 5m0s"},
		},
		{
			"a failed cluster stays failed, whatever its members do", api.ClusterFailed,
			func(l *life) { l.see("a0", ready, ""); l.see("a1", failed, ""); l.node("n1", api.NodeDown); l.size(5) },
			[]string{},
		},
	})
}
