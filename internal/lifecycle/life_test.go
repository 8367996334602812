package lifecycle

import (
	"fmt"
	"slices"
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
		case Report:
			lines = append(lines, strings.TrimSuffix(fmt.Sprintf("Report %s: %s", op.Phase, op.Message), ": "))
		case Emit:
			lines = append(lines, fmt.Sprintf("Emit %s: %s", op.Reason, strings.Join([]string{op.Message, op.Member, op.Node}, "|")))
		case Need:
			lines = append(lines, "Need "+string(op.Kind)+sketchWanted(op.Members))
		case ReleaseServers:
			lines = append(lines, fmt.Sprintf("ReleaseServers %v", op.IDs))
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
			lines = append(lines, fmt.Sprintf("Hold %v network %t spares %v", ids, len(op.Networks) > 0, op.Spares))
		case ClaimVolumes:
			lines = append(lines, "ClaimVolumes "+op.Assignment+": "+joinedNames(op.Volumes, func(c api.VolumeClaim) string { return c.Name }))
		case VolumesClaimed:
			lines = append(lines, fmt.Sprintf("VolumesClaimed %s: %d", op.Assignment, op.Number))
		case NoteDetached:
			lines = append(lines, strings.TrimSpace("NoteDetached "+joinedNames(op.Detached, func(d api.VolumeDetach) string { return d.UID })))
		default:
			lines = append(lines, strings.TrimPrefix(fmt.Sprintf("%T%+v", op, op), "lifecycle."))
		}
	}
	return lines
}

func joinedNames[T any](all []T, name func(T) string) string {
	list := make([]string, len(all))
	for i := range all {
		list[i] = name(all[i])
	}
	return strings.Join(list, " ")
}

func sketchWanted(members []WantedMember) string {
	var b strings.Builder
	for _, m := range members {
		fmt.Fprintf(&b, " %s@%d", m.Member, m.Rank)
		if m.From != "" {
			fmt.Fprintf(&b, "(from %s, on %s)", m.From, m.On)
		}
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
	a := &api.Assignment{ID: fmt.Sprintf("a%d", len(l.Assignments)), Group: "c", Member: name, Node: node, CleanBy: api.ByAgents(node), Rank: rank, TakenAt: t0}
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

// prove is the word of the agent of its node that nothing is left of an assignment.
func (l *life) prove(ids ...string) {
	for _, a := range l.Assignments {
		if slices.Contains(ids, a.ID) {
			l.proveBy(a.ID, a.CleanBy[0])
		}
	}
}

// proveBy is the word of one who must prove an assignment clean.
func (l *life) proveBy(id string, p api.Prover) {
	o := l.Observed[id]
	o.Proved = append(o.Proved, p)
	l.Observed[id] = o
}

// fabric must prove some assignments clean besides their agents.
var fabric = api.Prover{By: api.ExecutorFabric, At: "ib0"}

// owe adds one who must prove an assignment clean.
func (l *life) owe(id string, p api.Prover) {
	for _, a := range l.Assignments {
		if a.ID == id {
			a.CleanBy = append(a.CleanBy, p)
		}
	}
}

// part adds what a member holds on another node.
func (l *life) part(of, node string) *api.Assignment {
	a := l.add("", node, NoRank)
	for _, m := range l.Assignments {
		if m.ID == of {
			a.Member, a.Of = m.Member, of
		}
	}
	return a
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
