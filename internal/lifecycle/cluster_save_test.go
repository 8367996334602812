package lifecycle

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

// save asks for the cluster to be saved; restore for it to go on.
func (l *life) save()    { l.Intent.Saved, l.Intent.SaveAskedAt = true, &t0 }
func (l *life) restore() { l.Intent.Saved, l.Intent.SaveAskedAt = false, &t0 }

// gaveUp notes that what was asked for was given up.
func (l *life) gaveUp() { l.Record.GaveUp = &api.GaveUp{AskedAt: t0, Reason: "the disk is full"} }

// shelve cuts members down as a commit does.
func (l *life) shelve(ids ...string) {
	for _, a := range l.Assignments {
		for _, id := range ids {
			if a.ID == id {
				a.Saved = true
				l.see(id, api.MemberSaved, "")
			}
		}
	}
}

// succeed adds a place where a member is to go on, a2 and so on.
func (l *life) succeed(of string) {
	for _, a := range l.Assignments {
		if a.ID == of {
			next := l.add(a.Member, a.Node, NoRank)
			next.Of, next.From = of, of
			return
		}
	}
}

func (l *life) fail(id, failure string) {
	o := l.Observed[id]
	o.Failure = failure
	l.Observed[id] = o
}

func TestHowAClusterIsSaved(t *testing.T) {
	const ready, saved, failed = api.MemberReady, api.MemberSaved, api.MemberFailed
	checkSteps(t, []step{
		{
			"a save begins", api.ClusterReady, func(l *life) { l.save(); l.seeAll(ready) },
			[]string{"SetPhase saving: saving 2 members", "Emit Saving: saving 2 members||"},
		},
		{
			"not before one that is being woken runs", api.ClusterResuming, func(l *life) {
				l.save()
				l.see("a0", api.MemberPaused, "")
				l.see("a1", ready, "")
				l.Now = t0.Add(59 * time.Second)
			},
			[]string{"WakeAt 1m0s"},
		},
		{
			"a save that was given up does not begin again, and is told of", api.ClusterReady, func(l *life) { l.save(); l.gaveUp(); l.seeAll(ready) },
			[]string{"SetPhase ready: it could not be saved: the disk is full"},
		},
		{
			"it waits until all are saved", api.ClusterSaving, func(l *life) { l.save(); l.see("a0", saved, ""); l.see("a1", ready, "") },
			[]string{"WakeAt 15m0s"},
		},
		{
			"a member that is being saved is not lost for being unhealthy", api.ClusterSaving,
			func(l *life) { l.save(); l.seeAll(api.MemberUnhealthy); l.Now = t0.Add(15*time.Minute - 1) },
			[]string{"WakeAt 15m0s"},
		},
		{
			"when all are saved, one commit shelves the members and releases the spare", api.ClusterSaving,
			func(l *life) {
				l.save()
				l.Intent.Spec.Groups[0].Spares = 1
				l.add("c-spare-0", "n3", NoRank).Spare = true
				l.seeAll(saved)
			},
			[]string{"Shelve{IDs:[a0 a1]}", "Release [a2]: the cluster is saved", "SetPhase saved: 2 members saved", "Emit Saved: 2 members saved||"},
		},
		{
			"the end of a save also releases a spare on a drained node", api.ClusterSaving,
			func(l *life) {
				l.save()
				l.Intent.Spec.Groups[0].Spares = 1
				l.add("c-spare-0", "n3", NoRank).Spare = true
				l.Nodes["n3"] = NodeState{Phase: api.NodeReady, Reported: true, Drained: true}
				l.seeAll(saved)
			},
			[]string{"Shelve{IDs:[a0 a1]}", "Release [a2]: the cluster is saved", "SetPhase saved: 2 members saved", "Emit Saved: 2 members saved||"},
		},
		{
			"the end of a save also releases a spare that is no longer wanted", api.ClusterSaving,
			func(l *life) {
				l.save()
				l.add("c-spare-0", "n3", NoRank).Spare = true
				l.seeAll(saved)
			},
			[]string{"Shelve{IDs:[a0 a1]}", "Release [a2]: the cluster is saved", "SetPhase saved: 2 members saved", "Emit Saved: 2 members saved||"},
		},
		{
			"one that can't be saved turns all back", api.ClusterSaving,
			func(l *life) {
				l.save()
				l.see("a0", saved, "")
				l.see("a1", ready, "")
				l.fail("a1", "the disk is full")
			},
			[]string{
				"GiveUp{Reason:c-1 on n2: the disk is full}", "SetPhase restoring: it could not be saved: c-1 on n2: the disk is full",
				"Emit SaveFailed: c-1 on n2: the disk is full||",
			},
		},
		{
			"it goes on only when no node tells of the failure any more", api.ClusterRestoring,
			func(l *life) { l.save(); l.gaveUp(); l.seeAll(ready); l.fail("a1", "the disk is full") },
			[]string{},
		},
		{
			"so does the deadline", api.ClusterSaving,
			func(l *life) {
				l.save()
				l.see("a0", saved, "")
				l.see("a1", ready, "")
				l.Now = t0.Add(15 * time.Minute)
			},
			[]string{
				"GiveUp{Reason:not saved within 15m0s: c-1 on n2 is ready}",
				"SetPhase restoring: it could not be saved: not saved within 15m0s: c-1 on n2 is ready",
				"Emit SaveFailed: not saved within 15m0s: c-1 on n2 is ready||",
			},
		},
		{
			"a save that undoes a restore is not given up", api.ClusterSaving,
			func(l *life) {
				l.restore()
				l.gaveUp()
				l.shelve("a0")
				l.see("a1", ready, "")
				l.fail("a1", "the disk is full")
			},
			[]string{"WakeAt 15m0s"},
		},
		{
			"a member that ends meanwhile is lost, and not waited for", api.ClusterSaving,
			func(l *life) { l.save(); l.see("a0", saved, ""); l.see("a1", failed, "x") },
			[]string{
				"Lose [a1]: x", "Emit MemberLost: c-1 on n2 is lost (x)|c-1|n2", "Shelve{IDs:[a0]}", "SetPhase saved: 1 member saved",
				"Emit Saved: 1 member saved||",
			},
		},
		{
			"its user may change their mind", api.ClusterSaving, func(l *life) { l.restore(); l.see("a0", saved, ""); l.see("a1", ready, "") },
			[]string{"SetPhase restoring: restoring 2 members", "Emit Restoring: restoring 2 members||"},
		},
		{"a saved cluster rests", api.ClusterSaved, func(l *life) { l.save(); l.shelve("a0", "a1") }, []string{}},
		{
			"what is saved on a node that is down is not lost", api.ClusterSaved, func(l *life) {
				l.save()
				l.shelve("a0", "a1")
				l.Nodes["n2"] = NodeState{Phase: api.NodeDown}
			}, []string{},
		},
		{
			"a saved member whose node was removed from the inventory is lost", api.ClusterSaved, func(l *life) {
				l.save()
				l.shelve("a0", "a1")
				l.Nodes["n2"] = NodeState{Phase: api.NodeDown, Removed: true}
			},
			[]string{
				"Lose [a1]: node n2 was removed from the inventory",
				"Emit MemberLost: c-1 on n2 is lost (node n2 was removed from the inventory)|c-1|n2",
			},
		},
		{
			"what is no longer on its node is", api.ClusterSaved, func(l *life) { l.save(); l.shelve("a0", "a1"); l.see("a1", failed, "gone") },
			[]string{"Lose [a1]: gone", "Emit MemberLost: c-1 on n2 is lost (gone)|c-1|n2"},
		},
	})
}

func TestHowAClusterIsRestored(t *testing.T) {
	const ready, saved, starting, failed = api.MemberReady, api.MemberSaved, api.MemberStarting, api.MemberFailed
	checkSteps(t, []step{
		{
			"a restore begins", api.ClusterSaved, func(l *life) { l.restore(); l.shelve("a0", "a1") },
			[]string{"SetPhase restoring: restoring 2 members", "Emit Restoring: restoring 2 members||"},
		},
		{
			"a restore waits for a node that is down with a state, and says what to do", api.ClusterRestoring,
			func(l *life) { l.restore(); l.shelve("a0", "a1"); l.node("n2", api.NodeDown) },
			[]string{"SetPhase restoring: the saved memory of c-1 on n2 is on a node that is down; bring the node back, or delete the cluster"},
		},
		{
			"a restore does not wait for a node that was removed from the inventory", api.ClusterRestoring,
			func(l *life) {
				l.restore()
				l.shelve("a0", "a1")
				l.Nodes["n2"] = NodeState{Phase: api.NodeDown, Removed: true}
			},
			[]string{
				"Lose [a1]: node n2 was removed from the inventory",
				"Emit MemberLost: c-1 on n2 is lost (node n2 was removed from the inventory)|c-1|n2",
				"Need restore c-0@-1(from a0, on n1)",
			},
		},
		{
			"all ask for room together, where they are saved", api.ClusterRestoring, func(l *life) { l.restore(); l.shelve("a0", "a1") },
			[]string{"Need restore c-0@-1(from a0, on n1) c-1@-1(from a1, on n2)"},
		},
		{
			"not as long as an earlier attempt has an address of theirs", api.ClusterRestoring,
			func(l *life) {
				l.restore()
				l.shelve("a0", "a1")
				for _, a := range l.Assignments {
					a.Ports = []api.PortClaim{{Network: "u", MAC: a.Member}}
				}
				l.succeed("a1")
				l.Assignments[2].Ports = l.Assignments[1].Ports
				l.release("a2")
			},
			[]string{"WakeAt 10m0s"},
		},
		{
			"after a save that failed, those that were saved give back what they hold first", api.ClusterRestoring,
			func(l *life) { l.save(); l.gaveUp(); l.see("a0", saved, ""); l.see("a1", ready, "") },
			[]string{"Shelve{IDs:[a0]}"},
		},
		{
			"nobody takes over before it runs", api.ClusterRestoring,
			func(l *life) {
				l.restore()
				l.shelve("a0", "a1")
				l.succeed("a0")
				l.succeed("a1")
				l.see("a2", api.MemberPreparing, "")
			},
			[]string{"WakeAt 5m0s"},
		},
		{
			"who runs takes over, whatever is left of what it was", api.ClusterRestoring,
			func(l *life) {
				l.restore()
				l.shelve("a0", "a1")
				l.succeed("a0")
				l.succeed("a1")
				l.see("a2", starting, "")
				l.see("a0", failed, "gone")
			},
			[]string{"TakeOver{IDs:[a2]}", "WakeAt 5m0s"},
		},
		{
			"it is ready when all are", api.ClusterRestoring, func(l *life) { l.restore(); l.seeAll(ready) },
			[]string{"SetPhase ready: ", "Emit Ready: 2 members ready||"},
		},
		{
			"and not before", api.ClusterRestoring, func(l *life) { l.restore(); l.see("a0", ready, ""); l.see("a1", starting, "") },
			[]string{"WakeAt 5m0s"},
		},
		{
			"one whose save ended after it was taken back goes on, too", api.ClusterReady,
			func(l *life) { l.restore(); l.see("a0", ready, ""); l.see("a1", saved, "") },
			[]string{"SetPhase restoring: restoring 2 members", "Emit Restoring: restoring 2 members||"},
		},
		{
			"also after a pause, in which it stands still like others", api.ClusterPausing,
			func(l *life) {
				l.restore()
				l.Intent.Paused = true
				l.see("a0", api.MemberPaused, "")
				l.see("a1", saved, "")
			},
			[]string{"SetPhase paused: 2 members frozen", "Emit Paused: 2 members frozen||"},
		},
		{
			"one that can't go on turns all back, once the others run or fail", api.ClusterRestoring,
			func(l *life) {
				l.restore()
				l.shelve("a0", "a1")
				l.succeed("a0")
				l.succeed("a1")
				l.see("a3", failed, "another QEMU")
			},
			[]string{
				"Withdraw{IDs:[a3]}", "GiveUp{Reason:c-1 on n2: it can't go on from disk: another QEMU}",
				"SetPhase restoring: it could not be restored: c-1 on n2: it can't go on from disk: another QEMU",
				"Emit RestoreFailed: c-1 on n2: it can't go on from disk: another QEMU||",
			},
		},
		{
			"one that can't go on turns all back at once if no other is about to run", api.ClusterRestoring,
			func(l *life) {
				l.restore()
				l.shelve("a0", "a1")
				l.succeed("a1")
				l.see("a2", failed, "another QEMU")
			},
			[]string{
				"Withdraw{IDs:[a2]}", "GiveUp{Reason:c-1 on n2: it can't go on from disk: another QEMU}",
				"SetPhase saving: it could not be restored: c-1 on n2: it can't go on from disk: another QEMU",
				"Emit RestoreFailed: c-1 on n2: it can't go on from disk: another QEMU||",
			},
		},
		{
			"others that are about to run are waited for", api.ClusterRestoring,
			func(l *life) { l.restore(); l.gaveUp(); l.shelve("a0", "a1"); l.succeed("a0") },
			[]string{"WakeAt 5m0s"},
		},
		{
			"then all are saved again", api.ClusterRestoring,
			func(l *life) {
				l.restore()
				l.gaveUp()
				l.shelve("a0", "a1")
				l.succeed("a0")
				l.see("a2", failed, "x")
			},
			[]string{"Withdraw{IDs:[a2]}", "SetPhase saving: saving 2 members"},
		},
		{
			"who may run on a node that is down is waited for", api.ClusterRestoring,
			func(l *life) {
				l.restore()
				l.shelve("a0", "a1")
				l.succeed("a0")
				l.succeed("a1")
				l.Nodes["n1"], l.Nodes["n2"] = NodeState{Phase: api.NodeDown}, NodeState{Phase: api.NodeDown}
				l.Now = t0.Add(time.Hour)
			},
			[]string{},
		},
		{
			"one that can neither be saved nor restored is lost", api.ClusterRestoring,
			func(l *life) {
				l.save()
				l.gaveUp()
				l.shelve("a1")
				l.see("a0", ready, "")
				l.succeed("a1")
				l.see("a2", failed, "x")
			},
			[]string{
				"Withdraw{IDs:[a2]}", "Lose [a1]: it can't go on from disk: x",
				"Emit MemberLost: c-1 on n2 is lost (it can't go on from disk: x)|c-1|n2",
			},
		},
	})
}

func TestAPlannedMemberOnANodeIsSavedAndNeverStartedInsteadOfRestored(t *testing.T) {
	saved := &DesiredMember{Generation: 1, Save: true}
	next := &DesiredMember{Generation: 2, Restore: true}
	tests := []struct {
		name string
		in   MemberInput
		want []string
	}{
		{"a running one is saved", MemberInput{Desired: saved, Host: HostRunning, Ready: true}, []string{"Report ready", "Save{}"}},
		{"one on disk stays there", MemberInput{Desired: saved, Host: HostSaved}, []string{"Report saved"}},
		{
			"one on disk that holds functions is not saved before they are released",
			MemberInput{Desired: saved, Host: HostSaved, Holds: true},
			[]string{"Report unknown: it is saved, and its functions of adapters are being released", "Save{}"},
		},
		{
			"what keeps its functions is reported, and tried again",
			MemberInput{Desired: &DesiredMember{Generation: 1}, Host: HostSaved, Holds: true, Attempts: Attempts{}.Fail("the adapter is quarantined", t0)},
			[]string{"Report unknown: it is saved, and its functions of adapters are not released yet: the adapter is quarantined", "WakeAt 1s"},
		},
		{"also when nobody asks for that", MemberInput{Desired: &DesiredMember{Generation: 1}, Host: HostSaved}, []string{"Report saved"}},
		{"one whose state is gone is not started", MemberInput{Desired: saved, Host: HostAbsent}, []string{"Report failed: its saved memory is no longer on its node"}},
		{"nor cleaned up and started", MemberInput{Desired: saved, Host: HostPrepared}, []string{"Report failed: its saved memory is no longer on its node"}},
		{"a successor goes on", MemberInput{Desired: next, Host: HostAbsent}, []string{"Report preparing", "Restore{}"}},
		{"and is cleaned up first when an attempt failed", MemberInput{Desired: next, Host: HostPrepared}, []string{"Report preparing", "Clean{}"}},
		{
			"one that was handed over is neither cleaned nor started",
			MemberInput{Desired: &DesiredMember{Generation: 1}, Host: HostHandedOver},
			[]string{"Report unknown: it was handed over, and may run on another node"},
		},
		{"a saved one that is released is cleaned", MemberInput{Desired: &DesiredMember{Generation: 1, Release: true}, Host: HostSaved}, []string{"Report releasing", "Clean{}"}},
	}
	for _, tt := range tests {
		tt.in.Current, tt.in.Now = true, t0
		if diff := cmp.Diff(tt.want, sketch(PlanMember(tt.in))); diff != "" {
			t.Errorf("%s: operations (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestAJobGoesOnInTheMemberThatTookOver(t *testing.T) {
	l := newLife(api.ClusterReady)
	next := l.add("c-0", "n1", 0)
	next.From = "a0"
	l.release("a0")
	plan := PlanJob(JobInput{Job: api.Job{ID: "j", Phase: api.JobRunning, MemberID: "a0"}, Cluster: &l.ClusterInput, Now: t0})
	if plan.Next.MemberID != "a2" || plan.Next.Phase != api.JobRunning {
		t.Errorf("the job is %s in member %s, want it to run in a2", plan.Next.Phase, plan.Next.MemberID)
	}
}
