package placement

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

func TestAWholeMachineIsTakenWarmThenRecentlyVerified(t *testing.T) {
	noon := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	type given struct {
		is       Availability
		verified time.Time
		cores    int
	}
	for name, tc := range map[string]struct {
		nodes []given
		size  int
		want  []string
	}{
		"a warm one before one that was verified later":    {[]given{{Asleep, noon, 8}, {Warm, noon.Add(-time.Hour), 8}}, 1, []string{"n2"}},
		"the one that was verified last":                   {[]given{{Asleep, noon.Add(-time.Hour), 8}, {Asleep, noon, 8}, {Asleep, time.Time{}, 8}}, 1, []string{"n2"}},
		"a verified one before one that nobody knows of":   {[]given{{Asleep, time.Time{}, 8}, {Asleep, noon, 8}}, 1, []string{"n2"}},
		"one that is off before one that serves others":    {[]given{{Schedulable, noon, 8}, {Asleep, time.Time{}, 8}}, 1, []string{"n2"}},
		"several, in their natural order":                  {[]given{{Asleep, noon, 8}, {Warm, noon, 8}, {Asleep, noon.Add(time.Hour), 8}}, 2, []string{"n2", "n3"}},
		"the smaller one that does: all else is not equal": {[]given{{Warm, noon, 16}, {Asleep, noon, 8}}, 1, []string{"n2"}},
		"the first one, where nothing speaks for another":  {[]given{{Asleep, noon, 8}, {Asleep, noon, 8}}, 1, []string{"n1"}},
	} {
		v := NewView()
		for i, n := range tc.nodes {
			rec := machineNode(fmt.Sprint("n", i+1), n.cores, 64)
			rec.VerifiedAt = n.verified
			v.SetNode(rec, n.is)
		}
		var got []string
		for _, p := range place(t, v, "c", metal("m", tc.size, 4, 1)) {
			got = append(got, p.Node)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestContainersAreNotPlacedOnMachinesThatWait(t *testing.T) {
	v := NewView()
	v.SetNode(machineNode("n1", 8, 64), Warm)
	if placed, refusal := Place(v, Request{Cluster: "c", Groups: []api.Group{group("g", 1, 1, 1)}}); refusal == nil || !strings.Contains(refusal.Message, "n1 waits for a member that gets it whole") {
		t.Errorf("placed %v, refused %v", placed, refusal)
	}
}

func TestEveryMachineIsToldWhyItFitsOrNot(t *testing.T) {
	noon := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	v := NewView()
	set := func(name string, cores int, is Availability, change func(*api.NodeRecord)) {
		rec := machineNode(name, cores, 64)
		rec.VerifiedAt = noon
		if change != nil {
			change(&rec)
		}
		v.SetNode(rec, is)
	}
	set("asleep", 8, Asleep, nil)
	set("drained", 8, Drained, nil)
	set("gone", 8, Down, nil)
	set("small", 2, Asleep, nil)
	set("taken", 8, Asleep, nil)
	set("unfit", 8, Asleep, func(r *api.NodeRecord) {
		on := &r.Environments[len(r.Environments)-1]
		on.OK, on.Problems = false, []string{"the image has no driver for its network interface e1000e"}
	})
	set("unlabelled", 8, Asleep, func(r *api.NodeRecord) { r.Labels = nil })
	set("warm", 8, Warm, nil)
	v.SetNode(testNode("worker", 8, 2, 64), Schedulable) // no machine of the site
	for _, name := range []string{"asleep", "drained", "gone", "small", "taken", "unfit", "warm"} {
		rec := v.nodes[v.ids[name]].record
		rec.Labels = map[string]string{"rack": "a"}
		v.SetNode(rec, v.nodes[v.ids[name]].availability)
	}
	if err := v.Take(api.Assignment{ID: "x", Node: "taken", Slots: []int{0}}); err != nil {
		t.Fatal(err)
	}
	g := metal("m", 1, 4, 1)
	g.NodeSelector = map[string]string{"rack": "a"}
	var got []string
	for _, fit := range v.Sketch().Machines(g) {
		got = append(got, fmt.Sprintf("%s %t %s", fit.Node, fit.Fits, fit.Reason))
	}
	want := []string{
		"warm true warm: it waits in its boot agent; known to boot since 2026-11-28 12:00:00 UTC",
		"asleep true off; known to boot since 2026-11-28 12:00:00 UTC",
		"drained false it is drained",
		"gone false it is not to be had: it boots, is in quarantine or has failed",
		"small false it has 2 cores, and each member needs 4",
		"taken false it is in use",
		"unfit false the image has no driver for its network interface e1000e",
		"unlabelled false it does not have the labels that the group selects",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if fits := v.Sketch().Machines(group("g", 1, 1, 1)); fits != nil {
		t.Errorf("a group of containers has %v", fits)
	}
}
