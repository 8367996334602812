package placement

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// withVolume is a group whose volumes lie somewhere.
func withVolume(size int, p api.VolumePlace) api.Group {
	g := group("compute", size, 1, 1)
	g.VolumePlace = p
	return g
}

func TestMembersGoWhereTheirVolumesLie(t *testing.T) {
	data := api.VolumePlace{Volume: "data", Node: "n2"}
	v := viewOf(t, testNode("n1", 8, 1, 64), testNode("n2", 4, 1, 64), testNode("n3", 8, 1, 64))
	placed, refusal := Place(v, Request{Cluster: "c1", Groups: []api.Group{withVolume(4, data)}})
	if refusal != nil {
		t.Fatal(refusal.Message)
	}
	for _, p := range placed {
		if p.Node != "n2" {
			t.Errorf("member %s is on %s, want n2 alone", p.Member, p.Node)
		}
	}
	for name, tc := range map[string]struct {
		size  int
		place api.VolumePlace
		never bool
		want  string
	}{
		"more members than its node holds": {5, data, true, `volume "data" lies on node n2, and other nodes can't reach it yet`},
		"volumes on two nodes": {
			1,
			api.VolumePlace{Volume: "data", Node: "n2", Other: "results", OtherNode: "n3"},
			true,
			`volume "data" lies on node n2 and volume "results" on node n3, and no node can reach both yet`,
		},
		"a volume without a node":             {1, api.VolumePlace{Unplaced: "data", Why: "has no node yet"}, false, `volume "data" has no node yet`},
		"a volume on a node that is not here": {1, api.VolumePlace{Volume: "data", Node: "n9"}, true, `volume "data" lies on node n9, which this site does not have`},
	} {
		_, refusal := Place(v, Request{Cluster: "c1", Groups: []api.Group{withVolume(tc.size, tc.place)}})
		if refusal == nil || refusal.Constraint != ConstraintVolume || refusal.Never != tc.never || !strings.HasSuffix(refusal.Message, "; "+tc.want) {
			t.Errorf("%s: got %+v, want a refusal that ends in %q, for good: %t", name, refusal, tc.want, tc.never)
		}
	}
}

func TestMembersWaitForTheNodeOfTheirVolume(t *testing.T) {
	data := api.VolumePlace{Volume: "data", Node: "n2"}
	v := viewOf(t, testNode("n1", 8, 1, 64), testNode("n2", 4, 1, 64))
	v.SetNode(testNode("n2", 4, 1, 64), Down)
	_, refusal := Place(v, Request{Cluster: "c1", Groups: []api.Group{withVolume(1, data)}})
	if refusal == nil || refusal.Never || refusal.Constraint != ConstraintDown || !strings.HasSuffix(refusal.Message, `; waits for node n2, where volume "data" lies`) {
		t.Errorf("got %+v, want it to wait for n2", refusal)
	}
	if reason, _ := v.Sketch().WhyNot("n1", withVolume(1, data)); reason != `node n1 can't have volume "data", which lies on node n2` {
		t.Errorf("why not n1: %q", reason)
	}
}

func TestAVolumesNodeThatIsFullIsNamedWithTheVolume(t *testing.T) {
	v := viewOf(t, testNode("n1", 8, 1, 64), testNode("n2", 4, 1, 64))
	full, refusal := Place(v, Request{Cluster: "c0", Groups: []api.Group{withVolume(4, api.VolumePlace{Volume: "data", Node: "n2"})}})
	if refusal != nil {
		t.Fatal(refusal.Message)
	}
	for _, a := range assign(t, full, "c0") {
		if err := v.Take(a); err != nil {
			t.Fatal(err)
		}
	}
	_, refusal = Place(v, Request{Cluster: "c1", Groups: []api.Group{withVolume(1, api.VolumePlace{Volume: "data", Node: "n2"})}})
	if refusal == nil || refusal.Never || refusal.Constraint != ConstraintCores || !strings.HasSuffix(refusal.Message, `volume "data" lies on node n2, and other nodes can't reach it yet`) {
		t.Errorf("got %+v, want it to wait for cores of n2", refusal)
	}
}
