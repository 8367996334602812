package lifecycle

import (
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestHowAClusterIsPausedAndResumed(t *testing.T) {
	const ready, frozen, failed = api.MemberReady, api.MemberPaused, api.MemberFailed
	pause := func(l *life) { l.Intent.Paused = true }
	checkSteps(t, []step{
		{
			"a pause freezes its members", api.ClusterReady, func(l *life) { pause(l); l.seeAll(ready) },
			[]string{"SetPhase pausing: freezing 2 members", "Emit Pausing: freezing 2 members||"},
		},
		{
			"also of one that is degraded", api.ClusterDegraded, func(l *life) { pause(l); l.see("a0", ready, ""); l.lose(1, 1, "x") },
			[]string{"WakeAt 10m0s", "SetPhase pausing: freezing 1 member", "Emit Pausing: freezing 1 member||"},
		},
		{
			"and of one that scales", api.ClusterScaling, func(l *life) { pause(l); l.size(5); l.seeAll(ready) },
			[]string{"SetPhase pausing: freezing 2 members", "Emit Pausing: freezing 2 members||"},
		},
		{
			"and of one that is being woken", api.ClusterResuming, func(l *life) { pause(l); l.seeAll(ready) },
			[]string{"SetPhase pausing: freezing 2 members", "Emit Pausing: freezing 2 members||"},
		},
		{
			"it waits until all are frozen", api.ClusterPausing, func(l *life) {
				pause(l)
				l.see("a0", frozen, "")
				l.see("a1", ready, "")
				l.Now = t0.Add(59 * time.Second)
			},
			[]string{"WakeAt 1m0s"},
		},
		{
			"also for a surplus member", api.ClusterPausing, func(l *life) {
				pause(l)
				l.size(1)
				l.see("a0", frozen, "")
				l.see("a1", ready, "")
				l.Now = t0.Add(59 * time.Second)
			},
			[]string{"WakeAt 1m0s"},
		},
		{
			"and says who is not after the deadline", api.ClusterPausing,
			func(l *life) {
				pause(l)
				l.see("a0", frozen, "")
				l.see("a1", ready, "the freezer does not answer")
				l.Now = t0.Add(61 * time.Second)
			},
			[]string{"SetPhase pausing: not frozen within 1m0s: c-1 on n2 is ready (the freezer does not answer)"},
		},
		{
			"then it is paused", api.ClusterPausing, func(l *life) { pause(l); l.seeAll(frozen) },
			[]string{"SetPhase paused: 2 members frozen", "Emit Paused: 2 members frozen||"},
		},
		{
			"a member that ends meanwhile is noted and not waited for", api.ClusterPausing,
			func(l *life) { pause(l); l.seeAll(frozen); l.see("a1", failed, "x") },
			[]string{
				"Lose [a1]: x", "Emit MemberLost: c-1 on n2 is lost (x)|c-1|n2", "SetPhase paused: 1 member frozen", "Emit Paused: 1 member frozen||",
			},
		},
		{
			"who is lost while it is paused is not replaced", api.ClusterPaused,
			func(l *life) {
				pause(l)
				l.seeAll(frozen)
				l.lose(1, 1, "x")
				l.size(5)
				l.Intent.Spec.Groups[0].Spares = 1
			},
			[]string{"WakeAt 10m0s"},
		},
		{
			"only noted", api.ClusterPaused, func(l *life) { pause(l); l.seeAll(frozen); l.node("n2", api.NodeDown) },
			[]string{"Lose [a1]: node n2 is down", "Emit MemberLost: c-1 on n2 is lost (node n2 is down)|c-1|n2"},
		},
		{
			"a spare on a node that is down waits, too", api.ClusterPaused,
			func(l *life) {
				pause(l)
				l.seeAll(frozen)
				l.Intent.Spec.Groups[0].Spares = 1
				l.add("c-spare-0", "n3", NoRank).Spare = true
				l.node("n3", api.NodeDown)
			},
			[]string{},
		},
		{
			"a frozen member is not unhealthy for want of an answer", api.ClusterPaused, func(l *life) { pause(l); l.seeAll(api.MemberUnhealthy) },
			[]string{},
		},
		{
			"nobody is let go of while it is paused", api.ClusterPaused, func(l *life) { pause(l); l.seeAll(frozen); l.size(1) },
			[]string{},
		},
		{
			"a resume wakes it", api.ClusterPaused, func(l *life) { l.seeAll(frozen) },
			[]string{"SetPhase resuming: waking 2 members", "Emit Resuming: waking 2 members||"},
		},
		{
			"also one that is not frozen yet", api.ClusterPausing, func(l *life) { l.seeAll(ready) },
			[]string{"SetPhase resuming: waking 2 members", "Emit Resuming: waking 2 members||"},
		},
		{
			"it waits for those still frozen", api.ClusterResuming,
			func(l *life) { l.see("a0", ready, ""); l.see("a1", frozen, ""); l.Now = t0.Add(10 * time.Second) },
			[]string{"WakeAt 1m0s"},
		},
		{
			"and for those not heard of", api.ClusterResuming, func(l *life) { l.seeAll(ready); l.node("n2", api.NodeUnknown) },
			[]string{},
		},
		{
			"who can't be woken is replaced", api.ClusterResuming, func(l *life) { l.see("a0", ready, ""); l.see("a1", frozen, "no cgroup") },
			[]string{
				"Lose [a1]: still frozen after 1m0s: no cgroup", "Emit MemberLost: c-1 on n2 is lost (still frozen after 1m0s: no cgroup)|c-1|n2",
				"SetPhase degraded: c-1 on n2 is lost (still frozen after 1m0s: no cgroup)",
				"Emit Degraded: c-1 on n2 is lost (still frozen after 1m0s: no cgroup)||",
			},
		},
		{
			"then it is ready", api.ClusterResuming, func(l *life) { l.seeAll(ready) },
			[]string{"SetPhase ready: ", "Emit Ready: 2 members ready||"},
		},
		{
			"or degraded, when someone was lost meanwhile", api.ClusterResuming, func(l *life) { l.seeAll(ready); l.lose(1, 1, "x") },
			[]string{
				"WakeAt 10m0s", "SetPhase degraded: c-1 on n2 is lost (x)", "Emit Degraded: c-1 on n2 is lost (x)||",
				"Need heal c-1@1(for a1, not n2, attempt 1)",
			},
		},
		{
			"or scaling, when it was to grow", api.ClusterResuming, func(l *life) { l.seeAll(ready); l.size(3) },
			[]string{
				"SetPhase scaling: resizing to 3 members", "Emit Scaling: resizing to 3 members||", "Need scale c-2@2",
			},
		},
	})
}

func TestHowAClusterOfWholeMachinesIsPausedAndResumed(t *testing.T) {
	const ready, off, starting, preparing = api.MemberReady, api.MemberPaused, api.MemberStarting, api.MemberPreparing
	files := func(ids ...string) (all []api.MemberFiles) {
		for i, id := range ids {
			all = append(all, api.MemberFiles{Member: memberName("c", i), Assignment: id, SavedFiles: api.SavedFiles{Digest: "sha256:" + id}})
		}
		return all
	}
	whole := func(l *life, ids ...string) {
		for _, a := range l.Assignments {
			if len(ids) == 0 || slices.Contains(ids, a.ID) {
				a.CleanBy = []api.Prover{{By: api.ExecutorProvisioner, At: a.Node}}
			}
		}
	}
	pausing := func(l *life) {
		whole(l)
		l.Intent.Paused, l.Intent.PausedFiles, l.Record.Files = true, files("a0", "a1"), files("a0", "a1")
	}
	resuming := func(l *life) { whole(l); l.Record.Files = files("a0", "a1") }
	kept := "KeepFiles{Files:[{Member:c-0 Assignment:a0 SavedFiles:{Digest:sha256:a0 Bytes:0} SavedAt:0001-01-01 00:00:00 +0000 UTC} " +
		"{Member:c-1 Assignment:a1 SavedFiles:{Digest:sha256:a1 Bytes:0} SavedAt:0001-01-01 00:00:00 +0000 UTC}]}"
	const unsaved = "it could not be paused: member c-1 was replaced before its files were saved; resume the cluster, and pause it again"
	checkSteps(t, []step{
		{
			"its machines go off, with their files noted in the same commit", api.ClusterReady,
			func(l *life) {
				whole(l)
				l.seeAll(ready)
				l.Intent.Paused, l.Intent.PausedFiles = true, files("a0", "a1")
			},
			[]string{kept, "SetPhase pausing: powering off 2 machines", "Emit Pausing: powering off 2 machines||"},
		},
		{
			"others are frozen", api.ClusterReady,
			func(l *life) {
				whole(l, "a0")
				l.seeAll(ready)
				l.Intent.Paused, l.Intent.PausedFiles = true, files("a0", "a1")
			},
			[]string{kept, "SetPhase pausing: freezing 1 member and powering off 1 machine", "Emit Pausing: freezing 1 member and powering off 1 machine||"},
		},
		{
			"while a member has not been saved as it is, none goes off", api.ClusterReady,
			func(l *life) {
				whole(l)
				l.seeAll(ready)
				l.Intent.Paused, l.Intent.PausedFiles = true, files("a0", "before")
			},
			[]string{"SetPhase ready: " + unsaved},
		},
		{
			"it waits until all are off", api.ClusterPausing,
			func(l *life) {
				pausing(l)
				l.see("a0", off, "")
				l.see("a1", starting, "its machine is powering off")
				l.Now = t0.Add(59 * time.Second)
			},
			[]string{"WakeAt 1m0s"},
		},
		{
			"then it is paused", api.ClusterPausing, func(l *life) { pausing(l); l.seeAll(off) },
			[]string{"SetPhase paused: 2 machines off", "Emit Paused: 2 machines off||"},
		},
		{
			"a machine that was on meanwhile is lost", api.ClusterPaused, func(l *life) { pausing(l); l.seeAll(off); l.see("a1", api.MemberFailed, "its machine failed") },
			[]string{"Lose [a1]: its machine failed", "Emit MemberLost: c-1 on n2 is lost (its machine failed)|c-1|n2"},
		},
		{
			"a resume waits for machines that boot", api.ClusterResuming,
			func(l *life) { resuming(l); l.see("a0", ready, ""); l.see("a1", preparing, "its machine boots") },
			[]string{"WakeAt 40m0s"},
		},
		{
			"one that does not is replaced at once", api.ClusterResuming,
			func(l *life) {
				resuming(l)
				l.see("a0", preparing, "its machine boots")
				l.lose(1, 1, "x")
				l.Now = t0.Add(time.Minute)
			},
			[]string{"WakeAt 10m0s", "Need heal c-1@1(for a1, not n2, attempt 1)", "WakeAt 40m0s"},
		},
		{
			"the files are kept until all are there", api.ClusterResuming, func(l *life) { resuming(l); l.seeAll(ready) },
			[]string{"SetPhase ready: ", "Emit Ready: 2 members ready||"},
		},
		{
			"and no longer", api.ClusterReady, func(l *life) { resuming(l); l.seeAll(ready) },
			[]string{"KeepFiles{Files:[]}"},
		},
		{
			"a member that waits for a machine gets its files, too", api.ClusterDegraded, func(l *life) { resuming(l); l.see("a0", ready, ""); l.lose(1, 1, "x"); l.Now = t0.Add(time.Second) },
			[]string{
				"WakeAt 10m0s", "SetPhase degraded: c-1 on n2 is lost (x)", "Need heal c-1@1(for a1, not n2, attempt 1)",
			},
		},
	})
}

func TestFilesOfAPauseAreThoseOfTheMemberByName(t *testing.T) {
	record := &api.ClusterRecord{Phase: api.ClusterPaused, Files: []api.MemberFiles{{Member: "c-0", Assignment: "a0"}, {Member: "c-1", Assignment: "a1"}}}
	if f := FilesOf(record, "c-1"); f == nil || f.Assignment != "a1" {
		t.Errorf("files of c-1: %+v", f)
	}
	if f := FilesOf(record, "c-2"); f != nil {
		t.Errorf("files of a member without any: %+v", f)
	}
	for name, test := range map[string]struct {
		phase api.ClusterPhase
		a     api.Assignment
		want  bool
	}{
		"of a paused cluster":       {api.ClusterPaused, api.Assignment{ID: "a0", Member: "c-0"}, true},
		"of one that pauses":        {api.ClusterPausing, api.Assignment{ID: "a0", Member: "c-0"}, true},
		"of one that resumes":       {api.ClusterResuming, api.Assignment{ID: "a0", Member: "c-0"}, false},
		"that came after the save":  {api.ClusterPausing, api.Assignment{ID: "a2", Member: "c-0"}, false},
		"without files":             {api.ClusterPausing, api.Assignment{ID: "a3", Member: "c-3"}, false},
		"amid a snapshot of others": {api.ClusterSnapshotting, api.Assignment{ID: "a0", Member: "c-0"}, false},
	} {
		record.Phase = test.phase
		if got := OffInPause(record, &test.a); got != test.want {
			t.Errorf("the machine of a member %s is to be off: %v, want %v", name, got, test.want)
		}
	}
	record.Phase, record.ExpiredAt = api.ClusterResuming, &t0
	if !OffInPause(record, &api.Assignment{ID: "a0", Member: "c-0"}) {
		t.Error("a machine of a cluster whose time limit has passed boots once more")
	}
}

func TestHowATimeLimitEnds(t *testing.T) {
	const ready = api.MemberReady
	expired := func(l *life, ago time.Duration) {
		at := l.Now.Add(-ago)
		l.Record.ExpiredAt = &at
		l.limit(time.Second)
	}
	checkSteps(t, []step{
		{"a warning is due at a tenth of a short limit", api.ClusterReady, func(l *life) { l.seeAll(ready); l.limit(20 * time.Minute) }, []string{"WakeAt 18m0s"}},
		{"and five minutes before the end of a long one", api.ClusterReady, func(l *life) { l.seeAll(ready); l.limit(2 * time.Hour) }, []string{"WakeAt 1h55m0s"}},
		{
			"then its user is warned", api.ClusterReady, func(l *life) { l.seeAll(ready); l.limit(time.Hour); l.Now = t0.Add(55 * time.Minute) },
			[]string{
				"Warn 1h0m0s", "Emit Expiring: the time limit of 1h ends at 2030-01-01T01:00:00Z; the cluster and all files in its shared home are then deleted: copy the files, or extend the limit||", "WakeAt 1h0m0s",
			},
		},
		{
			"once", api.ClusterReady,
			func(l *life) {
				at := t0.Add(time.Hour)
				l.seeAll(ready)
				l.limit(time.Hour)
				l.Record.WarnedFor, l.Now = &at, t0.Add(56*time.Minute)
			},
			[]string{"WakeAt 1h0m0s"},
		},
		{
			"and again before another end", api.ClusterReady,
			func(l *life) {
				at := t0.Add(time.Hour)
				l.seeAll(ready)
				l.limit(2 * time.Hour)
				l.Record.WarnedFor, l.Now = &at, t0.Add(115*time.Minute)
			},
			[]string{
				"Warn 2h0m0s", "Emit Expiring: the time limit of 2h ends at 2030-01-01T02:00:00Z; the cluster and all files in its shared home are then deleted: copy the files, or extend the limit||", "WakeAt 2h0m0s",
			},
		},
		{
			"at the end jobs are asked to end, and nothing else is planned", api.ClusterDegraded,
			func(l *life) { l.lose(1, 1, "x"); l.seeAll(ready); l.limit(time.Minute) },
			[]string{
				"WakeAt 10m0s", "Expire{}", "Emit Expired: the time limit of 1m has passed; running jobs have 30s to finish||",
				"SetPhase degraded: the time limit of 1m has passed; running jobs have 30s to finish",
			},
		},
		{
			"a paused cluster is woken for it", api.ClusterPaused,
			func(l *life) { l.Intent.Paused = true; l.seeAll(api.MemberPaused); l.limit(time.Minute) },
			[]string{
				"Expire{}", "Emit Expired: the time limit of 1m has passed; running jobs have 30s to finish||",
				"SetPhase resuming: the time limit of 1m has passed; running jobs have 30s to finish",
			},
		},
		{
			"in the grace nobody is replaced, added or frozen", api.ClusterReady,
			func(l *life) {
				expired(l, 29*time.Second)
				l.Intent.Paused = true
				l.see("a0", ready, "")
				l.see("a1", api.MemberFailed, "x")
				l.size(5)
			},
			[]string{"WakeAt 1m1s"},
		},
		{
			"after it all is released", api.ClusterResuming, func(l *life) { expired(l, 30*time.Second); l.seeAll(ready) },
			[]string{
				"Release [a0 a1]: the cluster is being deleted", "SetPhase deleting: the time limit has passed; stopping and cleaning 2 members",
				"Emit Deleting: the time limit has passed; stopping and cleaning 2 members||",
			},
		},
		{
			"or before it, when nobody is left", api.ClusterReady,
			func(l *life) { expired(l, time.Second); l.see("a0", api.MemberFailed, ""); l.node("n2", api.NodeDown) },
			[]string{
				"Release [a0 a1]: the cluster is being deleted", "SetPhase deleting: the time limit has passed; stopping and cleaning 2 members",
				"Emit Deleting: the time limit has passed; stopping and cleaning 2 members||",
			},
		},
		{
			"what is being cleaned and spares are nobody", api.ClusterDegraded,
			func(l *life) {
				expired(l, time.Second)
				l.see("a0", api.MemberFailed, "")
				l.lose(1, 1, "x")
				l.add("c-spare-0", "n3", NoRank).Spare = true
			},
			[]string{
				"WakeAt 10m0s", "Release [a0 a2]: the cluster is being deleted", "SetPhase deleting: the time limit has passed; stopping and cleaning 2 members",
				"Emit Deleting: the time limit has passed; stopping and cleaning 2 members||",
			},
		},
		{
			"a spare alone is nobody, too", api.ClusterDegraded,
			func(l *life) {
				expired(l, time.Second)
				l.Assignments = nil
				l.add("c-spare-0", "n3", NoRank).Spare = true
			},
			[]string{
				"Release [a0]: the cluster is being deleted", "SetPhase deleting: the time limit has passed; stopping and cleaning 0 members",
				"Emit Deleting: the time limit has passed; stopping and cleaning 0 members||",
			},
		},
		{
			"a failed cluster has its end, too", api.ClusterFailed, func(l *life) { l.limit(time.Minute) },
			[]string{
				"Expire{}", "Emit Expired: the time limit of 1m has passed; running jobs have 30s to finish||",
				"SetPhase failed: the time limit of 1m has passed; running jobs have 30s to finish",
			},
		},
		{
			"a new leader does not make it longer", api.ClusterReady, func(l *life) { l.seeAll(ready); l.limit(time.Minute); l.LeaderSince = l.Now },
			[]string{
				"Expire{}", "Emit Expired: the time limit of 1m has passed; running jobs have 30s to finish||",
				"SetPhase ready: the time limit of 1m has passed; running jobs have 30s to finish",
			},
		},
	})
}
