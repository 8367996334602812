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

func TestMembersGoWhereTheirDatasetsAreSoonest(t *testing.T) {
	shared := testNode("n5", 8, 1, 64)
	shared.Oversubscribed = true
	v := viewOf(t, testNode("n1", 8, 1, 64), testNode("n2", 2, 1, 64), testNode("n3", 2, 1, 64), testNode("n4", 2, 1, 64), shared)
	for name, tc := range map[string]struct {
		size    int
		seconds map[string]float64
		whole   []string
		want    map[string]int
	}{
		"nothing is measured":                        {2, nil, nil, map[string]int{"n2": 2}},
		"nothing is measured, and a node has them":   {2, nil, []string{"n4"}, map[string]int{"n4": 2}},
		"the node that is quickest":                  {2, map[string]float64{"n1": 100, "n2": 90, "n3": 5, "n4": 60}, nil, map[string]int{"n3": 2}},
		"the node that has them":                     {2, map[string]float64{"n1": 100, "n2": 90, "n4": 0}, []string{"n4"}, map[string]int{"n4": 2}},
		"a node without a prediction is not quicker": {2, map[string]float64{"n3": 500}, nil, map[string]int{"n3": 2}},
		"nor is one node without a prediction":       {4, map[string]float64{"n3": 500, "n4": 500}, nil, map[string]int{"n3": 2, "n4": 2}},
		"the two that are quickest":                  {4, map[string]float64{"n1": 100, "n2": 90, "n3": 5, "n4": 60}, nil, map[string]int{"n3": 2, "n4": 2}},
		"one node, where that is not much later":     {4, map[string]float64{"n1": 14, "n2": 90, "n3": 5, "n4": 5}, nil, map[string]int{"n1": 4}},
		"two nodes, where one is much later":         {4, map[string]float64{"n1": 16, "n2": 90, "n3": 5, "n4": 5}, nil, map[string]int{"n3": 2, "n4": 2}},
		"no shared CPUs for being quick":             {2, map[string]float64{"n4": 100, "n5": 0}, []string{"n5"}, map[string]int{"n4": 2}},
		"no room where it is known":                  {8, map[string]float64{"n3": 5}, nil, map[string]int{"n1": 8}},
		"a node that is not there is quickest":       {2, map[string]float64{"n4": 3, "n9": 0}, nil, map[string]int{"n4": 2}},
	} {
		g := group("compute", tc.size, 1, 1)
		g.DataPlace = api.DataPlace{Whole: tc.whole, Seconds: tc.seconds}
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

func TestWhatIsDecidedOfDatasetsIsRecordedWithThePlace(t *testing.T) {
	v := viewOf(t, testNode("n1", 2, 1, 64), testNode("n2", 1, 1, 64))
	asked := map[string][2]int{}
	g := group("compute", 3, 1, 1)
	g.DataPlace.Decide = func(node string, here, all int) []api.DataClaim {
		asked[node] = [2]int{here, all}
		return []api.DataClaim{{Name: "events", Way: api.DatasetCached, Options: []api.DataOption{{Choice: node}}}}
	}
	placed, refusal := Place(v, Request{Cluster: "c1", Groups: []api.Group{g}})
	if refusal != nil {
		t.Fatal(refusal.Message)
	}
	if !maps.Equal(asked, map[string][2]int{"n1": {2, 3}, "n2": {1, 3}}) {
		t.Errorf("decided for %v members by node, of all", asked)
	}
	listed := map[string]int{}
	for _, a := range assign(t, placed, "c1") {
		if len(a.Data) != 1 || a.Data[0].Way != api.DatasetCached {
			t.Fatalf("%s: %+v", a.ID, a.Data)
		}
		listed[a.Node] += len(a.Data[0].Options)
	}
	if !maps.Equal(listed, map[string]int{"n1": 1, "n2": 1}) {
		t.Errorf("what there was to choose from is listed %v times by node, want once each", listed)
	}
}
