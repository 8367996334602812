package lifecycle

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// sized makes all members virtual machines of one core, whose group is to have so many.
func (l *life) sized(cores int) {
	l.machines()
	l.Intent.Spec.Groups[0].Cores = cores
	for i := range l.Assignments {
		l.Assignments[i].Slots = []int{i}
	}
}

// pending decides that a member is to have the size of number 1, with the slots 0 and 1.
func (l *life) pending(id string) {
	for _, a := range l.Assignments {
		if a.ID == id {
			from, to := a.Held(), a.Held()
			to.Number, to.Slots = 1, []int{0, 1}
			*a.Assignment = a.Sized(to)
			a.SizeNumber, a.Resizing = 0, &api.Resizing{From: from, To: to}
		}
	}
}

func (l *life) seeSize(id string, number int64) {
	l.see(id, api.MemberReady, "")
	o := l.Observed[id]
	o.Size = number
	l.Observed[id] = o
}

func TestHowMembersGetAnotherSize(t *testing.T) {
	checkSteps(t, []step{
		{
			"each asks for its room by itself", api.ClusterReady, func(l *life) { l.sized(2); l.seeAll(api.MemberReady) },
			[]string{"Need resize c-0@-1", "Need resize c-1@-1"},
		},
		{
			"a member whose size is decided asks for nothing more", api.ClusterReady, func(l *life) { l.sized(2); l.pending("a0"); l.seeAll(api.MemberReady) },
			[]string{"Need resize c-1@-1"},
		},
		{
			"a member whose size was changed again asks again", api.ClusterReady,
			func(l *life) {
				l.sized(1)
				l.pending("a0")
				l.seeAll(api.MemberReady)
			},
			[]string{"Need resize c-0@-1"},
		},
		{
			"a member has its new size once its node reports it", api.ClusterReady,
			func(l *life) {
				l.sized(2)
				l.pending("a0")
				l.pending("a1")
				l.seeSize("a0", 1)
				l.seeSize("a1", 0)
			},
			[]string{"Emit Resized: c-0 has 2 cores and 0 now|c-0|n1", "Resized{IDs:[a0]}"},
		},
		{
			"a container keeps its size", api.ClusterReady,
			func(l *life) {
				l.sized(2)
				l.Intent.Spec.Groups[0].Stack = api.StackContainer
				l.seeAll(api.MemberReady)
			},
			[]string{},
		},
		{
			"nothing begins before a cluster is ready", api.ClusterStarting, func(l *life) { l.sized(2); l.see("a0", api.MemberStarting, "") },
			[]string{"WakeAt 5m0s"},
		},
		{
			"a member that is to have another size leaves no drained node", api.ClusterReady,
			func(l *life) {
				l.sized(2)
				l.pending("a0")
				l.pending("a1")
				l.seeAll(api.MemberReady)
				l.Nodes["n1"] = NodeState{Phase: api.NodeReady, Reported: true, Drained: true, DrainedAt: t0}
			},
			[]string{},
		},
		{
			"nor does it move on request", api.ClusterReady,
			func(l *life) {
				l.sized(2)
				l.pending("a0")
				l.pending("a1")
				l.move(nil, "a0")
				l.seeAll(api.MemberReady)
			},
			[]string{},
		},
		{
			"a member on its way to another node keeps its size until it is there", api.ClusterReady,
			func(l *life) {
				l.sized(1)
				l.move(nil, "a0")
				l.under("a0", "n3").Slots = []int{0}
				l.Intent.Spec.Groups[0].Cores = 2
				l.Assignments[1].Slots = []int{1, 2}
				l.seeAll(api.MemberReady)
				l.see("a2", api.MemberPreparing, "")
			},
			[]string{"WakeAt 1h0m0s"},
		},
		{
			"a spare of the former size is replaced", api.ClusterReady,
			func(l *life) {
				l.sized(1)
				l.Intent.Spec.Groups[0].Spares = 1
				a := l.add("c-spare-0", "n3", NoRank)
				a.Spare, a.Slots = true, []int{0, 1}
				l.seeAll(api.MemberReady)
			},
			[]string{"Release [a2]: no longer needed", "Need spare c-spare-0@-1"},
		},
	})
}

func TestWhatCantBeResizedSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		group api.Group
		want  string
	}{
		"containers":                    {api.Group{Stack: api.StackContainer}, `only members of stack "vm" can be resized`},
		"virtual machines with devices": {api.Group{Stack: api.StackVM, Devices: []api.DeviceRequest{{}}}, "they have devices"},
		"virtual machines on functions": {api.Group{Stack: api.StackVM, Networks: []api.GroupNetwork{{Name: "project/fast", Interface: api.InterfaceVF}}}, ""},
		"virtual machines":              {api.Group{Stack: api.StackVM}, ""},
	} {
		if got := Resizable(&c.group); !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
