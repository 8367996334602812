package placement

import (
	"maps"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestMembersGoWhereTheirDatasetsAreIfAllFitThere(t *testing.T) {
	shared := testNode("n4", 8, 1, 64)
	shared.Oversubscribed = true
	v := viewOf(t, testNode("n1", 8, 1, 64), testNode("n2", 8, 1, 64), testNode("n3", 4, 1, 64), shared)
	for name, tc := range map[string]struct {
		size  int
		whole []string
		want  map[string]int
	}{
		"nobody has them":     {1, nil, map[string]int{"n3": 1}},
		"one node has them":   {1, []string{"n2"}, map[string]int{"n2": 1}},
		"it has room for all": {8, []string{"n2"}, map[string]int{"n2": 8}},
		"it has room for some, so it makes no difference": {10, []string{"n2"}, map[string]int{"n1": 8, "n3": 2}},
		"two have them":                                  {10, []string{"n2", "n3"}, map[string]int{"n2": 8, "n3": 2}},
		"a node that is not there has them":              {1, []string{"n9"}, map[string]int{"n3": 1}},
		"on the node that has them CPUs would be shared": {1, []string{"n4"}, map[string]int{"n3": 1}},
	} {
		g := group("compute", tc.size, 1, 1)
		g.DataPlace = api.DataPlace{Whole: tc.whole}
		placed, refusal := Place(v, Request{Cluster: "c1", Groups: []api.Group{g}})
		if refusal != nil {
			t.Errorf("%s: %s", name, refusal.Message)
			continue
		}
		on := map[string]int{}
		for _, a := range assign(t, placed, "c1") {
			on[a.Node]++
		}
		if !maps.Equal(on, tc.want) {
			t.Errorf("%s: members are on %v, want %v", name, on, tc.want)
		}
	}
}
