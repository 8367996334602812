package lifecycle

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestLayersAreNotedOnceAllMembersHaveThemAndNoOthers(t *testing.T) {
	has := func(l *life, id string, number int64) {
		o := l.Observed[id]
		o.Layers = number
		l.Observed[id] = o
	}
	asks := func(l *life, number int64, layers ...api.Layer) {
		l.Intent.Layers, l.Intent.LayersNumber = layers, number
		l.seeAll(api.MemberReady)
	}
	foam := api.Layer{Environment: "foam", Digest: "sha256:f"}
	checkSteps(t, []step{
		{
			"one member does not have them yet", api.ClusterReady,
			func(l *life) { asks(l, 1, foam); has(l, "a0", 1) },
			[]string{},
		},
		{
			"all members have them", api.ClusterReady,
			func(l *life) { asks(l, 1, foam); has(l, "a0", 1); has(l, "a1", 1) },
			[]string{"NoteLayers{Number:1}", "Emit LayersChanged: all members have the layers \"foam\" at /layers/foam||"},
		},
		{
			"a member still has one that was removed", api.ClusterReady,
			func(l *life) { asks(l, 2); l.Record.LayersNumber = 1; has(l, "a0", 1); has(l, "a1", 2) },
			[]string{},
		},
		{
			"no member has it any more", api.ClusterReady,
			func(l *life) { asks(l, 2); l.Record.LayersNumber = 1; has(l, "a0", 2); has(l, "a1", 2) },
			[]string{"NoteLayers{Number:2}", "Emit LayersChanged: no member has a layer any more||"},
		},
		{
			"nothing changed since", api.ClusterReady,
			func(l *life) { asks(l, 2); l.Record.LayersNumber = 2 },
			[]string{},
		},
	})
}

func TestOnlyContainersAndWholeMachinesHaveLayers(t *testing.T) {
	for stack, refused := range map[api.Stack]bool{api.StackContainer: false, api.StackMetal: false, api.StackVM: true} {
		spec := api.ClusterSpec{Groups: []api.Group{{Name: "a", Stack: api.StackContainer}, {Name: "b", Stack: stack}}}
		if why := LayersRefused(&spec); (why != "") != refused || refused && !strings.Contains(why, `group "b" run on stack "vm"`) {
			t.Errorf("stack %s: %q", stack, why)
		}
	}
}
