package lifecycle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestHowAClusterIsDeletedAndCleaned(t *testing.T) {
	const ready = api.MemberReady
	released := []string{
		"Release [a0 a1]: the cluster is being deleted", "SetPhase deleting: stopping and cleaning 2 members",
		"Emit Deleting: stopping and cleaning 2 members||",
	}
	steps := []step{
		{"an intent that is gone counts as a delete", api.ClusterFailed, func(l *life) { l.Intent = nil }, released},
		{
			"what is released already is not released twice", api.ClusterDegraded, func(l *life) { l.lose(0, 1, "x"); l.deleteIt() },
			[]string{
				"Release [a1]: the cluster is being deleted", "SetPhase deleting: stopping and cleaning 2 members",
				"Emit Deleting: stopping and cleaning 2 members||",
			},
		},
		{
			"one that has lost all its members goes the same way", api.ClusterDegraded,
			func(l *life) {
				l.Assignments, l.Record.Chunks = nil, nil
				l.deleteIt()
			},
			[]string{"SetPhase deleting: stopping and cleaning 0 members", "Emit Deleting: stopping and cleaning 0 members||"},
		},
		{
			"of which nothing is left", api.ClusterDeleting,
			func(l *life) {
				l.Assignments, l.Record.Chunks = nil, nil
				l.deleteIt()
			},
			[]string{"Forget{}", "Emit Deleted: deleted; all nodes confirmed the cluster clean||"},
		},
		{
			"spares go with it, and are not cleaned", api.ClusterReady,
			func(l *life) { l.add("c-spare-0", "n3", NoRank).Spare = true; l.deleteIt() },
			append([]string{"Release [a0 a1 a2]: the cluster is being deleted"}, released[1:]...),
		},
		{"deleting waits until the clean deadline", api.ClusterDeleting, func(l *life) { l.deleting(); l.see("a0", api.MemberReleasing, "") }, []string{"WakeAt 10m0s"}},
		{
			"each has its own deadline", api.ClusterDeleting,
			func(l *life) {
				l.deleting()
				l.Assignments[0].ReleasedAt = t0.Add(-9 * time.Minute)
				l.node("n1", api.NodeDown)
			},
			[]string{
				"Quarantine{ID:a0 Reason:not clean within 10m0s: node n1 is down}", "Emit Quarantined: not clean within 10m0s: node n1 is down|c-0|n1",
				"WakeAt 10m0s",
			},
		},
		{
			"the next of several deadlines is the earliest", api.ClusterDeleting,
			func(l *life) {
				l.deleting()
				l.Assignments[1].ReleasedAt = t0.Add(-time.Minute)
			},
			[]string{"WakeAt 9m0s"},
		},
		{
			"what is said to be clean is confirmed", api.ClusterDeleting,
			func(l *life) { l.deleting(); l.prove("a0") },
			[]string{"ConfirmClean{IDs:[a0]}", "WakeAt 10m0s"},
		},
		{
			"in every phase", api.ClusterReady,
			func(l *life) {
				l.add("c-1", "n3", 1)
				l.release("a1")
				l.seeAll(ready)
				l.prove("a1")
			},
			[]string{"ConfirmClean{IDs:[a1]}"},
		},
		{
			"so is quarantine", api.ClusterFailed, func(l *life) { l.release("a1"); l.Now = t0.Add(10 * time.Minute) },
			[]string{
				"Quarantine{ID:a1 Reason:not clean within 10m0s: the agent of node n2 gave no reason}",
				"Emit Quarantined: not clean within 10m0s: the agent of node n2 gave no reason|c-1|n2",
			},
		},
		{
			"nothing is confirmed twice, and nothing that is not releasing", api.ClusterReady,
			func(l *life) {
				l.add("c-9", "n3", 9)
				l.release("a2")
				l.seeAll(ready)
				l.Assignments[2].Clean = true
				l.prove("a0", "a1", "a2")
				l.Now = t0.Add(time.Hour)
			},
			[]string{},
		},
		{
			"the last confirmation is committed before the cluster is forgotten", api.ClusterDeleting,
			func(l *life) {
				l.deleting()
				l.Assignments[0].Clean = true
				l.prove("a0", "a1")
			},
			[]string{"ConfirmClean{IDs:[a1]}"},
		},
		{
			"the proof of another node is none", api.ClusterDeleting,
			func(l *life) { l.deleting(); l.proveBy("a0", api.ByAgents("n2")[0]) },
			[]string{"WakeAt 10m0s"},
		},
		{
			"one proof of two is noted", api.ClusterDeleting,
			func(l *life) { l.deleting(); l.owe("a0", fabric); l.prove("a0") },
			[]string{"NoteProofs{Proofs:[a0 by the agent of n1]}", "WakeAt 10m0s"},
		},
		{
			"one proof of two that is noted already", api.ClusterDeleting,
			func(l *life) {
				l.deleting()
				l.owe("a0", fabric)
				l.prove("a0")
				l.Assignments[0].Proved = api.ByAgents("n1")
			},
			[]string{"WakeAt 10m0s"},
		},
		{
			"the last of two proofs completes one that was noted", api.ClusterDeleting,
			func(l *life) {
				l.deleting()
				l.owe("a0", fabric)
				l.Assignments[0].Proved = api.ByAgents("n1")
				l.proveBy("a0", fabric)
			},
			[]string{"ConfirmClean{IDs:[a0]}", "WakeAt 10m0s"},
		},
		{
			"a quarantine names who owes its proof", api.ClusterFailed,
			func(l *life) {
				l.release("a1")
				l.owe("a1", fabric)
				l.prove("a1")
				l.Assignments[1].Proved = api.ByAgents("n2")
				l.Now = t0.Add(10 * time.Minute)
			},
			[]string{
				"Quarantine{ID:a1 Reason:not clean within 10m0s: the fabric of ib0 has not proved the assignment clean}",
				"Emit Quarantined: not clean within 10m0s: the fabric of ib0 has not proved the assignment clean|c-1|n2",
			},
		},
		{
			"what nobody must prove clean is never clean", api.ClusterFailed,
			func(l *life) {
				l.release("a1")
				l.Assignments[1].CleanBy = nil
				l.Now = t0.Add(10 * time.Minute)
			},
			[]string{
				"Quarantine{ID:a1 Reason:not clean within 10m0s: the assignment names no prover}",
				"Emit Quarantined: not clean within 10m0s: the assignment names no prover|c-1|n2",
			},
		},
		{
			"parts are released with their members", api.ClusterReady,
			func(l *life) { l.deleteIt(); l.part("a0", "n3") },
			[]string{
				"Release [a0 a1]: the cluster is being deleted",
				"SetPhase deleting: stopping and cleaning 2 members", "Emit Deleting: stopping and cleaning 2 members||",
			},
		},
		{
			"a cluster of which all is clean is forgotten", api.ClusterDeleting,
			func(l *life) { l.deleting(); l.Assignments[0].Clean, l.Assignments[1].Clean = true, true },
			[]string{"Forget{}", "Emit Deleted: deleted; all nodes confirmed the cluster clean||"},
		},
		{
			"what passed to quarantine is not said to be gone", api.ClusterDeleting,
			func(l *life) {
				l.deleting()
				l.Assignments[0].Clean, l.Assignments[1].Clean = true, true
				l.Quarantined = []*api.Quarantine{{Assignment: *l.Assignments[1].Assignment}}
			},
			[]string{"Forget{}", "Emit Deleted: deleted, but not confirmed clean: c-1 on n2; quarantined until their nodes confirm it||"},
		},
		{
			"of many in quarantine the first are named", api.ClusterDeleting,
			func(l *life) {
				l.deleting()
				l.Assignments[0].Clean, l.Assignments[1].Clean = true, true
				for range 1000 {
					l.Quarantined = append(l.Quarantined, &api.Quarantine{Assignment: *l.Assignments[1].Assignment})
				}
			},
			[]string{
				"Forget{}", "Emit Deleted: deleted, but not confirmed clean: c-1 on n2, c-1 on n2, c-1 on n2, c-1 on n2, c-1 on n2, 995 more; " +
					"quarantined until their nodes confirm it||",
			},
		},
		{
			"one that was expired is forgotten like one that was deleted", api.ClusterDeleting,
			func(l *life) { l.release("a0", "a1"); l.Assignments[0].Clean, l.Assignments[1].Clean = true, true },
			[]string{"Forget{}", "Emit Deleted: deleted; all nodes confirmed the cluster clean||"},
		},
		{
			"what is held by a deleting cluster is released, whoever gave it", api.ClusterDeleting,
			func(l *life) { l.deleteIt(); l.release("a0") },
			[]string{"WakeAt 10m0s", "Release [a1]: the cluster is being deleted"},
		},
		{
			"what is not clean at the deadline is quarantined, with the reason", api.ClusterDeleting,
			func(l *life) {
				l.deleting()
				l.see("a0", api.MemberReleasing, "umount: target is busy")
				l.node("n2", api.NodeUnknown)
				l.Now = t0.Add(10 * time.Minute)
			},
			[]string{
				"Quarantine{ID:a0 Reason:not clean within 10m0s: umount: target is busy}",
				"Emit Quarantined: not clean within 10m0s: umount: target is busy|c-0|n1",
				"Quarantine{ID:a1 Reason:not clean within 10m0s: node n2 is not reporting}",
				"Emit Quarantined: not clean within 10m0s: node n2 is not reporting|c-1|n2",
			},
		},
		{
			"a new leader gives cleaning its time anew", api.ClusterDeleting,
			func(l *life) { l.deleting(); l.Now, l.LeaderSince = t0.Add(time.Hour), t0.Add(time.Hour) },
			[]string{"WakeAt 1h10m0s"},
		},
	}
	for _, phase := range []api.ClusterPhase{
		api.ClusterStarting, api.ClusterReady, api.ClusterScaling, api.ClusterDegraded, api.ClusterPausing, api.ClusterPaused, api.ClusterResuming,
		api.ClusterFailed,
	} {
		steps = append(steps, step{"a delete releases all that is held in phase " + string(phase), phase, (*life).deleteIt, released})
	}
	checkSteps(t, steps)
}

func TestNoCommitTakesMoreQuarantinesThanItHasRoomFor(t *testing.T) {
	l := newLife(api.ClusterDeleting)
	for i := range 100 {
		l.add(fmt.Sprint("x-", i), "n1", i)
	}
	for i := range l.Assignments {
		l.release(l.Assignments[i].ID)
	}
	l.Now = t0.Add(time.Hour)
	n := 0
	for _, op := range PlanCluster(l.ClusterInput) {
		if _, ok := op.(Quarantine); ok {
			n++
		}
	}
	if n != quarantinesPerLook {
		t.Errorf("of 102 that are late: want %d quarantined in one look, got %d", quarantinesPerLook, n)
	}
}

func TestAMessageNamesAFewMembersAndCountsTheRest(t *testing.T) {
	l := newLife(api.ClusterReady)
	l.size(7)
	for i := 2; i < 7; i++ {
		l.add(fmt.Sprint("c-", i), "n1", i)
	}
	ops := PlanCluster(l.ClusterInput)
	want := "c-0 on n1 is coming up; c-1 on n2 is coming up; c-2 on n1 is coming up; c-3 on n1 is coming up; and 3 more"
	if got := ops[0].(SetPhase).Message; got != want {
		t.Errorf("want %q\ngot  %q", want, got)
	}
}

func TestALongPowerProblemIsNotedOnce(t *testing.T) {
	problem := strings.Repeat("the BMC answers with a page ", 100)
	in := MachineInput{
		Record: &api.MachineRecord{Name: "n1", Phase: api.MachineOff, PowerMessage: api.ShortMessage(problem)},
		Power:  PowerSeen{Known: true, Problem: problem}, Now: t0,
	}
	if ops := in.note(); len(ops) != 0 {
		t.Errorf("noted again: %+v", ops)
	}
	in.Power.Problem = "another"
	if ops := in.note(); len(ops) != 1 {
		t.Errorf("another problem: %+v", ops)
	}
}
