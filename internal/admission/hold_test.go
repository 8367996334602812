package admission

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/resource"
)

func fast(r *Request) { r.Groups[0].NodeSelector = map[string]string{"disk": "fast"} }

func (s *scene) label(node string) *scene {
	rec := testNode(node, 8, 32)
	rec.Labels = map[string]string{"disk": "fast"}
	s.in.Free.SetNode(rec, placement.Schedulable)
	return s
}

func TestThoseBehindTheHeadGetRoomWhereTheyDoNotDelayIt(t *testing.T) {
	tests := planCases{
		{
			"when they end before it starts", func(s *scene) {
				s.runs("a", time.Hour, 8, "n1").runs("b", 0, 4, "n2").creates("head", 3, 4).creates("x", 1, 4, lasting(time.Hour))
			},
			[]string{"head wait cores", "x admit n2"},
		},
		{
			"not when they end a moment later", func(s *scene) {
				s.runs("a", time.Hour, 8, "n1").runs("b", 0, 6, "n2").creates("head", 5, 2).creates("x", 1, 2, lasting(time.Hour+1))
			},
			[]string{"head wait cores", "x wait queue"},
		},
		{
			"when there is more than it needs by then", func(s *scene) {
				s.runs("a", time.Hour, 8, "n1").runs("b", 0, 4, "n2").creates("head", 1, 8).creates("x", 1, 3).creates("y", 1, 3)
			},
			[]string{"head wait cores", "x admit n2", "y wait cores"},
		},
		{
			"on other nodes than it is going to have", func(s *scene) {
				// Placement alone would put x where it fits most tightly, n2; the head is reserved n1 and n2.
				s.in.Free.SetNode(testNode("n3", 8, 32), placement.Schedulable)
				s.runs("a", time.Hour, 6, "n1").runs("b", time.Hour, 6, "n2").runs("c", 0, 4, "n3").creates("head", 2, 8).creates("x", 1, 2)
			},
			[]string{"head wait cores", "x admit n3"},
		},
		{
			"where it could never be, when its start is not known", func(s *scene) {
				s.label("n2").runs("a", 0, 4, "n2").creates("head", 1, 8, fast).creates("x", 1, 2, fast, lasting(time.Minute)).creates("y", 1, 2)
			},
			[]string{"head wait cores", "x wait queue", "y admit n1"},
		},
		{
			"and nowhere else then", func(s *scene) {
				s.runs("a", 0, 4, "n1", "n2").creates("head", 1, 8).creates("x", 1, 1, lasting(time.Second)).creates("y", 1, 1, noQueue)
			},
			[]string{"head wait cores", "x wait queue", "y refuse queue"},
		},
		{
			"and leave it its quota, however short they are", func(s *scene) {
				s.runs("p.a", time.Hour, 8, "n1").account("p", Account{Quota: api.Quota{Cores: 16}, Used: resource.Amounts{Vector: resource.Vector{resource.Cores: 8}}})
				s.creates("p.head", 1, 8).creates("p.x", 1, 1, lasting(time.Minute)).creates("q.y", 1, 1)
				s.runs("b", 0, 1, "n2")
			},
			[]string{"p.head wait cores", "p.x wait queue", "q.y admit n2"},
		},
		{
			"and leave it its quota of devices", func(s *scene) {
				s.lendsGPU("n2", 8)
				s.runs("a", time.Hour, 8, "n1").account("p", Account{Quota: api.Quota{Devices: map[string]int64{"gpu/slices": 6}}})
				gpus := func(n int) func(*Request) {
					return func(r *Request) {
						r.Groups[0].Devices = []api.DeviceRequest{{Class: "gpu", Way: "slice", Count: n, Remote: true}}
					}
				}
				s.creates("p.head", 2, 8, gpus(2)).creates("p.x", 1, 1, lasting(time.Minute), gpus(3)).creates("p.y", 1, 1, lasting(time.Minute), gpus(2))
			},
			[]string{"p.head wait cores", "p.x wait queue", "p.y admit n2"},
		},
		{
			"when it needs nodes that are down: it waits without holding them up", func(s *scene) {
				s.in.Free.SetAvailability("n2", placement.Down)
				s.creates("head", 2, 8).creates("x", 1, 8)
			},
			[]string{"head wait unavailable", "x admit n1"},
		},
		{
			"when it needs what is quarantined", func(s *scene) {
				s.runs("a", 0, 8, "n2").creates("head", 2, 8).creates("x", 1, 8)
				_ = s.in.Free.Quarantine("a.n2")
			},
			[]string{"head wait quarantine", "x admit n1"},
		},
		{
			"when it could not start if all others ended", func(s *scene) {
				s.runs("head", time.Hour, 8, "n1").asks("head", KindScale, 2, 8).creates("x", 1, 8)
			},
			[]string{"head wait cores", "x admit n2"},
		},
	}
	tests.check(t, (*scene).verdicts)
}

func TestWhatALostMemberNeedsIsHeldForIt(t *testing.T) {
	tests := planCases{
		{
			"its own room is free in ten seconds, and nobody gets it before", func(s *scene) {
				s.runs("c", 0, 8, "n1").releasing("c").runs("x", 0, 4, "n2")
				s.creates("a", 1, 8, noQueue).creates("b", 1, 4).asks("c", KindHeal, 1, 8)
			},
			[]string{"c wait cores", "a refuse cores", "b admit n2"},
		},
		{
			"what ends in time may use it", func(s *scene) {
				s.runs("c", 0, 4, "n1").releasing("c").runs("x", 0, 8, "n2")
				s.creates("a", 1, 2).creates("b", 1, 4, lasting(ReleaseTime)).asks("c", KindHeal, 1, 8)
			},
			[]string{"c wait cores", "a wait queue", "b wait queue"},
		},
		{
			"a spare does not get it", func(s *scene) {
				s.runs("c", 0, 4, "n1").releasing("c").runs("x", 0, 8, "n2").asks("c", KindSpare, 1, 4).asks("c", KindHeal, 1, 8)
			},
			[]string{"c wait cores", "c wait queue"},
		},
		{
			"another replacement does", func(s *scene) {
				s.runs("c", 0, 4, "n1").releasing("c").runs("x", 0, 8, "n2").asks("c", KindHeal, 1, 8).asks("d", KindHeal, 1, 4)
			},
			[]string{"c wait cores", "d admit n1"},
		},
		{
			"its own cluster's end is no help", func(s *scene) {
				s.runs("c", time.Hour, 8, "n1").runs("x", 0, 4, "n2").asks("c", KindHeal, 1, 8).creates("a", 1, 4, lasting(time.Minute))
			},
			[]string{"c wait cores", "a wait queue"},
		},
		{
			"when no node at hand could hold it, nothing is held", func(s *scene) {
				s.label("n2").in.Free.SetAvailability("n2", placement.Down)
				s.asks("c", KindHeal, 1, 8, fast).creates("a", 1, 8)
			},
			[]string{"c wait unavailable", "a admit n1"},
		},
		{
			"a quota does not keep it waiting", func(s *scene) {
				s.account("p", Account{Quota: api.Quota{Cores: 4}, Used: resource.Amounts{Vector: resource.Vector{resource.Cores: 12}}}).asks("p.c", KindHeal, 1, 4)
			},
			[]string{"p.c admit n1"},
		},
	}
	tests.check(t, (*scene).verdicts)
}

func TestWaitingReplacementsHaveTheirStartsOneAfterTheOther(t *testing.T) {
	s := newScene(t, 3).label("n3").runs("a", time.Hour, 4, "n1").runs("b", 2*time.Hour, 4, "n2").runs("c", 10*time.Minute, 4, "n3")
	s.asks("one", KindHeal, 1, 8, fast, at(-1)).asks("two", KindHeal, 1, 7).asks("three", KindHeal, 1, 8)
	s.creates("x", 1, 4, lasting(10*time.Minute)).creates("y", 1, 4, lasting(30*time.Minute)).creates("z", 1, 4, lasting(90*time.Minute))
	s.creates("w", 1, 3, lasting(3*time.Hour)).creates("v", 1, 1, lasting(3*time.Hour))
	check(t, s.verdicts(), "two wait cores", "three wait cores", "one wait cores", "x admit n1", "y admit n2", "z wait queue", "w wait queue", "v wait queue")
	for i, want := range []time.Duration{10 * time.Minute, time.Hour, 0} {
		d := Plan(s.in)[i]
		if want == 0 && !d.Earliest.IsZero() || want != 0 && !d.Earliest.Equal(noon.Add(want)) {
			t.Errorf("%s can start at %v, want %v", s.in.Requests[d.Request].Cluster, d.Earliest, want)
		}
	}
}

func TestAStartThatComesEarlierIsHeldFromThenOn(t *testing.T) {
	s := newScene(t, 2).label("n1").runs("a", time.Hour, 4, "n1").runs("b", 10*time.Minute, 4, "n2")
	s.asks("late", KindHeal, 1, 8, fast).asks("soon", KindHeal, 1, 8)
	s.creates("x", 1, 4, lasting(30*time.Minute)).creates("y", 1, 4, lasting(30*time.Minute)).creates("z", 1, 4, lasting(10*time.Minute))
	check(t, s.verdicts(), "late wait cores", "soon wait cores", "x admit n1", "y wait queue", "z wait queue")
}

func TestWhatIsHeldForSeveralIsHeldForAllOfThem(t *testing.T) {
	tests := planCases{
		{
			"an earlier start counts for those who last past a later one", func(s *scene) {
				s.label("n1").runs("a", time.Hour, 4, "n1").runs("b", 10*time.Minute, 4, "n2").runs("c", 30*time.Minute, 2, "n2")
				s.asks("late", KindHeal, 1, 8, fast).asks("soon", KindHeal, 1, 6).creates("x", 1, 2, lasting(3*time.Hour))
			},
			[]string{"late wait cores", "soon wait cores", "x wait queue"},
		},
		{
			"two on one node have room beside each other", func(s *scene) {
				s.runs("b", 10*time.Minute, 6, "n1").runs("a", time.Hour, 8, "n2")
				s.asks("late", KindHeal, 2, 5).asks("soon", KindHeal, 1, 3).creates("x", 1, 2, lasting(3*time.Hour))
			},
			[]string{"late wait cores", "soon wait cores", "x wait queue"},
		},
		{
			"what was let in before the head was found is not let in again after", func(s *scene) {
				s.label("n1").runs("a", time.Hour, 4, "n1").runs("c", 30*time.Minute, 8, "n2").asks("lost", KindHeal, 1, 6, fast)
				s.creates("x", 1, 1, lasting(3*time.Hour)).creates("head", 1, 8).creates("y", 1, 2, lasting(3*time.Hour)).creates("z", 1, 1)
			},
			[]string{"lost wait cores", "x admit n1", "head wait cores", "y wait queue", "z admit n1"},
		},
	}
	tests.check(t, (*scene).verdicts)
}

func TestTooManyReplacementsThatWaitKeepAllRoomThatWouldDo(t *testing.T) {
	s := newScene(t, maxReserved+2).label("n18")
	for i := range maxReserved + 1 {
		node := s.in.Free.Nodes()[i]
		s.runs("a"+node, time.Hour, 4, node).asks("c"+node, KindHeal, 1, 8, func(r *Request) { r.Groups[0].NodeSelector = nil })
	}
	s.runs("b", 0, 4, "n18").creates("x", 1, 4, lasting(time.Minute)).creates("y", 1, 9)
	d := Plan(s.in)
	for i := range maxReserved {
		if !d[i].Earliest.Equal(noon.Add(time.Hour)) {
			t.Errorf("%s can start at %v", s.in.Requests[d[i].Request].Cluster, d[i].Earliest)
		}
	}
	if last := d[maxReserved]; !last.Earliest.IsZero() || !strings.HasSuffix(last.Reason, "is not computed because too many others wait for a replacement") {
		t.Errorf("the last: %+v", last)
	}
	check(t, s.plan()[maxReserved+1:maxReserved+2], "x wait (queue) needs 1 member with 4 cores and 1GiB, which would fit now; "+
		"its start time is unknown because some clusters in its way have no time limit")
}

func TestTheHeadDoesNotReckonWithWhatIsHeldForReplacements(t *testing.T) {
	s := newScene(t, 2).label("n1").runs("a", 0, 4, "n1").runs("b", time.Hour, 4, "n1").runs("c", 2*time.Hour, 8, "n2")
	s.asks("lost", KindHeal, 1, 8, fast).creates("head", 1, 4).creates("x", 1, 4, fast)
	check(t, s.plan()[1:],
		"head wait (cores) needs 1 member with 4 cores and 1GiB, none fits now; can start at 14:00 UTC at the latest, when c reaches its time limit",
		"x wait (cores) behind 1 other; needs 1 member with 4 cores and 1GiB, none fits now; it starts before requests ahead of it that need room, but only if that delays no other request")
}

func TestTheHeadReckonsWithTheEndsOfWhatThisPlanAdmits(t *testing.T) {
	s := newScene(t, 2).label("n2").runs("a", 0, 4, "n2")
	s.asks("lost", KindHeal, 1, 8, fast).creates("first", 1, 8, lasting(time.Hour)).creates("head", 1, 8)
	check(t, s.plan()[1:], "first admit n1",
		"head wait (cores) needs 1 member with 8 cores and 1GiB, none fits now; can start at 13:00 UTC at the latest, when first reaches its time limit")
}

func TestGroupsThatDoNotFitTogether(t *testing.T) {
	groups := func(groups ...api.Group) func(*Request) { return func(r *Request) { r.Groups = groups } }
	s := newScene(t, 2)
	s.creates("sum", 1, 1, groups(testGroup("a", 2, 5, 1), testGroup("b", 2, 4, 1)))
	s.creates("shape", 1, 1, groups(testGroup("a", 2, 5, 1), testGroup("b", 1, 6, 1)))
	s.creates("x", 2, 8)
	check(t, s.plan(),
		`sum refuse (together) cluster "sum" can't be placed: group "a" needs 2 members with 5 cores and 1GiB each; `+
			"each group of the cluster would fit alone, but not all at once; none fits now",
		`shape wait (cores) needs 2 members with 5 cores and 1GiB each, none fits now (group "a") and 1 member with 6 cores and 1GiB, `+
			`none fits now (group "b"); no placement was found for all of it, even if all other clusters ended; it does not delay others`,
		"x admit n1 n2")
}

func TestAReplacementAddsNothingToWhatItsProjectHolds(t *testing.T) {
	s := newScene(t, 2).account("p", Account{Quota: api.Quota{Cores: 8}, Used: resource.Amounts{Vector: resource.Vector{resource.Cores: 6}}})
	s.asks("p.c", KindHeal, 1, 2).creates("p.d", 1, 2)
	check(t, s.verdicts(), "p.c admit n1", "p.d admit n1")
}

func TestTwoReplacementsDoNotTakeTheSameSpare(t *testing.T) {
	spares := []api.Assignment{held("c.g-spare-1.1", "n2", 2), held("c.g-spare-0.1", "n1", 2)}
	s := newScene(t, 2).runs("x", 0, 4, "n1", "n2")
	for i := range spares {
		spares[i].Slots = []int{4, 5}
		if err := s.in.Free.Take(spares[i]); err != nil {
			t.Fatal(err)
		}
	}
	for _, node := range []string{"n1", "n2"} {
		rest := held("rest-"+node, node, 2)
		rest.Slots = []int{6, 7}
		if err := s.in.Free.Take(rest); err != nil {
			t.Fatal(err)
		}
	}
	with := func(r *Request) { r.Spares = spares }
	for range 3 {
		s.asks("c", KindHeal, 1, 2, with)
	}
	check(t, s.verdicts(), "c admit n1 for c.g-spare-0.1", "c admit n2 for c.g-spare-1.1", "c wait cores")
	d := Plan(s.in)[0]
	if p := d.Placed[0]; p.Slots[0] != 4 || p.Slots[1] != 5 || p.MemoryBytes() != gib || p.Node != "n1" {
		t.Errorf("the replacement is given %+v, not what the spare has", p)
	}
	for name, change := range map[string]func(*api.Assignment){
		"of another group": func(a *api.Assignment) { a.Group = "other" },
		"of another size":  func(a *api.Assignment) { a.Slots = []int{4} },
		"that is gone":     func(a *api.Assignment) { a.ID = "gone" },
	} {
		wrong := spares[1]
		change(&wrong)
		s.in.Requests = s.in.Requests[:0]
		s.asks("c", KindHeal, 1, 2, func(r *Request) { r.Spares = []api.Assignment{wrong} })
		if got := s.verdicts()[0]; got != "c wait cores" {
			t.Errorf("a spare %s: %s", name, got)
		}
	}
}

func TestSparesGoElsewhereAndHoldUpNobody(t *testing.T) {
	s := newScene(t, 2).asks("c", KindSpare, 1, 4, avoiding("n1")).asks("c", KindSpare, 1, 8, avoiding("n1")).asks("c", KindSpare, 1, 8).creates("a", 1, 4)
	check(t, s.verdicts(), "c admit n2", "c admit n1", "c wait cores", "a admit n2")
	if reason := Plan(s.in)[2].Reason; !strings.HasSuffix(reason, "none fits now; it is tried again whenever room becomes free") {
		t.Errorf("reason %q", reason)
	}
}

func TestARequestThatNodesNotHeardOfWouldDoForIsUndecided(t *testing.T) {
	s := newScene(t, 2)
	s.in.Free.SetAvailability("n2", placement.Unknown)
	s.creates("waits", 2, 8).creates("refused", 2, 8, noQueue).creates("never", 3, 8)
	for i, want := range []struct {
		verdict              Verdict
		undecided            bool
		constraint, contains string
	}{
		{Wait, true, "unavailable", "does not delay others until they are back"},
		{Refuse, true, "unavailable", `cluster "refused" can't be placed: group "g" needs 2 members with 8 cores and 1GiB each`},
		{Refuse, false, "cores", "more than this site has"},
	} {
		d := Plan(s.in)[i]
		if d.Verdict != want.verdict || d.Undecided != want.undecided || d.Constraint != want.constraint || !strings.Contains(d.Reason, want.contains) {
			t.Errorf("%s: got %+v, want %+v", s.in.Requests[i].Cluster, d, want)
		}
	}
}

func TestARequestOfSeveralGroupsIsExplainedGroupByGroup(t *testing.T) {
	two := func(r *Request) { r.Groups = append([]api.Group{testGroup("head", 1, 2, 1)}, r.Groups...) }
	s := newScene(t, 2).runs("a", time.Hour, 8, "n1").runs("b", 2*time.Hour, 2, "n2").creates("c", 1, 8, two).creates("d", 2, 4, two, noQueue)
	check(t, s.plan(),
		`c wait (cores) needs 1 member with 2 cores and 1GiB, which alone would fit now (group "head") and 1 member with 8 cores and 1GiB, `+
			`none fits now (group "g"); can start at 13:00 UTC at the latest, when a reaches its time limit`,
		`d refuse (cores) cluster "d" can't be placed: group "g" needs 2 members with 4 cores and 1GiB each; 1 member fits now (n2); `+
			`n1 has 0 of 8 cores free; 2 members with 3 cores and 1GiB each would fit`)
}

func TestAScaleUpThatIsRefusedIsNotSaidToBeACluster(t *testing.T) {
	s := newScene(t, 1).asks("c", KindScale, 2, 8, noQueue)
	check(t, s.plan(), `c refuse (cores) the scale-up of cluster "c" can't be placed: group "g" needs 2 members with 8 cores and 1GiB each; `+
		"more than this site has: 1 member fits even if every node were up and empty (n1); 2 members with 4 cores and 1GiB each would fit if every node were up and empty")
}

func TestQuotas(t *testing.T) {
	of := func(quota, used api.Quota) func(*scene) {
		return func(s *scene) { s.account("p", Account{Quota: quota, Used: resource.OfQuota(used)}) }
	}
	spares := func(r *Request) { r.Groups[0].Spares = 2 }
	withGPUs := func(quota, used int64) func(*scene) {
		return func(s *scene) {
			s.lendsGPU("n1", 8)
			s.account("p", Account{Quota: api.Quota{Devices: map[string]int64{"gpu/slices": quota}}, Used: resource.Amounts{Devices: resource.Devices{"gpu/slices": used}}})
		}
	}
	gpus := func(n int) func(*Request) {
		return func(r *Request) {
			r.Groups[0].Devices = []api.DeviceRequest{{Class: "gpu", Way: "slice", Count: n, Remote: true}}
		}
	}
	tests := []struct {
		name string
		site func(*scene)
		ask  func(*scene)
		want []string
	}{
		{
			"exactly full is not over", of(api.Quota{Cores: 8, Members: 4, Clusters: 2, Memory: 4 * gib}, api.Quota{Cores: 4, Members: 2, Clusters: 1, Memory: 2 * gib}),
			func(s *scene) { s.creates("p.a", 2, 2) },
			[]string{"p.a admit n1 n1"},
		},
		{
			"over now waits, and holds up nobody", of(api.Quota{Cores: 8}, api.Quota{Cores: 4}),
			func(s *scene) { s.creates("p.a", 1, 5).creates("p.b", 1, 4).creates("q.c", 1, 4) },
			[]string{`p.a wait (quota) needs 5 cores, but project "p" already holds 4 cores and the quota is 8 cores; it does not delay others`, "p.b admit n1", "q.c admit n1"},
		},
		{
			"over now is refused without queue", of(api.Quota{Members: 2}, api.Quota{Members: 2}),
			func(s *scene) { s.creates("p.a", 1, 1, noQueue) },
			[]string{
				`p.a refuse (quota) cluster "p.a" can't be placed: it needs 1 member, but project "p" already holds 2 members and the quota is 2 members; ` +
					"use --queue to wait for room",
			},
		},
		{
			"what this plan admits counts", of(api.Quota{Clusters: 1}, api.Quota{}),
			func(s *scene) { s.creates("p.a", 1, 1).creates("p.b", 1, 1) },
			[]string{"p.a admit n1", `p.b wait (quota) needs 1 cluster, but project "p" already holds 1 cluster and the quota is 1 cluster; it does not delay others`},
		},
		{
			"more than the quota itself is refused, also with queue", of(api.Quota{Cores: 8, Memory: gib}, api.Quota{Cores: 4}),
			func(s *scene) { s.creates("p.a", 2, 5) },
			[]string{`p.a refuse (quota) cluster "p.a" can't be placed: it needs 10 cores, but the quota is 8 cores; needs 2GiB of memory, but the quota is 1GiB of memory`},
		},
		{
			"spares count for it", of(api.Quota{Members: 3}, api.Quota{}),
			func(s *scene) { s.creates("p.a", 2, 1, spares) },
			[]string{`p.a refuse (quota) cluster "p.a" can't be placed: it needs 4 members, but the quota is 3 members`},
		},
		{
			"a scale-up that the quota will never allow is refused", func(s *scene) {
				s.runs("p.a", 0, 4, "n1").account("p", Account{Quota: api.Quota{Cores: 8}, Used: resource.Amounts{Vector: resource.Vector{resource.Cores: 6}}})
			},
			func(s *scene) { s.asks("p.a", KindScale, 1, 5) },
			[]string{
				`p.a refuse (quota) the scale-up of cluster "p.a" can't be placed: it needs 5 cores, but the cluster already holds 4 cores and the quota is 8 cores`,
			},
		},
		{
			"what a cluster is giving back does not count against its growth", func(s *scene) {
				s.runs("p.a", 0, 4, "n1").releasing("p.a").account("p", Account{Quota: api.Quota{Cores: 8}, Used: resource.Amounts{Vector: resource.Vector{resource.Cores: 6}}})
			},
			func(s *scene) { s.asks("p.a", KindScale, 1, 5) },
			[]string{`p.a wait (quota) needs 5 cores, but project "p" already holds 6 cores and the quota is 8 cores; it does not delay others`},
		},
		{
			"a scale-up that it may allow later waits", func(s *scene) {
				s.runs("p.a", 0, 4, "n1").account("p", Account{Quota: api.Quota{Cores: 8}, Used: resource.Amounts{Vector: resource.Vector{resource.Cores: 6}}})
			},
			func(s *scene) { s.asks("p.a", KindScale, 1, 4) },
			[]string{`p.a wait (quota) needs 4 cores, but project "p" already holds 6 cores and the quota is 8 cores; it does not delay others`},
		},
		{
			"a scale-up is no new cluster", of(api.Quota{Clusters: 1}, api.Quota{Clusters: 1}),
			func(s *scene) { s.asks("p.a", KindScale, 1, 4) },
			[]string{"p.a admit n1"},
		},
		{
			"a spare waits, whatever the quota is", of(api.Quota{Members: 1}, api.Quota{Members: 1}),
			func(s *scene) { s.asks("p.a", KindSpare, 1, 4) },
			[]string{`p.a wait (quota) needs 1 member, but project "p" already holds 1 member and the quota is 1 member; it does not delay others`},
		},
		{
			"a project that used its energy gets nothing more", func(s *scene) {
				s.account("p", Account{Quota: api.Quota{EnergyJoules: 36e6}, EnergyJoules: 45e6})
			},
			func(s *scene) { s.creates("p.a", 1, 1).creates("p.b", 1, 1, noQueue).creates("q.c", 1, 1) },
			[]string{
				`p.a wait (quota) needs more room, but project "p" used 12.5 kWh in the last 30 days, and its quota is 10 kWh; it does not delay others`,
				`p.b refuse (quota) cluster "p.b" can't be placed: it needs more room, but project "p" used 12.5 kWh in the last 30 days, and its quota is 10 kWh; use --queue to wait for room`,
				"q.c admit n1",
			},
		},
		{
			"a project that used less energy than its quota", func(s *scene) {
				s.account("p", Account{Quota: api.Quota{EnergyJoules: 36e6}, EnergyJoules: 36e6 - 1})
			},
			func(s *scene) { s.creates("p.a", 1, 1) },
			[]string{"p.a admit n1"},
		},
		{
			"a replacement of a project that used its energy", func(s *scene) {
				s.account("p", Account{Quota: api.Quota{EnergyJoules: 36e6}, EnergyJoules: 36e6})
			},
			func(s *scene) { s.asks("p.a", KindHeal, 1, 1) },
			[]string{"p.a admit n1"},
		},
		{
			"devices that fill the quota", withGPUs(6, 2), func(s *scene) { s.creates("p.a", 2, 1, gpus(2)).creates("p.b", 1, 1, gpus(1)) },
			[]string{"p.a admit n1 n1", `p.b wait (quota) needs 1 gpu/slices, but project "p" already holds 6 gpu/slices and the quota is 6 gpu/slices; it does not delay others`},
		},
		{
			"more devices than the quota itself is refused, also with queue", withGPUs(6, 0), func(s *scene) { s.creates("p.a", 1, 1, gpus(7)) },
			[]string{`p.a refuse (quota) cluster "p.a" can't be placed: it needs 7 gpu/slices, but the quota is 6 gpu/slices`},
		},
		{
			"spares hold no devices", withGPUs(2, 0), func(s *scene) { s.creates("p.a", 1, 1, gpus(2), spares) },
			[]string{"p.a admit n1"},
		},
		{
			"a replacement adds no devices", withGPUs(2, 2), func(s *scene) { s.asks("p.a", KindHeal, 1, 1, gpus(2)) },
			[]string{"p.a admit n1"},
		},
		{
			"a scale-up whose cluster holds devices that leave too little of the quota", func(s *scene) {
				withGPUs(6, 4)(s)
				s.runs("p.a", 0, 4, "n1").lends("p.a", "n1", 4)
			},
			func(s *scene) { s.asks("p.a", KindScale, 1, 1, gpus(3)) },
			[]string{
				`p.a refuse (quota) the scale-up of cluster "p.a" can't be placed: it needs 3 gpu/slices, but the cluster already holds 4 gpu/slices and the quota is 6 gpu/slices`,
			},
		},
		{
			"parts of members are no members", func(s *scene) {
				withGPUs(60, 4)(s)
				s.runs("p.a", 0, 4, "n1").lends("p.a", "n1", 4)
				s.account("p", Account{Quota: api.Quota{Members: 2}, Used: resource.Amounts{Vector: resource.Vector{resource.Members: 1}}})
			},
			func(s *scene) { s.asks("p.a", KindScale, 1, 1) },
			[]string{"p.a admit n1"},
		},
		{
			"a limit that the request does not add to is no obstacle", of(api.Quota{Memory: gib, Cores: 8}, api.Quota{Memory: 5 * gib}),
			func(s *scene) { s.creates("p.a", 1, 4, func(r *Request) { r.Groups[0].Memory = 0 }) },
			[]string{"p.a admit n1"},
		},
		{
			"what the site can't hold is refused for that", of(api.Quota{Cores: 8}, api.Quota{Cores: 8}),
			func(s *scene) { s.creates("p.a", 1, 9) },
			[]string{
				`p.a refuse (cores) cluster "p.a" can't be placed: group "g" needs 1 member with 9 cores and 1GiB; more than any node of this site has: ` +
					"the largest, n1, has 8 cores; 1 member with 8 cores and 1GiB would fit if every node were up and empty",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene(t, 2)
			tt.site(s)
			tt.ask(s)
			check(t, s.plan(), tt.want...)
		})
	}
}

func TestTheProofOfAReservationCountsThoseWhoLastPastItAndNoOthers(t *testing.T) {
	two := func(r *Request) { r.Groups = append(r.Groups, testGroup("b", 1, 1, 1)) }
	s := newScene(t, 3).runs("a", time.Hour, 8, "n1").runs("c", 0, 4, "n2").creates("head", 2, 8, two)
	s.runs("d", 0, 2, "n3").creates("past", 1, 1, lasting(2*time.Hour)).creates("before", 1, 1, lasting(time.Hour))
	s.in.Requests[0].Groups[0].Size = 1
	s.in.Requests[0].Groups[1].Size = 8
	p := newPlanner(s.in)
	asks := p.order()
	p.run(asks)
	if len(p.rooms.proofs) != 1 || asks[1].verdict != Admit || asks[2].verdict != Admit {
		t.Fatalf("%d proofs, %s, %s; want 1 and both admitted", len(p.rooms.proofs), asks[1].verdict, asks[2].verdict)
	}
	// In an hour 24 - 4 - 2 cores are free, less the one of "past".
	if got := p.rooms.proofs[0].then.Capacity(testGroup("x", 1, 1, 0)).Now; got != 17 {
		t.Errorf("%d cores are free when the head starts, want 17", got)
	}
}
