package lifecycle

import (
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// asks makes the cluster ask for volumes, which all lie on the node of a0 and a1.
func (l *life) asks(all ...api.VolumeAttachment) {
	for i := range l.Assignments {
		l.Assignments[i].Node = "n1"
	}
	l.Intent.Spec.Groups[0].Stack = api.StackContainer
	l.Intent.Spec.Volumes, l.Volumes = all, nil
	for _, a := range all {
		l.Volumes = append(l.Volumes, api.VolumeClaim{UID: "u" + a.Name, Name: a.Name, Path: a.MountPath(), ReadOnly: a.ReadOnly, Node: "n1"})
	}
}

// has gives a member claims and the number of the last change.
func (l *life) has(id string, number int64, claims ...api.VolumeClaim) {
	for _, a := range l.Assignments {
		if a.ID == id {
			a.Volumes, a.VolumesNumber = claims, number
		}
	}
}

// reports lets a member's node report the number of its volumes.
func (l *life) reports(id string, number int64) {
	l.see(id, api.MemberReady, "")
	o := l.Observed[id]
	o.Volumes = number
	l.Observed[id] = o
}

func volume(name string) api.VolumeAttachment { return api.VolumeAttachment{Name: name} }

func claim(name string, number int64, detaching bool) api.VolumeClaim {
	return api.VolumeClaim{UID: "u" + name, Name: name, Path: "/volumes/" + name, Node: "n1", Number: number, Detaching: detaching}
}

// claims are the claims that a plan gives a member; nil: it gives none.
func claimsOf(ops []ClusterOperation, id string) []api.VolumeClaim {
	for _, op := range ops {
		if op, ok := op.(ClaimVolumes); ok && op.Assignment == id {
			return op.Volumes
		}
	}
	return nil
}

func TestWhatMembersClaimOfTheirClustersVolumes(t *testing.T) {
	for name, c := range map[string]struct {
		asked, has, want []api.VolumeClaim
		number           int64
	}{
		"a volume that was attached":                      {[]api.VolumeClaim{claim("a", 0, false), claim("b", 0, false)}, []api.VolumeClaim{claim("a", 0, false)}, []api.VolumeClaim{claim("a", 0, false), claim("b", 3, false)}, 2},
		"a volume that was detached stays claimed":        {nil, []api.VolumeClaim{claim("a", 0, false)}, []api.VolumeClaim{claim("a", 3, true)}, 2},
		"a volume that is wanted again after all":         {[]api.VolumeClaim{claim("a", 0, false)}, []api.VolumeClaim{claim("a", 2, true)}, []api.VolumeClaim{claim("a", 3, false)}, 2},
		"a volume that is on its way is not decided anew": {[]api.VolumeClaim{claim("a", 0, false)}, []api.VolumeClaim{claim("a", 2, false), claim("b", 2, true)}, nil, 2},
		"another path is claimed only once the member has let go": {
			[]api.VolumeClaim{{UID: "ua", Name: "a", Path: "/ref", Node: "n1"}}, []api.VolumeClaim{claim("a", 0, false)}, []api.VolumeClaim{claim("a", 3, true)}, 2,
		},
		"a path is claimed only once the volume there is gone": {
			[]api.VolumeClaim{{UID: "ub", Name: "b", Path: "/volumes/a/below", Node: "n1"}}, []api.VolumeClaim{claim("a", 2, true)}, nil, 2,
		},
		"a volume on another node is claimed": {
			[]api.VolumeClaim{{UID: "ub", Name: "b", Path: "/b", Node: "n2"}}, nil, []api.VolumeClaim{{UID: "ub", Name: "b", Path: "/b", Node: "n2", Number: 1}}, 0,
		},
		"a home stays as it is": {nil, []api.VolumeClaim{{UID: "uh", Name: "h", Path: "/home", Node: "n1"}}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(api.ClusterReady)
			l.asks()
			for _, a := range c.asked {
				l.Intent.Spec.Volumes = append(l.Intent.Spec.Volumes, api.VolumeAttachment{Name: a.Name, Path: a.Path, ReadOnly: a.ReadOnly})
			}
			l.Volumes = c.asked
			l.seeAll(api.MemberReady)
			l.has("a0", c.number, c.has...)
			ops := PlanCluster(l.ClusterInput)
			if got := claimsOf(ops, "a0"); !slices.Equal(got, c.want) {
				t.Errorf("it claims %+v, want %+v; the plan is %+v", got, c.want, ops)
			}
		})
	}
}

func TestHowVolumesOfRunningMembersChange(t *testing.T) {
	checkSteps(t, []step{
		{
			"every member claims a volume that was attached", api.ClusterReady,
			func(l *life) { l.asks(volume("a")); l.seeAll(api.MemberReady) },
			[]string{
				"ClaimVolumes a0: a", "Emit VolumesChanging: c-0 is to have volume \"a\" at /volumes/a|c-0|n1",
				"ClaimVolumes a1: a", "Emit VolumesChanging: c-1 is to have volume \"a\" at /volumes/a|c-1|n1",
			},
		},
		{
			"what a node reports is settled, and nothing before", api.ClusterReady,
			func(l *life) {
				l.asks(volume("a"))
				l.has("a0", 1, claim("a", 1, false), claim("b", 1, true))
				l.has("a1", 1, claim("a", 1, false), claim("b", 1, true))
				l.reports("a0", 1)
				l.reports("a1", 0)
			},
			[]string{"VolumesClaimed a0: 1", "Emit VolumesChanged: c-0 has volume \"a\" at /volumes/a, and has detached volume \"b\"|c-0|n1"},
		},
		{
			"a paused member changes its volumes, too", api.ClusterPaused,
			func(l *life) {
				l.asks(volume("a"))
				l.Intent.Paused = true
				l.seeAll(api.MemberPaused)
				l.has("a0", 1, claim("a", 0, false))
			},
			[]string{"ClaimVolumes a1: a", "Emit VolumesChanging: c-1 is to have volume \"a\" at /volumes/a|c-1|n1"},
		},
		{
			"a volume is noted as detached once nobody claims it", api.ClusterReady,
			func(l *life) {
				l.asks()
				l.seeAll(api.MemberReady)
				l.has("a0", 1, claim("b", 1, true))
				l.Intent.Detaching = []api.VolumeDetach{{UID: "ua", Number: 1, VolumeAttachment: volume("a")}, {UID: "ub", Number: 2, VolumeAttachment: volume("b")}}
			},
			[]string{"NoteDetached ua", "Emit VolumeDetached: volume \"a\" is detached||"},
		},
		{
			"what was noted as detached is forgotten with its request", api.ClusterReady,
			func(l *life) {
				l.asks()
				l.seeAll(api.MemberReady)
				l.Record.Detached = []api.VolumeDetach{{UID: "ua", Number: 1}}
			},
			[]string{"NoteDetached"},
		},
		{
			"a volume of a cluster that waits is detached at once", api.ClusterQueued,
			func(l *life) {
				l.Assignments = nil
				l.Intent.Detaching = []api.VolumeDetach{{UID: "ua", Number: 1, VolumeAttachment: volume("a")}}
			},
			[]string{"NoteDetached ua", "Emit VolumeDetached: volume \"a\" is detached||"},
		},
		{
			"a releasing member has its volume until it is clean", api.ClusterReady,
			func(l *life) {
				l.asks()
				l.seeAll(api.MemberReady)
				l.Assignments = append(l.Assignments, ClusterAssignment{
					Assignment: &api.Assignment{ID: "old", Member: "c-9", Node: "n1", Volumes: []api.VolumeClaim{claim("a", 0, false)}}, Releasing: true, ReleasedAt: l.Now,
				})
				l.Intent.Detaching = []api.VolumeDetach{{UID: "ua", Number: 1, VolumeAttachment: volume("a")}}
			},
			[]string{"WakeAt 11m0s"},
		},
	})
}
