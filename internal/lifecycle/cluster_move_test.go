package lifecycle

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// move asks for members to go on elsewhere, at t0.
func (l *life) move(change func(*api.MoveIntent), ids ...string) {
	l.machines()
	l.Intent.Move = &api.MoveIntent{AskedAt: t0, Members: ids}
	if change != nil {
		change(l.Intent.Move)
	}
}

// machines makes all members virtual machines.
func (l *life) machines() {
	l.Intent.Spec.Groups[0].Stack = api.StackVM
	for _, a := range l.Assignments {
		a.Stack = api.StackVM
	}
}

// under adds the place on another node that a member is to take while it runs, a2 and so on.
func (l *life) under(of, node string) *api.Assignment {
	l.succeed(of)
	next := l.Assignments[len(l.Assignments)-1].Assignment
	next.Node, next.Live = node, true
	return next
}

// ended notes that the move of a member ended.
func (l *life) ended(id, failed string) {
	l.Record.Moves = append(l.Record.Moves, api.MoveRecord{AskedAt: t0, Assignment: id, Failed: failed})
}

func TestHowMembersMoveWhileTheyRun(t *testing.T) {
	const ready, unknown, failed, preparing = api.MemberReady, api.MemberUnknown, api.MemberFailed, api.MemberPreparing
	offline := func(m *api.MoveIntent) { m.Offline = true }
	checkSteps(t, []step{
		{
			"one after the other asks for a place elsewhere", api.ClusterReady, func(l *life) { l.move(nil, "a0", "a1"); l.seeAll(ready) },
			[]string{"Need move c-0@-1(from a0, on )"},
		},
		{
			"or on the node that is named", api.ClusterReady,
			func(l *life) { l.move(func(m *api.MoveIntent) { m.To = "n3" }, "a1"); l.seeAll(ready) },
			[]string{"Need move c-1@-1(from a1, on n3)"},
		},
		{
			"what has moved, or won't, is not asked for again", api.ClusterReady,
			func(l *life) { l.move(nil, "a0", "a1"); l.seeAll(ready); l.ended("a0", "no room") },
			[]string{"Need move c-1@-1(from a1, on )"},
		},
		{
			"who was replaced meanwhile does not move", api.ClusterReady, func(l *life) { l.move(nil, "a7"); l.seeAll(ready) },
			[]string{},
		},
		{
			"nobody does who is not ready", api.ClusterDegraded,
			func(l *life) {
				l.move(nil, "a1")
				l.see("a0", ready, "")
				l.see("a1", api.MemberUnhealthy, "ill")
				l.Now = t0.Add(time.Second)
			},
			[]string{"SetPhase degraded: c-1 on n2 is unhealthy (ill)", "WakeAt 10s"},
		},
		{
			"nor before an earlier place of the member is clean", api.ClusterReady,
			func(l *life) {
				l.move(nil, "a0")
				l.seeAll(ready)
				next := l.under("a0", "n3")
				l.Assignments[0].Ports, next.Ports = []api.PortClaim{{Network: "n"}}, []api.PortClaim{{Network: "n"}}
				l.release("a2")
			},
			[]string{"WakeAt 10m0s"},
		},
		{
			"the other node gets its time", api.ClusterReady, func(l *life) { l.move(nil, "a0"); l.seeAll(ready); l.under("a0", "n3"); l.see("a2", preparing, "") },
			[]string{"WakeAt 1h0m0s"},
		},
		{
			"a pause waits until who moves is there", api.ClusterReady,
			func(l *life) {
				l.move(nil, "a0")
				l.Intent.Paused = true
				l.seeAll(ready)
				l.under("a0", "n3")
				l.see("a2", preparing, "")
			},
			[]string{"WakeAt 1h0m0s"},
		},
		{
			"who runs there takes over", api.ClusterReady,
			func(l *life) {
				l.move(nil, "a0")
				l.see("a0", unknown, "")
				l.see("a1", ready, "")
				l.under("a0", "n3")
				l.see("a2", api.MemberStarting, "")
			},
			[]string{"MoveEnd{Assignment:a0 AskedAt:2030-01-01 00:00:00 +0000 UTC To:n3 Failed:}", "TakeOver{IDs:[a2]}", "Emit MemberMoved: c-0 moved from n1 to n3|c-0|n3"},
		},
		{
			"also when the member ended where it was, or its node fell silent", api.ClusterReady,
			func(l *life) {
				l.move(nil, "a0")
				l.see("a0", failed, "ended")
				l.node("n1", api.NodeDown)
				l.see("a1", ready, "")
				l.under("a0", "n3")
				l.see("a2", ready, "")
			},
			[]string{"MoveEnd{Assignment:a0 AskedAt:2030-01-01 00:00:00 +0000 UTC To:n3 Failed:}", "TakeOver{IDs:[a2]}", "Emit MemberMoved: c-0 moved from n1 to n3|c-0|n3"},
		},
		{
			"until the other node has spoken, an end here says nothing", api.ClusterReady,
			func(l *life) {
				l.move(nil, "a0")
				l.see("a0", failed, "ended")
				l.see("a1", ready, "")
				l.under("a0", "n3")
				l.see("a2", preparing, "")
			},
			[]string{"SetPhase degraded: c-0 on n1 is failed (ended)", "Emit Degraded: c-0 on n1 is failed (ended)||", "WakeAt 1h0m0s"},
		},
		{
			"who can't be taken in stays where it is", api.ClusterReady,
			func(l *life) {
				l.move(nil, "a0")
				l.seeAll(ready)
				l.under("a0", "n3")
				l.see("a2", failed, "its processor is another one")
			},
			[]string{
				"MoveEnd{Assignment:a0 AskedAt:2030-01-01 00:00:00 +0000 UTC To:n3 Failed:its processor is another one}",
				"Emit MoveFailed: c-0 stays on n1: n3: its processor is another one|c-0|n1", "Withdraw{IDs:[a2]}",
			},
		},
		{
			"a place whose node is not heard of is waited for", api.ClusterReady,
			func(l *life) { l.move(nil, "a0"); l.seeAll(ready); l.under("a0", "n3"); l.node("n3", api.NodeUnknown) },
			[]string{},
		},
		{
			"one whose node is down is withdrawn", api.ClusterReady,
			func(l *life) {
				l.move(nil, "a0")
				l.see("a0", unknown, "it was handed over")
				l.see("a1", ready, "")
				l.under("a0", "n3")
				l.node("n3", api.NodeDown)
			},
			[]string{
				"MoveEnd{Assignment:a0 AskedAt:2030-01-01 00:00:00 +0000 UTC To:n3 Failed:node n3 is down}",
				"Emit MoveFailed: c-0 stays on n1: n3: node n3 is down|c-0|n1", "Withdraw{IDs:[a2]}",
			},
		},
		{
			"what a move took is noted", api.ClusterReady,
			func(l *life) {
				l.move(nil, "a0")
				l.ended("a0", "")
				l.Assignments[0].Assignment.ID, l.Assignments[0].Assignment.From = "a9", "a0"
				l.seeAll(ready)
				o := l.Observed["a9"]
				o.Moved = &api.MoveReport{Bytes: 7}
				l.Observed["a9"] = o
			},
			[]string{"MoveReported{Assignment:a0 Report:{DowntimeSeconds:0 TotalSeconds:0 Bytes:7 Rounds:0}}"},
		},
		{
			"who has just arrived does not make its cluster degraded", api.ClusterReady,
			func(l *life) {
				l.machines()
				l.Assignments[0].From, l.Assignments[0].Live = "b0", true
				l.see("a0", api.MemberStarting, "")
				l.see("a1", ready, "")
				l.Now = t0.Add(29 * time.Second)
			},
			[]string{"WakeAt 30s"},
		},
		{
			"offline, a member is saved first", api.ClusterReady,
			func(l *life) { l.move(offline, "a0"); l.seeAll(ready); l.under("a0", "n3").Live = false },
			[]string{"WakeAt 15m0s"},
		},
		{
			"then it holds no cores any more, and goes on from disk", api.ClusterReady,
			func(l *life) {
				l.move(offline, "a0")
				l.see("a0", api.MemberSaved, "")
				l.see("a1", ready, "")
				l.under("a0", "n3").Live = false
			},
			[]string{"Shelve{IDs:[a0]}", "SetPhase restoring: c-0 resumes on n3"},
		},
		{
			"one that can't be saved stays", api.ClusterReady,
			func(l *life) {
				l.move(offline, "a0")
				l.seeAll(ready)
				l.fail("a0", "the disk is full")
				l.under("a0", "n3").Live = false
			},
			[]string{
				"MoveEnd{Assignment:a0 AskedAt:2030-01-01 00:00:00 +0000 UTC To:n3 Failed:it can't be saved: the disk is full}",
				"Emit MoveFailed: c-0 stays on n1: n3: it can't be saved: the disk is full|c-0|n1", "Withdraw{IDs:[a2]}",
			},
		},
		{
			"the word of a node that was not asked yet is not believed", api.ClusterReady,
			func(l *life) {
				l.move(offline, "a0")
				l.seeAll(ready)
				l.under("a0", "n3").Live = false
				l.see("a2", ready, "")
			},
			[]string{},
		},
		{
			"offline, it takes over as any restored one", api.ClusterRestoring,
			func(l *life) {
				l.move(offline, "a0")
				l.see("a1", ready, "")
				l.shelve("a0")
				l.under("a0", "n3").Live = false
				l.see("a2", ready, "")
			},
			[]string{"MoveEnd{Assignment:a0 AskedAt:2030-01-01 00:00:00 +0000 UTC To:n3 Failed:}", "Emit MemberMoved: c-0 moved from n1 to n3|c-0|n3", "TakeOver{IDs:[a2]}"},
		},
		{
			"a state that could not be carried goes on where it lies", api.ClusterRestoring,
			func(l *life) {
				l.move(offline, "a0")
				l.see("a1", ready, "")
				l.shelve("a0")
				l.under("a0", "n3").Live = false
				l.see("a2", failed, "its processor is another one")
			},
			[]string{
				"MoveEnd{Assignment:a0 AskedAt:2030-01-01 00:00:00 +0000 UTC To:n3 Failed:it can't go on from disk: its processor is another one}",
				"Emit MoveFailed: c-0 stays on n1: n3: it can't go on from disk: its processor is another one|c-0|n1", "Withdraw{IDs:[a2]}",
			},
		},
		{
			"members move off a drained node, and wait for room", api.ClusterReady,
			func(l *life) {
				l.machines()
				l.seeAll(ready)
				l.Nodes["n2"] = NodeState{Phase: api.NodeReady, Reported: true, Drained: true, DrainedAt: t0}
			},
			[]string{"Need move c-1@-1(from a1, on )"},
		},
		{
			"but for those that can't, or could not", api.ClusterReady,
			func(l *life) {
				l.machines()
				l.Intent.Spec.Groups = append(l.Intent.Spec.Groups, api.Group{Name: "k", Size: 1, Stack: api.StackContainer})
				l.size(1)
				l.Assignments[0].Group, l.Assignments[0].Member = "k", "k-0"
				l.Assignments[1].Member = "c-0"
				l.seeAll(ready)
				l.ended("a1", "its processor is another one")
				for _, n := range []string{"n1", "n2"} {
					l.Nodes[n] = NodeState{Phase: api.NodeReady, Reported: true, Drained: true, DrainedAt: t0}
				}
			},
			[]string{},
		},
	})
}

func TestAMoveWithoutRoomIsGivenUpUnlessItsNodeIsDrained(t *testing.T) {
	t.Parallel()
	wanted := WantedMember{Member: "c-0", From: "a0", Leaves: "n1", On: "n3", AskedAt: t0}
	patient := wanted
	patient.Patient = true
	ops := PlanRefused(nil, Answer{Kind: NeedMove, Members: []WantedMember{wanted, patient}, Reason: "node n3 has no room for it"}, t0)
	want := []ClusterOperation{
		MoveEnd{Assignment: "a0", AskedAt: t0, To: "n3", Failed: "node n3 has no room for it"},
		Emit{Reason: EventMoveFailed, Message: "c-0 stays on n1: node n3 has no room for it", Member: "c-0", Node: "n1"},
	}
	if len(ops) != 2 || ops[0] != want[0] || ops[1] != want[1] {
		t.Errorf("got %v, want %v", ops, want)
	}
	ops = PlanRefused(nil, Answer{Kind: NeedMove, Members: []WantedMember{wanted}, Undecided: true}, t0)
	if len(ops) != 1 || ops[0] != (WakeAt{Time: t0.Add(undecidedPause)}) {
		t.Errorf("while a node that may have room is not heard of: %v", ops)
	}
}
