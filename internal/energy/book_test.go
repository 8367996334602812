package energy

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// sample is what a node of two CPUs says after some seconds of a run, of which all members' time is given in seconds.
func sample(run string, seconds, joules float64, members map[string]float64) *api.EnergySample {
	s := &api.EnergySample{Run: run, ElapsedNanoseconds: int64(seconds * 1e9), CPUs: 2, Processor: "P", Members: map[string]int64{}}
	for id, worked := range members {
		s.Members[id] = int64(worked * 1e9)
		s.BusyNanoseconds += s.Members[id]
	}
	s.Counters = []api.EnergyCounter{{EnergyReading: api.EnergyReading{Source: api.EnergyRAPL, Tag: api.EnergyMeasured}, Microjoules: int64(joules * 1e6)}}
	return s
}

func world(jobs ...string) World {
	return World{Owners: map[string]Owner{
		"a.m-0.1": {ClusterUID: "ua", Cluster: "a", User: "ann", Jobs: jobs}, "b.m-0.1": {ClusterUID: "ub", Cluster: "b", User: "bob"},
	}}
}

// conserved fails if a record's parts do not add up.
func conserved(t interface{ Fatalf(string, ...any) }, r *api.EnergyRecord) {
	sum := r.Idle.Plus(r.Unattributed)
	for _, s := range r.Shares {
		sum = sum.Plus(s.EnergyAmount)
	}
	if sum != r.Counter {
		t.Fatalf("the parts of %s at %s add up to %+v, and %+v was counted: %+v", r.Node, r.Hour, sum, r.Counter, r)
	}
}

func share(r api.EnergyRecord, cluster, job string) api.EnergyShare {
	for _, s := range r.Shares {
		if s.Cluster == cluster && s.Job == job {
			return s
		}
	}
	return api.EnergyShare{}
}

func TestEnergyGoesToTheClusterThatWorked(t *testing.T) {
	t.Parallel()
	b := NewBook()
	b.Take("n1", sample("r", 0, 0, map[string]float64{"a.m-0.1": 0, "b.m-0.1": 0}), world(), noon)
	b.Take("n1", sample("r", 10, 400, map[string]float64{"a.m-0.1": 10, "b.m-0.1": 0}), world(), noon.Add(10*time.Second))
	r := b.Records()[0]
	conserved(t, &r)
	if got := share(r, "a", "").MeasuredMicrojoules; got != 200e6 {
		t.Errorf("the cluster that kept one of two CPUs busy has %d uJ of 400 J, want half", got)
	}
	if got := share(r, "b", ""); got.MeasuredMicrojoules != 0 || got.MemberNanoseconds != 10e9 {
		t.Errorf("the idle cluster has %+v, want no energy that is known for 10 s", got)
	}
	n, _ := b.Node("n1")
	if n.Tag != api.EnergyMeasured || n.Watts == nil || *n.Watts != 40 || len(n.Points) != 1 || *n.Points[0].Watts != 40 || *n.Points[0].CPUCores != 1 {
		t.Errorf("the node is %+v; want 40 W measured, with a point of 1 core", n)
	}
}

func TestAMemberThatWasNotReadOnceGetsNotTheEnergyOfItsPast(t *testing.T) {
	t.Parallel()
	b := NewBook()
	b.Take("n1", sample("r", 0, 0, map[string]float64{"a.m-0.1": 5000}), world(), noon)
	b.Take("n1", sample("r", 5, 100, map[string]float64{}), world(), noon.Add(5*time.Second))
	b.Take("n1", sample("r", 10, 200, map[string]float64{"a.m-0.1": 5001}), world(), noon.Add(10*time.Second))
	b.Take("n1", sample("r", 15, 300, map[string]float64{"a.m-0.1": 5001, "b.m-0.1": 5}), world(), noon.Add(15*time.Second))
	r := b.Records()[0]
	conserved(t, &r)
	if one, two := share(r, "a", "").MeasuredMicrojoules, share(r, "b", "").MeasuredMicrojoules; one != 0 || two != 50e6 {
		t.Errorf("the clusters have %d and %d uJ; want none for what was not read, and 50 J for the member that came", one, two)
	}
}

func TestJobsThatRunAtOnceHaveEqualParts(t *testing.T) {
	t.Parallel()
	b := NewBook()
	b.Take("n1", sample("r", 0, 0, map[string]float64{"a.m-0.1": 0}), world(), noon)
	b.Take("n1", sample("r", 5, 100, map[string]float64{"a.m-0.1": 10}), world("j1", "j2"), noon.Add(5*time.Second))
	b.Take("n1", sample("r", 10, 200, map[string]float64{"a.m-0.1": 20}), world("j2"), noon.Add(10*time.Second))
	r := b.Records()[0]
	conserved(t, &r)
	if one, two := share(r, "a", "j1").MeasuredMicrojoules, share(r, "a", "j2").MeasuredMicrojoules; one != 50e6 || two != 150e6 {
		t.Errorf("the jobs have %d and %d uJ, want 50 J and 150 J", one, two)
	}
}

func TestNoReadingIsUnavailableWithItsReasonAndNoEnergyOfZero(t *testing.T) {
	t.Parallel()
	good := func(seconds, joules float64) *api.EnergySample { return sample("r", seconds, joules, nil) }
	for _, c := range []struct {
		name          string
		before, after func() *api.EnergySample
		bmc           *api.EnergyReading
		says          string
	}{
		{"a source that can't be read", func() *api.EnergySample { return good(0, 0) }, func() *api.EnergySample {
			s := good(5, 0)
			s.Counters[0].EnergyReading = api.EnergyReading{Source: api.EnergyRAPL, Tag: api.EnergyUnavailable, Reason: "only root may"}
			return s
		}, nil, "rapl: only root may"},
		{"no source at all", func() *api.EnergySample { return good(0, 0) }, func() *api.EnergySample { s := good(5, 0); s.Counters = nil; return s }, nil, "no source"},
		{"a counter that began anew", func() *api.EnergySample { return good(0, 50) }, func() *api.EnergySample { s := good(5, 60); s.Counters[0].Breaks = 1; return s }, nil, "began again"},
		{"a counter that fell", func() *api.EnergySample { return good(0, 50) }, func() *api.EnergySample { return good(5, 40) }, nil, "began again"},
		{"a counter that says too much", func() *api.EnergySample { return good(0, 0) }, func() *api.EnergySample { return good(5, 1e10) }, nil, "more than a machine"},
		{"another run of the agent", func() *api.EnergySample { return sample("former", 3, 50, nil) }, func() *api.EnergySample { return good(5, 60) }, nil, "started again"},
		{
			"a BMC that does not answer", func() *api.EnergySample { s := good(0, 0); s.Counters = nil; return s }, func() *api.EnergySample { s := good(5, 0); s.Counters = nil; return s },
			&api.EnergyReading{Source: api.EnergyBMC, Tag: api.EnergyUnavailable, Reason: "the BMC does not answer"}, "bmc: the BMC does not answer",
		},
	} {
		b := NewBook()
		b.Take("n1", c.before(), World{BMC: c.bmc}, noon)
		b.Take("n1", c.after(), World{BMC: c.bmc}, noon.Add(5*time.Second))
		n, _ := b.Node("n1")
		if n.Tag != api.EnergyUnavailable || n.Watts != nil || !strings.Contains(n.Reason, c.says) {
			t.Errorf("%s: got %s, %v, %q; want it unavailable without a power, and %q", c.name, n.Tag, n.Watts, n.Reason, c.says)
		}
		r := b.Records()[0]
		if r.KnownNanoseconds != 0 || r.UnknownNanoseconds != 5e9 || len(r.Shares) != 0 {
			t.Errorf("%s: the record is %+v; want 5 s unknown and none known", c.name, r)
		}
	}
}

func TestTheWholeMachineGoesBeforeItsProcessors(t *testing.T) {
	t.Parallel()
	watts := 300.0
	bmc := &api.EnergyReading{Source: api.EnergyBMC, Tag: api.EnergyMeasured, Watts: &watts}
	b := NewBook()
	b.Take("n1", sample("r", 0, 0, nil), World{BMC: bmc}, noon)
	b.Take("n1", sample("r", 10, 400, nil), World{BMC: bmc}, noon.Add(10*time.Second))
	r := b.Records()[0]
	if n, _ := b.Node("n1"); n.Source != api.EnergyBMC || r.Counter.MeasuredMicrojoules != 3000e6 || len(n.Readings) != 2 {
		t.Errorf("got %s with %d uJ and %d readings; want 3 kJ by the BMC, and both readings", n.Source, r.Counter.MeasuredMicrojoules, len(n.Readings))
	}
}

func TestALeaderGoesOnFromWhatIsStored(t *testing.T) {
	t.Parallel()
	first := NewBook()
	first.Take("n1", sample("r", 0, 0, map[string]float64{"a.m-0.1": 0}), world(), noon)
	first.Take("n1", sample("r", 5, 100, map[string]float64{"a.m-0.1": 10}), world(), noon.Add(5*time.Second))
	second := NewBook()
	second.Open(first.Pending())
	second.Take("n1", sample("r", 65, 1300, map[string]float64{"a.m-0.1": 130}), world(), noon.Add(65*time.Second))
	r := second.Records()[0]
	conserved(t, &r)
	if r.Counter.MeasuredMicrojoules != 1300e6 || share(r, "a", "").MeasuredMicrojoules != 1300e6 || r.UnknownNanoseconds != 0 {
		t.Errorf("the record is %+v; want all 1300 J, the minute between both leaders included", r)
	}
}

func TestAnHourThatIsOverIsStoredOnceMoreAndThenForgotten(t *testing.T) {
	t.Parallel()
	b := NewBook()
	b.Take("n1", sample("r", 0, 0, nil), World{}, noon)
	b.Take("n1", sample("r", 5, 100, nil), World{}, noon.Add(time.Hour))
	b.Take("n1", sample("r", 10, 200, nil), World{}, noon.Add(time.Hour-time.Second)) // the clock goes back
	pending := b.Pending()
	if len(pending) != 2 || !pending[0].Hour.Equal(noon) || !pending[1].Hour.Equal(noon.Add(time.Hour)) || pending[0].Mark != nil || pending[1].Mark == nil {
		t.Fatalf("pending are %+v; want both hours, the mark in the newer one", pending)
	}
	if pending[1].Counter.MeasuredMicrojoules != 200e6 {
		t.Errorf("the newer hour has %d uJ, want all 200 J", pending[1].Counter.MeasuredMicrojoules)
	}
	for i := range pending {
		b.Stored(&pending[i])
	}
	if left := b.Pending(); len(left) != 0 || len(b.Records()) != 1 {
		t.Errorf("%d records are pending and %d there, want none and the present one", len(left), len(b.Records()))
	}
}

func TestJobsWithoutNumberDoNotFillARecord(t *testing.T) {
	t.Parallel()
	b := NewBook()
	b.Take("n1", sample("r", 0, 0, map[string]float64{"a.m-0.1": 0}), world(), noon)
	for n := range mostShares + 100 {
		s := float64(n + 1)
		b.Take("n1", sample("r", s, s*10, map[string]float64{"a.m-0.1": s}), world(fmt.Sprint("j", n)), noon.Add(time.Duration(n)*time.Second))
	}
	r := b.Records()[0]
	conserved(t, &r)
	if len(r.Shares) > mostShares+1 || share(r, "a", "").MeasuredMicrojoules == 0 {
		t.Errorf("the record has %d shares, want %d at most, and the rest in that of the cluster", len(r.Shares), mostShares+1)
	}
}

// The book keeps all that a node counted, whatever happens in between.
func TestEnergyIsConservedThroughMembersJobsBreaksAndLeaders(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := NewBook()
		run, seconds, joules, breaks := 1, 0.0, 0.0, int64(0)
		worked := map[string]float64{}
		now := noon
		counted := 0.0
		stored := map[int64]api.EnergyRecord{}
		known := false // the counter goes on from the sample before
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			step := rapid.Float64Range(0.1, 900).Draw(t, "step")
			seconds, now = seconds+step, now.Add(time.Duration(step*1e9))
			used := float64(rapid.Int64Range(0, int64(step*200e6)).Draw(t, "used")) / 1e6
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				worked[rapid.SampledFrom([]string{"a.m-0.1", "b.m-0.1", "stranger"}).Draw(t, "comes")] = 0
			case 1:
				delete(worked, rapid.SampledFrom([]string{"a.m-0.1", "b.m-0.1", "stranger"}).Draw(t, "goes"))
			case 2:
				breaks++
				known = false
			case 3:
				run, seconds, joules, breaks, known = run+1, 0, 0, 0, false
			case 4: // another leader
				for _, r := range b.Pending() {
					stored[r.Hour.Unix()] = r
					b.Stored(&r)
				}
				newest := b.Records()
				b = NewBook()
				b.Open(newest)
			}
			joules += used
			for id := range worked {
				worked[id] += rapid.Float64Range(0, step).Draw(t, "worked")
			}
			s := sample(fmt.Sprint(run), seconds, 0, worked)
			s.Counters[0].Microjoules, s.Counters[0].Breaks = int64(joules*1e6+0.5), breaks
			if known {
				counted += used
			}
			known = true
			jobs := []string{"j1", "j2", "j3"}[:rapid.IntRange(0, 3).Draw(t, "jobs")]
			b.Take("n1", s, world(jobs...), now)
			for _, r := range b.Pending() {
				conserved(t, &r)
			}
		}
		for _, r := range b.Pending() {
			stored[r.Hour.Unix()] = r
		}
		sum := 0.0
		for _, r := range stored {
			conserved(t, &r)
			sum += float64(r.Counter.MeasuredMicrojoules) / 1e6
		}
		if diff := sum - counted; diff > 1e-3 || diff < -1e-3 {
			t.Fatalf("the records have %f J, and the counters went on by %f J", sum, counted)
		}
	})
}

func TestANodeWithoutSourceIsModelledByItsLikeAndSaysSo(t *testing.T) {
	t.Parallel()
	b := NewBook()
	joules := 0.0
	worked := 0.0
	silent := func(seconds, worked float64) *api.EnergySample {
		s := sample("r", seconds, 0, map[string]float64{"b.m-0.1": worked})
		s.Counters = []api.EnergyCounter{{EnergyReading: api.EnergyReading{Source: api.EnergyRAPL, Tag: api.EnergyUnavailable, Reason: "no counters"}}}
		return s
	}
	for n := range fewestPoints + 2 {
		s := float64(n * 5)
		if n > 0 {
			u := float64(n%3) / 2 // of both CPUs: idle, half, full
			worked += 2 * 5 * u
			joules += 5 * (100 + 60*u)
		}
		if n == fewestPoints-1 {
			b.Take("n2", silent(s, 0), world(), noon.Add(time.Duration(s)*time.Second))
			b.Take("n2", silent(s+1, 0), world(), noon.Add(time.Duration(s+1)*time.Second))
			if got, _ := b.Node("n2"); got.Tag != api.EnergyUnavailable || got.Watts != nil {
				t.Fatalf("after %d readings of its like, the node is %+v; want it unavailable", n-1, got)
			}
		}
		b.Take("n1", sample("r", s, joules, map[string]float64{"a.m-0.1": worked}), world(), noon.Add(time.Duration(s)*time.Second))
	}
	s := float64((fewestPoints + 2) * 5)
	b.Take("n2", silent(s, 0), world(), noon.Add(time.Duration(s)*time.Second))
	b.Take("n2", silent(s+10, 5), world(), noon.Add(time.Duration(s+10)*time.Second)) // a quarter of both CPUs
	got, _ := b.Node("n2")
	if got.Tag != api.EnergyModelled || got.Source != api.EnergyModel || got.Watts == nil || *got.Watts < 114.9 || *got.Watts > 115.1 || !strings.Contains(got.Reason, "100 W + 60 W x utilization") {
		t.Fatalf("the node is %s by %s, %v W, %q; want 115 W modelled from 100 W + 60 W x utilization", got.Tag, got.Source, got.Watts, got.Reason)
	}
	if idle, slope, cpus, ok := b.Power("n2"); !ok || math.Abs(idle-100) > 0.1 || math.Abs(slope-60) > 0.1 || cpus != 2 {
		t.Errorf("its power is %g W + %g W on %d CPUs, known %v; want 100 W + 60 W on 2", idle, slope, cpus, ok)
	}
	if _, _, _, ok := b.Power("n3"); ok {
		t.Error("the power of a node that nobody has heard of is known")
	}
	for _, r := range b.Records() {
		conserved(t, &r)
		if r.Node == "n2" && (r.Counter.MeasuredMicrojoules != 0 || r.Counter.ModelledMicrojoules == 0) {
			t.Errorf("the modelled node's record is %+v; want nothing measured", r.Counter)
		}
	}
}

func TestWhatIsItselfModelledTeachesNothing(t *testing.T) {
	t.Parallel()
	c := calibration{}
	watts := 50.0
	for _, tag := range []api.EnergyTag{api.EnergyModelled, api.EnergyUnavailable} {
		c.learn(sample("r", 1, 1, nil), interval{ns: 1e9, use: Use{Capacity: 2e6}, reading: api.EnergyReading{Source: api.EnergyRAPL, Tag: tag, Watts: &watts}})
	}
	if len(c) != 0 {
		t.Errorf("it learned %+v", c)
	}
	c.learn(sample("r", 1, 1, nil), interval{ns: 1e9, use: Use{Capacity: 2e6}, reading: api.EnergyReading{Source: api.EnergyRAPL, Tag: api.EnergyMeasured, Watts: &watts}})
	if len(c) != 1 {
		t.Error("a measurement taught nothing")
	}
}

func TestAModelNeedsReadingsOfSeveralUtilizations(t *testing.T) {
	t.Parallel()
	var f fit
	for n := range 10 * fewestPoints {
		f.add(0.5+float64(n%2)/10, 100+2*float64(n%2))
	}
	if _, _, ok := f.line(); ok {
		t.Error("a line was drawn through nearly one utilization")
	}
	f.add(0.5+leastSpread, 150)
	if _, _, ok := f.line(); !ok {
		t.Error("no line was drawn through two utilizations")
	}
}

func TestWhatNoAgentCanHaveReadIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*api.EnergySample){
		"time before its run":    func(s *api.EnergySample) { s.ElapsedNanoseconds = -1 },
		"no CPU":                 func(s *api.EnergySample) { s.CPUs = 0 },
		"CPUs without number":    func(s *api.EnergySample) { s.CPUs = 1 << 30 },
		"negative work":          func(s *api.EnergySample) { s.BusyNanoseconds = -1 },
		"a member that unworked": func(s *api.EnergySample) { s.Members = map[string]int64{"a": -1} },
		"a negative counter":     func(s *api.EnergySample) { s.Counters[0].Microjoules = -1 },
		"too many counters":      func(s *api.EnergySample) { s.Counters = make([]api.EnergyCounter, 50) },
	} {
		s := sample("r", 1, 1, nil)
		if !Sensible(s) {
			t.Fatal("a good sample is refused")
		}
		if change(s); Sensible(s) {
			t.Errorf("%s is not refused", name)
		}
	}
}
