package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/energy"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// sampled is a sample of two CPUs after some seconds at 100 W, in which each member kept a CPU busy.
func sampled(view *state.View, seconds int64) *api.EnergySample {
	s := &api.EnergySample{Run: "r", ElapsedNanoseconds: seconds * 1e9, CPUs: 2, Members: map[string]int64{"stranger": 0}}
	for _, c := range view.Clusters {
		for a := range c.AllWithRef() {
			s.Members[a.ID] = seconds * 1e9
			s.BusyNanoseconds += seconds * 1e9
		}
	}
	s.Counters = []api.EnergyCounter{{EnergyReading: api.EnergyReading{Source: api.EnergyRAPL, Tag: api.EnergyMeasured}, Microjoules: seconds * 100e6}}
	return s
}

func TestEnergyGoesToClustersAndJobsAlsoWhileMembersAreCleanedAndUnderTheNextLeader(t *testing.T) {
	t.Parallel()
	l := newLed(t, memory.New())
	l.node("n1", 4)
	l.want("c1")
	l.mustPass()
	l.report(api.MemberReady)
	view := l.mustPass()
	e := &Energy{Book: energy.NewBook()}
	seconds := int64(0)
	e.Sample = func(string) (*api.EnergySample, time.Time) { return sampled(l.cache.View(), seconds), l.now }
	take := func(view *state.View) {
		takeEnergy(e, view, l.now, l.now)
		seconds, l.now = seconds+10, l.now.Add(10*time.Second)
	}
	take(view)
	take(view)
	l.view(l.repo.CreateJob(t.Context(), api.Job{ID: "j1", Cluster: "c1", ClusterUID: "uc1", Phase: api.JobPending, CreatedAt: l.now}))
	_, revision, err := l.leader.UpdateJob(t.Context(), "j1", func(j *api.Job) error { j.Phase = api.JobRunning; return nil })
	if err != nil {
		t.Fatal(err)
	}
	view = l.view(revision, nil)
	take(view)
	// The next leader has what this one stored, and nothing else.
	if err := l.lead.storeEnergy(t.Context(), e.Book); err != nil {
		t.Fatal(err)
	}
	l.campaign()
	newest, err := l.leader.NewestEnergy(t.Context(), l.now.Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	e.Book = energy.NewBook()
	e.Book.Open(newest)
	take(view)
	records := e.Book.Records()
	if len(records) != 1 {
		t.Fatalf("%d records, want one: %+v", len(records), records)
	}
	got := map[string]int64{}
	for _, s := range records[0].Shares {
		if s.Cluster != "c1" || s.ClusterUID != "uc1" {
			t.Errorf("a share is of %s (%s)", s.Cluster, s.ClusterUID)
		}
		got[s.Job] = s.MeasuredMicrojoules
	}
	if got[""] != 500e6 || got["j1"] != 1000e6 || records[0].Counter.MeasuredMicrojoules != 3000e6 || records[0].Idle.MeasuredMicrojoules != 1500e6 {
		t.Errorf("the shares are %v of %+v; want half of 1 kJ before the job, and of 2 kJ with it", got, records[0].Counter)
	}
}

func TestABMCCountsWhileItsReadingIsFresh(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC)
	watts := 250.0
	read := &api.MachineSensors{State: api.SensorOK, ReadAt: at, Sensors: []api.Sensor{{Name: "Power", Kind: api.SensorPower, Unit: api.UnitWatts, Value: &watts}}}
	e := &Energy{Sensors: func(string) *api.MachineSensors { return read }}
	m := &state.Machine{}
	if got := e.bmc(m, at.Add(time.Minute)); got == nil || got.Tag != api.EnergyMeasured || *got.Watts != 250 {
		t.Errorf("got %+v, want 250 W", got)
	}
	if got := e.bmc(m, at.Add(time.Hour)); got.Tag != api.EnergyUnavailable || got.Watts != nil || got.Reason == "" {
		t.Errorf("after an hour without a reading: %+v", got)
	}
	read.State, read.Message = api.SensorUnavailable, "the BMC does not answer"
	if got := e.bmc(m, at.Add(time.Minute)); got.Tag != api.EnergyUnavailable || got.Watts != nil || got.Reason != "the BMC does not answer" {
		t.Errorf("of a BMC that is silent: %+v", got)
	}
	if got := e.bmc(nil, at); got != nil {
		t.Errorf("a node that is no machine has the BMC %+v", got)
	}
}

func TestAllThatTheBMCOfAMembersMachineSaysIsTheMembers(t *testing.T) {
	t.Parallel()
	l := newLed(t, memory.New())
	l.node("n1", 4)
	view := l.want("c1")
	l.view(l.leader.Commit(t.Context(), view.Cluster("c1"), state.Write{
		Record: api.ClusterRecord{UID: "uc1", Name: "c1", Generation: 1, Phase: api.ClusterStarting},
		Add:    []state.Batch{{Assignments: []api.Assignment{{ID: "uc1.c1-0.1", Cluster: "c1", ClusterUID: "uc1", Member: "c1-0", Node: "n1", Generation: 1, Whole: true}}}},
	}))
	e := &Energy{Book: energy.NewBook(), run: "leader 1", began: l.now}
	watts := 300.0
	for seconds := range 3 {
		at := l.now.Add(time.Duration(seconds) * 10 * time.Second)
		sample := e.whole(l.cache.View(), "n1", at)
		if sample == nil {
			t.Fatal("the machine's member is not seen")
		}
		e.Book.Take("n1", sample, energy.World{Owners: e.ownersOn(l.cache.View(), "n1", at), BMC: &api.EnergyReading{Source: api.EnergyBMC, Tag: api.EnergyMeasured, Watts: &watts}}, at)
	}
	records := e.Book.Records()
	if len(records) != 1 || len(records[0].Shares) != 1 || records[0].Shares[0].MeasuredMicrojoules != 6000e6 || records[0].Counter.MeasuredMicrojoules != 6000e6 {
		t.Errorf("got %+v; want 6 kJ, all of cluster c1", records)
	}
	if e.whole(l.cache.View(), "n2", l.now) != nil {
		t.Error("a node that no member has whole has a sample")
	}
}

// The leader looks at a sample up to one pause after it was sent: a job that has ended meanwhile worked in its time all the same.
func TestAJobThatHasEndedSinceTheSampleHasItsEnergy(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC)
	e := &Energy{}
	look := func(after time.Duration, running ...string) {
		view := &state.View{}
		for _, id := range running {
			view.Jobs = append(view.Jobs, &api.Job{ID: id, ClusterUID: "uc1", Phase: api.JobRunning})
		}
		e.seeJobs(view, at.Add(after))
	}
	look(0, "b")
	look(5*time.Second, "b", "c")
	look(10*time.Second, "a")
	for heard, want := range map[time.Duration][]string{
		5 * time.Second:  {"a", "b", "c"}, // a may have begun before it was seen
		9 * time.Second:  {"a", "b", "c"},
		11 * time.Second: {"a"},
	} {
		if got := e.jobsAt("uc1", at.Add(heard)); !slices.Equal(got, want) {
			t.Errorf("in the time of a sample after %v ran %v, want %v", heard, got, want)
		}
	}
	look(30*time.Second, "a")
	if got := e.ran["uc1"]; len(got) != 1 || got[0].id != "a" {
		t.Errorf("what is remembered after half a minute: %+v", got)
	}
}

func TestAProjectThatUsedItsEnergyWaits(t *testing.T) {
	t.Parallel()
	l := newLed(t, memory.New())
	l.node("n1", 4)
	used := func(before time.Duration, joules int64) {
		t.Helper()
		l.view(l.leader.PutEnergy(t.Context(), []api.EnergyRecord{{Node: "n1", Hour: l.now.Add(-before).UTC().Truncate(time.Hour), Shares: []api.EnergyShare{
			{ClusterUID: "u", Cluster: "c", EnergyAmount: api.EnergyAmount{ModelledMicrojoules: joules * 1e6}},
		}}}))
		l.now = l.now.Add(time.Minute)
	}
	used(48*time.Hour, 600)
	if sums, err := l.cache.EnergyUsed(t.Context(), l.now); err != nil || sums != nil {
		t.Errorf("%v, %v: energy is added up though no quota bounds it", sums, err)
	}
	_, revision, err := l.repo.UpdateProject(t.Context(), api.DefaultProject, func(p *api.Project) error { p.Quota.EnergyJoules = 1000; return nil })
	l.view(revision, err)
	l.want("a")
	if c := l.mustPass().Cluster("a"); c.Record.PlacedAt == nil {
		t.Fatalf("the cluster is %s with 600 of 1000 J used, want it placed: %s", c.Record.Phase, c.Record.Message)
	}
	used(0, 300)
	l.mustPass()
	used(0, 400) // the hour goes on
	l.wait("b")
	l.mustPass()
	if c := l.mustPass().Cluster("b"); c.Record.PlacedAt != nil || !strings.Contains(l.explained("b"), "used 0.0002778 kWh in the last 30 days") {
		t.Errorf("the cluster is %s with 1000 of 1000 J used, want it to wait: %s", c.Record.Phase, l.explained("b"))
	}
	l.now = l.now.Add(api.EnergyWindow - 46*time.Hour)
	l.mustPass()
	if c := l.mustPass().Cluster("b"); c.Record.PlacedAt == nil {
		t.Errorf("the cluster is %s 28 days later, want it placed: %s", c.Record.Phase, l.explained("b"))
	}
}
