package admission

import (
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
)

// machines are machines of the site that are had whole, each with a disk of its number in TB.
func (s *scene) machines(is placement.Availability, names ...string) *scene {
	for i, name := range names {
		rec := testNode(name, 8, 32)
		rec.Stacks = append(rec.Stacks, api.StackCheck{Stack: api.StackMetal, OK: true, By: api.ExecutorProvisioner})
		rec.Environments = append(rec.Environments, api.EnvironmentOnNode{Name: "local", Stacks: []api.Stack{api.StackMetal}, OK: true})
		rec.Disks = []api.Disk{{Name: "sda", SizeBytes: int64(i+1) * 1e12}}
		s.in.Free.SetNode(rec, is)
	}
	return s
}

// has lets a cluster hold whole machines.
func (s *scene) has(cluster string, ends time.Duration, names ...string) *scene {
	s.t.Helper()
	s.runs(cluster, ends, 8, names...)
	return s
}

func whole(r *Request) { r.Groups[0].Stack = api.StackMetal }

func TestAMachineThatComesFreeIsFirstForAClusterThatLostOne(t *testing.T) {
	tests := planCases{
		{
			"a machine that was given back", func(s *scene) {
				s.machines(placement.Warm, "n1", "n2").has("c", 0, "n1").creates("x", 1, 8, whole).asks("c", KindHeal, 1, 8, whole)
			},
			[]string{"c admit n2", "x wait cores"},
		},
		{
			"the machine that the member was lost on, once it is clean", func(s *scene) {
				s.machines(placement.Asleep, "n1", "n2").has("c", 0, "n1").creates("x", 1, 8, whole, at(9)).asks("c", KindHeal, 1, 8, whole, avoiding("n2"))
			},
			[]string{"c admit n2", "x wait cores"},
		},
		{
			"nobody gets a machine meanwhile that it could have soon", func(s *scene) {
				s.machines(placement.Asleep, "n1", "n2").has("c", 0, "n1").has("y", 0, "n2").releasing("y").creates("x", 1, 8, whole).asks("c", KindHeal, 1, 8, whole)
			},
			[]string{"c wait cores", "x wait cores"},
		},
		{
			"another cluster gets what it could not have", func(s *scene) {
				s.machines(placement.Asleep, "n1", "n2").has("c", 0, "n2").creates("x", 1, 8, whole)
				s.asks("c", KindHeal, 1, 8, whole, func(r *Request) { r.Groups[0].LocalDisks = []api.DiskRequest{"1:2TB"} })
			},
			[]string{"c wait cores", "x admit n1"},
		},
	}
	tests.check(t, (*scene).verdicts)
}

// Who asks without --queue for the machines of a cluster that was just deleted waits for their cleaning. Who asks for more than that is refused.
func TestARequestWaitsForMachinesThatComeFreeByThemselves(t *testing.T) {
	atOnce := func(r *Request) { r.Queue = false }
	tests := planCases{
		{
			"a machine that is cleaned", func(s *scene) { s.machines(placement.Returning, "n1").creates("x", 1, 8, whole, atOnce) },
			[]string{"x wait unavailable"},
		},
		{
			"a machine whose cluster is being deleted", func(s *scene) {
				s.machines(placement.Schedulable, "n1").has("y", 0, "n1").releasing("y").creates("x", 1, 8, whole, atOnce)
			},
			[]string{"x wait cores"},
		},
		{
			"a machine that goes off after its cluster was deleted", func(s *scene) {
				s.machines(placement.Returning, "n1").has("y", 0, "n1").releasing("y").creates("x", 1, 8, whole, atOnce)
			},
			[]string{"x wait unavailable"},
		},
		{
			"one that is off and one that is cleaned", func(s *scene) {
				s.machines(placement.Asleep, "n1").machines(placement.Returning, "n2").creates("x", 2, 8, whole, atOnce)
			},
			[]string{"x wait unavailable"},
		},
		{
			"one that is cleaned, and too few all the same", func(s *scene) {
				s.machines(placement.Returning, "n1").machines(placement.Drained, "n2").creates("x", 2, 8, whole, atOnce)
			},
			[]string{"x refuse unavailable"},
		},
		{
			"a machine that another cluster has", func(s *scene) {
				s.machines(placement.Returning, "n1").has("y", 0, "n1").creates("x", 1, 8, whole, atOnce)
			},
			[]string{"x refuse unavailable"},
		},
		{
			"containers get no machine that goes off", func(s *scene) {
				s.machines(placement.Returning, "n1").has("y", 0, "n2").creates("x", 1, 8, atOnce)
			},
			[]string{"x refuse cores"},
		},
		{
			"two groups of which one has no room", func(s *scene) {
				s.machines(placement.Returning, "n1").machines(placement.Drained, "n2").creates("x", 1, 8, whole, atOnce, func(r *Request) {
					r.Groups = append(r.Groups, r.Groups[0])
					r.Groups[1].Name = "other"
				})
			},
			[]string{"x refuse unavailable"},
		},
	}
	tests.check(t, (*scene).verdicts)
}

func TestARequestThatWaitsForACleaningSaysSo(t *testing.T) {
	s := newScene(t, 0).machines(placement.Returning, "n1").creates("x", 1, 8, whole, func(r *Request) { r.Queue = false })
	want := "needs 1 member with 8 cores and 1GiB, none fits now; it starts when the machines are free that are being cleaned, inspected or switched off; it does not delay others until then"
	if got := Plan(s.in)[0].Reason; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}

// Groups that are alike but for their disks are not alike.
func TestGroupsWithOtherDisksAreOtherShapes(t *testing.T) {
	s := newScene(t, 0).machines(placement.Asleep, "n1", "n2").has("y", time.Hour, "n2")
	s.creates("a", 1, 8, whole, func(r *Request) { r.Groups[0].LocalDisks = []api.DiskRequest{"1:2TB"} }).creates("b", 1, 8, whole)
	if got, want := s.verdicts(), []string{"a wait cores", "b admit n1"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
