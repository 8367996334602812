package placement

import (
	"maps"
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

// alone is why a node serves no volumes.
const alone = "its kernel has no NFS server"

// reaching is a node whose members reach volumes that other nodes serve.
func reaching(n api.NodeRecord) api.NodeRecord {
	n.VolumeSharing = &api.VolumeSharing{}
	return n
}

func TestMembersGoWhereTheirVolumesLie(t *testing.T) {
	data := api.VolumePlace{Volume: "data", Node: "n2", Problem: alone}
	blind := testNode("n4", 8, 1, 64)
	blind.VolumeSharing = &api.VolumeSharing{ReachProblem: "its kernel has no NFS client"}
	v := viewOf(t, reaching(testNode("n1", 8, 1, 64)), reaching(testNode("n2", 4, 1, 64)), reaching(testNode("n3", 8, 1, 64)), blind)
	// Nothing is known of a node that was taken out of the inventory while a member was there.
	v.SetNode(reaching(testNode("n9", 1, 1, 64)), Schedulable)
	placed, refusal := Place(v, Request{Cluster: "c9", Groups: []api.Group{withVolume(1, api.VolumePlace{Volume: "lost", Node: "n9"})}})
	if refusal != nil {
		t.Fatal(refusal.Message)
	}
	if err := v.Take(assign(t, placed, "c9")[0]); err != nil {
		t.Fatal(err)
	}
	v.RemoveNode("n9")
	for name, tc := range map[string]struct {
		size  int
		place api.VolumePlace
		want  map[string]int
	}{
		"all where it lies, for it is not served":           {4, data, map[string]int{"n2": 4}},
		"all where it lies, for there is room":              {4, api.VolumePlace{Volume: "data", Node: "n2"}, map[string]int{"n2": 4}},
		"on nodes that reach it":                            {16, api.VolumePlace{Volume: "data", Node: "n2"}, map[string]int{"n1": 8, "n3": 8}},
		"where one lies that is not served":                 {4, api.VolumePlace{Volume: "data", Node: "n2", Problem: alone, Other: "far", OtherNode: "n3"}, map[string]int{"n2": 4}},
		"where the other lies, which is not served":         {4, api.VolumePlace{Volume: "data", Node: "n2", Other: "far", OtherNode: "n3", OtherProblem: alone}, map[string]int{"n3": 4}},
		"on a node that reaches no others, where it lies":   {1, api.VolumePlace{Volume: "data", Node: "n4"}, map[string]int{"n4": 1}},
		"beside a node that reaches no others, not on it":   {9, api.VolumePlace{Volume: "data", Node: "n1"}, map[string]int{"n1": 8, "n2": 1}},
		"of three nodes with two volumes, one that reaches": {8, api.VolumePlace{Volume: "data", Node: "n2", Other: "far", OtherNode: "n4"}, map[string]int{"n1": 8}},
	} {
		placed, refusal := Place(v, Request{Cluster: "c1", Groups: []api.Group{withVolume(tc.size, tc.place)}})
		if refusal != nil {
			t.Errorf("%s: %s", name, refusal.Message)
			continue
		}
		got := map[string]int{}
		for _, p := range placed {
			got[p.Node]++
		}
		if !maps.Equal(got, tc.want) {
			t.Errorf("%s: members are on %v, want %v", name, got, tc.want)
		}
	}
	for name, tc := range map[string]struct {
		size  int
		place api.VolumePlace
		never bool
		want  string
	}{
		"more members than its node holds": {5, data, true, `volume "data" lies on node n2, which does not serve it to others: its kernel has no NFS server`},
		"more members than nodes that reach it hold": {
			21,
			api.VolumePlace{Volume: "data", Node: "n2"},
			true,
			`volume "data" lies on node n2, and not every other node reaches it: node n4 can't reach it: its kernel has no NFS client`,
		},
		"volumes on two nodes": {
			1,
			api.VolumePlace{Volume: "data", Node: "n2", Problem: alone, Other: "results", OtherNode: "n3", OtherProblem: alone},
			true,
			`volume "data" lies on node n2 and volume "results" on node n3, and no node has both: its kernel has no NFS server`,
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
	data := api.VolumePlace{Volume: "data", Node: "n2", Problem: alone}
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
	data := api.VolumePlace{Volume: "data", Node: "n2", Problem: alone}
	v := viewOf(t, testNode("n1", 8, 1, 64), testNode("n2", 4, 1, 64))
	full, refusal := Place(v, Request{Cluster: "c0", Groups: []api.Group{withVolume(4, data)}})
	if refusal != nil {
		t.Fatal(refusal.Message)
	}
	for _, a := range assign(t, full, "c0") {
		if err := v.Take(a); err != nil {
			t.Fatal(err)
		}
	}
	_, refusal = Place(v, Request{Cluster: "c1", Groups: []api.Group{withVolume(1, data)}})
	if refusal == nil || refusal.Never || refusal.Constraint != ConstraintCores || !strings.HasSuffix(refusal.Message, `volume "data" lies on node n2, which does not serve it to others: `+alone) {
		t.Errorf("got %+v, want it to wait for cores of n2", refusal)
	}
}

func TestBlockVolumesAreReachedWithoutAnNFSClient(t *testing.T) {
	bare, older := testNode("n1", 8, 1, 64), testNode("n3", 8, 1, 64)
	bare.VolumeSharing = &api.VolumeSharing{ReachProblem: "its kernel has no NFS client", Blocks: true}
	older.VolumeSharing = &api.VolumeSharing{}
	v := viewOf(t, bare, reaching(testNode("n2", 1, 1, 64)), older)
	disk := api.VolumePlace{Volume: "disk", Node: "n2", Block: true}
	placed, refusal := Place(v, Request{Cluster: "c1", Groups: []api.Group{withVolume(9, disk)}})
	if refusal != nil {
		t.Fatal(refusal.Message)
	}
	got := map[string]int{}
	for _, p := range placed {
		got[p.Node]++
	}
	if !maps.Equal(got, map[string]int{"n1": 8, "n2": 1}) {
		t.Errorf("members are on %v", got)
	}
	_, refusal = Place(v, Request{Cluster: "c1", Groups: []api.Group{withVolume(10, disk)}})
	if want := "node n3 can't reach it: its agent reaches no block volumes of other nodes"; refusal == nil || !strings.HasSuffix(refusal.Message, want) {
		t.Errorf("got %+v, want %q", refusal, want)
	}
	// A home on another node is still reached by NFS.
	both := api.VolumePlace{Volume: "home-ada", Node: "n3", Other: "disk", OtherNode: "n2", OtherBlock: true}
	if _, refusal = Place(v, Request{Cluster: "c1", Groups: []api.Group{withVolume(2, both)}}); refusal == nil {
		t.Error("members go to a node that reaches one of their volumes only")
	}
}
