package lifecycle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

var t0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// sketch writes one line an operation; times are told from t0.
func sketch[T any](ops []T) []string {
	lines := make([]string, 0, len(ops))
	for _, op := range ops {
		switch op := any(op).(type) {
		case WakeAt:
			lines = append(lines, "WakeAt "+op.Time.Sub(t0).String())
		case Warn:
			lines = append(lines, "Warn "+op.For.Sub(t0).String())
		case SetPhase:
			lines = append(lines, fmt.Sprintf("SetPhase %s: %s", op.To, op.Message))
		case SetNodePhase:
			lines = append(lines, fmt.Sprintf("SetNodePhase %s: %s", op.To, op.Message))
		case Report:
			lines = append(lines, strings.TrimSuffix(fmt.Sprintf("Report %s: %s", op.Phase, op.Message), ": "))
		case Emit:
			lines = append(lines, fmt.Sprintf("Emit %s: %s", op.Reason, strings.Join([]string{op.Message, op.Member, op.Node}, "|")))
		case Need:
			lines = append(lines, "Need "+string(op.Kind)+sketchWanted(op.Members))
		case Release:
			line := fmt.Sprintf("Release %v: %s", op.IDs, op.Reason)
			if op.Lost {
				line = "Lose " + strings.TrimPrefix(line, "Release ")
			}
			lines = append(lines, line)
		case Hold:
			ids := []string{}
			for _, a := range op.Assignments {
				ids = append(ids, a.ID)
			}
			lines = append(lines, fmt.Sprintf("Hold %v network %t spares %v", ids, op.Network != nil, op.Spares))
		default:
			lines = append(lines, strings.TrimPrefix(fmt.Sprintf("%T%+v", op, op), "lifecycle."))
		}
	}
	return lines
}

func sketchWanted(members []WantedMember) string {
	var b strings.Builder
	for _, m := range members {
		fmt.Fprintf(&b, " %s@%d", m.Member, m.Rank)
		if m.Replaces != "" {
			fmt.Fprintf(&b, "(for %s, not %s, attempt %d)", m.Replaces, m.Avoid, m.Attempt)
		}
	}
	return b.String()
}

// life is a cluster of two members: c-0 on n1 (assignment a0), c-1 on n2 (a1), placed at t0. It is planned a minute later.
type life struct{ ClusterInput }

func newLife(phase api.ClusterPhase) *life {
	at := t0
	l := &life{ClusterInput{
		Intent: &api.ClusterIntent{Name: "c", Spec: api.ClusterSpec{Groups: []api.Group{{Name: "c", Size: 2}}}},
		Record: &api.ClusterRecord{
			Name: "c", Generation: 1, Phase: phase, ChangedAt: t0, PlacedAt: &at, Chunks: []api.ChunkRef{{ID: "k1", Count: 1}, {ID: "k2", Count: 1}},
		},
		Observed: map[string]Observation{},
		Nodes:    map[string]NodeState{"n1": {Phase: api.NodeReady, Reported: true}, "n2": {Phase: api.NodeReady, Reported: true}, "n3": {Phase: api.NodeReady, Reported: true}},
		Now:      t0.Add(time.Minute), LeaderSince: t0.Add(-time.Hour), Deadlines: DefaultDeadlines(),
	}}
	if phase != api.ClusterStarting {
		l.Record.ReadyAt = &at
	}
	l.add("c-0", "n1", 0)
	l.add("c-1", "n2", 1)
	return l
}

// add adds a member as the n-th assignment, "an".
func (l *life) add(name, node string, rank int) *api.Assignment {
	a := &api.Assignment{ID: fmt.Sprintf("a%d", len(l.Assignments)), Group: "c", Member: name, Node: node, Rank: rank, TakenAt: t0}
	l.Assignments = append(l.Assignments, ClusterAssignment{Assignment: a})
	return a
}

func (l *life) deleteIt() {
	at := t0
	l.Intent.DeleteRequestedAt = &at
}

// release turns these to releasing, or all.
func (l *life) release(ids ...string) {
	for i := range l.Assignments {
		for _, id := range ids {
			if l.Assignments[i].ID == id {
				l.Assignments[i].Releasing, l.Assignments[i].ReleasedAt = true, t0
			}
		}
	}
}

func (l *life) deleting() {
	l.deleteIt()
	l.release("a0", "a1")
}

func (l *life) see(id string, phase api.MemberPhase, message string) {
	l.Observed[id] = Observation{Phase: phase, Message: message, Current: true, Since: t0}
}

func (l *life) seeAll(phase api.MemberPhase) {
	for _, a := range l.Assignments {
		l.see(a.ID, phase, "")
	}
}

func (l *life) node(name string, phase api.NodePhase) {
	l.Nodes[name] = NodeState{Phase: phase, Reported: phase == api.NodeReady}
}

// size sets how many members are wanted, but for those removed by name.
func (l *life) size(n int, removed ...string) {
	l.Intent.Spec.Groups[0].Size, l.Intent.Removed = n, removed
}

// lose notes the member of an assignment as lost since t0, and releases it.
func (l *life) lose(i, attempt int, reason string) {
	a := l.Assignments[i]
	l.release(a.ID)
	l.Record.Lost = append(l.Record.Lost, api.LostMember{
		Group: a.Group, Member: a.Member, Rank: a.Rank, Assignment: a.ID, Node: a.Node, Attempt: attempt, Reason: reason, Since: t0,
	})
}

func (l *life) limit(d time.Duration) { l.Intent.Spec.TimeLimit = api.Duration(d) }

// step is what is planned in one situation.
type step struct {
	name  string
	phase api.ClusterPhase
	given func(*life)
	want  []string
}

func checkSteps(t *testing.T, steps []step) {
	t.Helper()
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			l := newLife(s.phase)
			s.given(l)
			ops := PlanCluster(l.ClusterInput)
			if diff := cmp.Diff(s.want, sketch(ops)); diff != "" {
				t.Errorf("a %s cluster: operations (-want +got):\n%s", s.phase, diff)
			}
			for _, op := range ops {
				if op, ok := op.(SetPhase); ok && op.To != s.phase {
					if err := Clusters().Check(s.phase, op.To); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

func TestWhatHappensToAClusterWithoutAPlace(t *testing.T) {
	fresh := func(l *life) { l.Record, l.Assignments = nil, nil }
	empty := func(l *life) { l.Record.Chunks, l.Assignments, l.Record.PlacedAt = nil, nil, nil }
	gone := []string{"Forget{}", "Emit Deleted: deleted; it held nothing||"}
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
			[]string{"SetPhase scaling: its size changes to 3 members", "Emit Scaling: its size changes to 3 members||"},
		},
		{
			"it waits for its first members before it scales", api.ClusterStarting,
			func(l *life) { l.see("a0", ready, ""); l.size(3) },
			[]string{"Need scale c-2@2", "WakeAt 5m0s"},
		},
		{
			"who has no files yet, or no place, is named, too", api.ClusterStarting,
			func(l *life) {
				l.size(3)
				l.Observed["a0"] = Observation{Phase: ready}
				l.node("n2", api.NodeUnknown)
				l.Now = t0.Add(5 * time.Minute)
			},
			[]string{
				"SetPhase failed: not ready within 5m0s: c-0 on n1 has not got its new files; c-1 on n2 is unknown (node n2 is not heard of); c-2 has no place",
				"Emit Failed: not ready within 5m0s: c-0 on n1 has not got its new files; c-1 on n2 is unknown (node n2 is not heard of); c-2 has no place||",
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
			"one of which no more is known than that it ended is, too", api.ClusterDegraded,
			func(l *life) {
				l.seeAll(ready)
				l.see("a0", failed, "")
				l.Record.Message = "c-0 on n1 is lost (it ended)"
			},
			[]string{"Lose [a0]: it ended", "Emit MemberLost: c-0 on n1 is lost (it ended)|c-0|n1"},
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

func TestHowAClusterChangesItsSize(t *testing.T) {
	const ready, starting, failed = api.MemberReady, api.MemberStarting, api.MemberFailed
	checkSteps(t, []step{
		{
			"new members are asked for together, with the next names and ranks", api.ClusterReady,
			func(l *life) { l.seeAll(ready); l.size(4) },
			[]string{
				"SetPhase scaling: its size changes to 4 members", "Emit Scaling: its size changes to 4 members||", "Need scale c-2@2 c-3@3",
			},
		},
		{
			"while it waits for room nothing is said again", api.ClusterScaling,
			func(l *life) { l.seeAll(ready); l.size(4); l.Record.Message = "its size changes to 4 members" },
			[]string{"Need scale c-2@2 c-3@3"},
		},
		{
			"names and ranks that are free are used first", api.ClusterScaling,
			func(l *life) {
				l.size(4)
				l.Assignments[1].Member, l.Assignments[1].Rank = "c-3", 3
				l.seeAll(ready)
				l.Record.Message = "its size changes to 4 members"
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
				l.Record.Message = "its size changes to 3 members"
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
			[]string{"SetPhase scaling: its size changes to 3 members", "Emit Scaling: its size changes to 3 members||", "WakeAt 5m50s"},
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
			[]string{"SetPhase scaling: its size changes to 3 members", "Emit Scaling: its size changes to 3 members||", "Need scale c-2@2"},
		},
		{
			"a ready one scales though a node is not heard of", api.ClusterReady,
			func(l *life) {
				l.seeAll(ready)
				l.size(3)
				l.node("n2", api.NodeUnknown)
			},
			[]string{"SetPhase scaling: its size changes to 3 members", "Emit Scaling: its size changes to 3 members||", "Need scale c-2@2"},
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
				"Release [a3 a2]: not wanted any more", "Emit Released: released 2 members: c-3; c-2||",
				"SetPhase scaling: its size changes to 2 members", "Emit Scaling: its size changes to 2 members||",
			},
		},
		{
			"members taken out by name go, others keep their names and ranks", api.ClusterReady,
			func(l *life) { l.add("c-2", "n3", 2); l.seeAll(ready); l.size(2, "c-1") },
			[]string{
				"Release [a1]: not wanted any more", "Emit Released: released 1 member: c-1||",
				"SetPhase scaling: its size changes to 2 members", "Emit Scaling: its size changes to 2 members||",
			},
		},
		{
			"a surplus member that failed is not replaced", api.ClusterScaling,
			func(l *life) {
				l.size(1)
				l.seeAll(ready)
				l.see("a1", failed, "x")
				l.Record.Message = "its size changes to 1 member"
			},
			[]string{"Release [a1]: not wanted any more", "Emit Released: released 1 member: c-1||"},
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
				"Release [a0]: not wanted any more", "Emit Released: released 1 member: c-0||", "Need scale c-2@2", "WakeAt 5m0s",
			},
		},
	})
}

func TestHowSparesAreHeld(t *testing.T) {
	spares := func(l *life, n int) { l.Intent.Spec.Groups[0].Spares = n; l.seeAll(api.MemberReady) }
	spare := func(l *life, i int, node string) {
		l.add(fmt.Sprintf("c-spare-%d", i), node, SpareRank).Spare = true
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
			[]string{"Release [a2]: not wanted any more"},
		},
		{
			"one on a drained node is let go, so that the node becomes empty", api.ClusterReady, func(l *life) {
				spares(l, 1)
				spare(l, 0, "n3")
				l.Nodes["n3"] = NodeState{Phase: api.NodeReady, Reported: true, Drained: true}
			},
			[]string{"Release [a2]: not wanted any more", "Need spare c-spare-0@-1"},
		},
		{
			"room on a node that is down is given up, and asked for elsewhere", api.ClusterReady,
			func(l *life) { spares(l, 1); spare(l, 0, "n3"); l.node("n3", api.NodeDown) },
			[]string{"Release [a2]: not wanted any more", "Need spare c-spare-0@-1"},
		},
	})
}

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
			"also for one that is not wanted any more", api.ClusterPausing, func(l *life) {
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
				l.add("c-spare-0", "n3", SpareRank).Spare = true
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
				"SetPhase scaling: its size changes to 3 members", "Emit Scaling: its size changes to 3 members||", "Need scale c-2@2",
			},
		},
	})
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
				"Warn 1h0m0s", "Emit Expiring: its time limit of 1h ends at 2030-01-01T01:00:00Z; 'extend' makes it longer||", "WakeAt 1h0m0s",
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
				"Warn 2h0m0s", "Emit Expiring: its time limit of 2h ends at 2030-01-01T02:00:00Z; 'extend' makes it longer||", "WakeAt 2h0m0s",
			},
		},
		{
			"at the end jobs are asked to end, and nothing else is planned", api.ClusterDegraded,
			func(l *life) { l.lose(1, 1, "x"); l.seeAll(ready); l.limit(time.Minute) },
			[]string{
				"WakeAt 10m0s", "Expire{}", "Emit Expired: its time limit of 1m has passed; jobs have 30s to end||",
				"SetPhase degraded: its time limit of 1m has passed; jobs have 30s to end",
			},
		},
		{
			"a paused cluster is woken for it", api.ClusterPaused,
			func(l *life) { l.Intent.Paused = true; l.seeAll(api.MemberPaused); l.limit(time.Minute) },
			[]string{
				"Expire{}", "Emit Expired: its time limit of 1m has passed; jobs have 30s to end||",
				"SetPhase resuming: its time limit of 1m has passed; jobs have 30s to end",
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
				"Release [a0 a1]: the cluster is deleted", "SetPhase deleting: its time limit has passed; stopping and cleaning 2 members",
				"Emit Deleting: its time limit has passed; stopping and cleaning 2 members||",
			},
		},
		{
			"or before it, when nobody is left", api.ClusterReady,
			func(l *life) { expired(l, time.Second); l.see("a0", api.MemberFailed, ""); l.node("n2", api.NodeDown) },
			[]string{
				"Release [a0 a1]: the cluster is deleted", "SetPhase deleting: its time limit has passed; stopping and cleaning 2 members",
				"Emit Deleting: its time limit has passed; stopping and cleaning 2 members||",
			},
		},
		{
			"what is being cleaned and spares are nobody", api.ClusterDegraded,
			func(l *life) {
				expired(l, time.Second)
				l.see("a0", api.MemberFailed, "")
				l.lose(1, 1, "x")
				l.add("c-spare-0", "n3", SpareRank).Spare = true
			},
			[]string{
				"WakeAt 10m0s", "Release [a0 a2]: the cluster is deleted", "SetPhase deleting: its time limit has passed; stopping and cleaning 2 members",
				"Emit Deleting: its time limit has passed; stopping and cleaning 2 members||",
			},
		},
		{
			"a spare alone is nobody, too", api.ClusterDegraded,
			func(l *life) {
				expired(l, time.Second)
				l.Assignments = nil
				l.add("c-spare-0", "n3", SpareRank).Spare = true
			},
			[]string{
				"Release [a0]: the cluster is deleted", "SetPhase deleting: its time limit has passed; stopping and cleaning 0 members",
				"Emit Deleting: its time limit has passed; stopping and cleaning 0 members||",
			},
		},
		{
			"a failed cluster has its end, too", api.ClusterFailed, func(l *life) { l.limit(time.Minute) },
			[]string{
				"Expire{}", "Emit Expired: its time limit of 1m has passed; jobs have 30s to end||",
				"SetPhase failed: its time limit of 1m has passed; jobs have 30s to end",
			},
		},
		{
			"a new leader does not make it longer", api.ClusterReady, func(l *life) { l.seeAll(ready); l.limit(time.Minute); l.LeaderSince = l.Now },
			[]string{
				"Expire{}", "Emit Expired: its time limit of 1m has passed; jobs have 30s to end||",
				"SetPhase ready: its time limit of 1m has passed; jobs have 30s to end",
			},
		},
	})
}

func TestHowAClusterIsDeletedAndCleaned(t *testing.T) {
	const ready = api.MemberReady
	released := []string{
		"Release [a0 a1]: the cluster is deleted", "SetPhase deleting: stopping and cleaning 2 members",
		"Emit Deleting: stopping and cleaning 2 members||",
	}
	steps := []step{
		{"an intent that is gone counts as a delete", api.ClusterFailed, func(l *life) { l.Intent = nil }, released},
		{
			"what is released already is not released twice", api.ClusterDegraded, func(l *life) { l.lose(0, 1, "x"); l.deleteIt() },
			[]string{
				"Release [a1]: the cluster is deleted", "SetPhase deleting: stopping and cleaning 2 members",
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
			[]string{"Forget{}", "Emit Deleted: deleted; nothing is left of it||"},
		},
		{
			"spares go with it, and are not cleaned", api.ClusterReady,
			func(l *life) { l.add("c-spare-0", "n3", SpareRank).Spare = true; l.deleteIt() },
			append([]string{"Release [a0 a1 a2]: the cluster is deleted"}, released[1:]...),
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
			func(l *life) { l.deleting(); l.Observed["a0"] = Observation{Clean: true} },
			[]string{"ConfirmClean{IDs:[a0]}", "WakeAt 10m0s"},
		},
		{
			"in every phase", api.ClusterReady,
			func(l *life) {
				l.add("c-1", "n3", 1)
				l.release("a1")
				l.seeAll(ready)
				l.Observed["a1"] = Observation{Clean: true}
			},
			[]string{"ConfirmClean{IDs:[a1]}"},
		},
		{
			"so is quarantine", api.ClusterFailed, func(l *life) { l.release("a1"); l.Now = t0.Add(10 * time.Minute) },
			[]string{
				"Quarantine{ID:a1 Reason:not clean within 10m0s: the agent of node n2 does not say why}",
				"Emit Quarantined: not clean within 10m0s: the agent of node n2 does not say why|c-1|n2",
			},
		},
		{
			"nothing is confirmed twice, and nothing that is not releasing", api.ClusterReady,
			func(l *life) {
				l.add("c-9", "n3", 9)
				l.release("a2")
				l.seeAll(ready)
				l.Assignments[2].Clean = true
				for id, o := range l.Observed {
					o.Clean = true
					l.Observed[id] = o
				}
				l.Now = t0.Add(time.Hour)
			},
			[]string{},
		},
		{
			"the last confirmation is committed before the cluster is forgotten", api.ClusterDeleting,
			func(l *life) {
				l.deleting()
				l.Assignments[0].Clean = true
				l.Observed["a0"], l.Observed["a1"] = Observation{Clean: true}, Observation{Clean: true}
			},
			[]string{"ConfirmClean{IDs:[a1]}"},
		},
		{
			"a cluster of which all is clean is forgotten", api.ClusterDeleting,
			func(l *life) { l.deleting(); l.Assignments[0].Clean, l.Assignments[1].Clean = true, true },
			[]string{"Forget{}", "Emit Deleted: deleted; nothing is left of it||"},
		},
		{
			"one that was expired is forgotten like one that was deleted", api.ClusterDeleting,
			func(l *life) { l.release("a0", "a1"); l.Assignments[0].Clean, l.Assignments[1].Clean = true, true },
			[]string{"Forget{}", "Emit Deleted: deleted; nothing is left of it||"},
		},
		{
			"what is held by a deleting cluster is released, whoever gave it", api.ClusterDeleting,
			func(l *life) { l.deleteIt(); l.release("a0") },
			[]string{"WakeAt 10m0s", "Release [a1]: the cluster is deleted"},
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
				"Quarantine{ID:a1 Reason:not clean within 10m0s: node n2 is not heard of}",
				"Emit Quarantined: not clean within 10m0s: node n2 is not heard of|c-1|n2",
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
