package usage

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
)

// energyOf makes records an input.
func energyOf(records ...*api.EnergyRecord) func(from, to time.Time) iter.Seq2[*api.EnergyRecord, error] {
	return func(time.Time, time.Time) iter.Seq2[*api.EnergyRecord, error] {
		return func(yield func(*api.EnergyRecord, error) bool) {
			for _, r := range records {
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}

func measured(microjoules int64) api.EnergyAmount {
	return api.EnergyAmount{MeasuredMicrojoules: microjoules}
}

// hour is a conserved record of an hour.
func hour(node string, n int, idle, rest int64, shares ...api.EnergyShare) *api.EnergyRecord {
	from := midnight.Add(time.Duration(n) * time.Hour)
	r := &api.EnergyRecord{Node: node, Hour: from, From: from, To: from.Add(time.Hour), Idle: measured(idle), Unattributed: measured(rest), Shares: shares, KnownNanoseconds: int64(time.Hour)}
	r.Counter = r.Idle.Plus(r.Unattributed)
	for _, s := range shares {
		r.Counter = r.Counter.Plus(s.EnergyAmount)
	}
	return r
}

func used(uid, project, job string, microjoules int64) api.EnergyShare {
	return api.EnergyShare{ClusterUID: uid, Cluster: uid, Project: project, User: "ann", Job: job, EnergyAmount: measured(microjoules), MemberNanoseconds: int64(time.Hour)}
}

func TestEnergyIsReportedByClusterAndForTheSite(t *testing.T) {
	t.Parallel()
	in := Input{Now: midnight.Add(5 * time.Hour), Energy: energyOf(
		hour("n1", 0, 10e6, 5e6, used("c1", "", "", 20e6), used("c1", "", "j1", 30e6), used("c2", "physics", "", 1e6)),
		hour("n1", 1, 40e6, 0, used("c1", "", "", 10e6)),
	)}
	report, err := Report(in, midnight, midnight.Add(4*time.Hour), Hour, ByCluster)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range report.Rows {
		got = append(got, fmt.Sprintf("%d %s %s %g J of %g s", r.From.Hour(), r.Project, r.Cluster, r.Energy.MeasuredJoules, r.Energy.KnownMemberSeconds))
	}
	want := []string{"0 default c1 50 J of 7200 s", "0 physics c2 1 J of 3600 s", "1 default c1 10 J of 3600 s"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if s := report.Site[0].Energy; s == nil || s.Counter.MeasuredJoules != 66 || s.Clusters.MeasuredJoules != 51 || s.Idle.MeasuredJoules != 10 || s.Unattributed.MeasuredJoules != 5 {
		t.Errorf("the first hour of the site is %+v", s)
	}
	if report.Site[3].Energy != nil {
		t.Errorf("an hour without a record has the energy %+v, want none", report.Site[3].Energy)
	}
	in.Project = "physics"
	if report, err = Report(in, midnight, midnight.Add(4*time.Hour), Whole, ByProject); err != nil || len(report.Rows) != 1 || report.Rows[0].Energy.MeasuredJoules != 1 {
		t.Errorf("a project's report is %+v, %v; want its own joule alone", report.Rows, err)
	}
}

func TestARowWithoutEnergyIsEmptyAndNotZero(t *testing.T) {
	t.Parallel()
	in := Input{Now: at(7), Open: []Open{{UID: "u1", Cluster: "c1", Assignment: &api.Assignment{Node: "n1", Slots: []int{0}, TakenAt: at(1)}}}}
	report, err := Report(in, at(0), at(24), Whole, ByCluster)
	if err != nil || len(report.Rows) != 1 || report.Rows[0].Energy != nil {
		t.Fatalf("%+v, %v; want one row without energy", report.Rows, err)
	}
	if text, _ := CSV(report.Rows); strings.Contains(string(text), "energy") {
		t.Errorf("where no energy is known there is a column:\n%s", text)
	}
	rows := append(report.Rows, api.UsageRow{Cluster: "c2", Energy: &api.EnergyUse{EnergyJoules: api.EnergyJoules{MeasuredJoules: 2.5}, KnownMemberSeconds: 4}})
	text, err := CSV(rows)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if err != nil || len(lines) != 3 || !strings.HasSuffix(lines[0], ",energy_measured_joules,energy_modelled_joules,energy_known_member_seconds") ||
		!strings.HasSuffix(lines[1], ",,,") || !strings.HasSuffix(lines[2], ",2.5,0,4") {
		t.Errorf("got %v\n%s\nwant empty fields for the first row, 2.5,0,4 for the second", err, text)
	}
}

func TestRecordsThatCanNotBeReadAreNoQuestionsFault(t *testing.T) {
	t.Parallel()
	broken := errors.New("the disk is gone")
	in := Input{Now: at(7), Energy: func(time.Time, time.Time) iter.Seq2[*api.EnergyRecord, error] {
		return func(yield func(*api.EnergyRecord, error) bool) { yield(nil, broken) }
	}}
	if _, err := Report(in, at(0), at(1), Whole, ByAll); !errors.Is(err, ErrRecords) || !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if _, _, err := EnergyOf(in, at(0), at(1)); !errors.Is(err, ErrRecords) {
		t.Errorf("got %v", err)
	}
}

// However time is cut, the parts add up to the whole, and each is conserved.
func TestEnergyOfAdjoiningTimesAddsUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.Int64Range(0, math.MaxInt64/1000)
		var records []*api.EnergyRecord
		for n := range rapid.IntRange(1, 6).Draw(t, "hours") {
			r := hour("n1", n, amount.Draw(t, "idle"), amount.Draw(t, "rest"), used("c1", "", "", amount.Draw(t, "c1")), used("c2", "", "", amount.Draw(t, "c2")))
			r.From = r.From.Add(-time.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(t, "earlier")))
			if rapid.IntRange(0, 9).Draw(t, "moment") == 0 {
				r.From = r.To
			}
			records = append(records, r)
		}
		in := Input{Now: midnight.AddDate(0, 0, 2), Energy: energyOf(records...)}
		begin, end := midnight.Add(-3*time.Hour), midnight.AddDate(0, 0, 1)
		cuts := []time.Time{begin}
		for range rapid.IntRange(0, 5).Draw(t, "cuts") {
			cuts = append(cuts, begin.Add(time.Duration(rapid.Int64Range(0, int64(end.Sub(begin))).Draw(t, "cut"))))
		}
		cuts = append(cuts, end)
		slices.SortFunc(cuts, time.Time.Compare)
		cuts = slices.CompactFunc(cuts, time.Time.Equal)
		var want, got tagged
		for _, r := range records {
			want.add(r.Counter)
		}
		for n := range len(cuts) - 1 {
			sums, err := add(&in, cuts[n], cuts[n+1], Whole, ByCluster)
			if err != nil {
				t.Fatal(err)
			}
			s := sums.energy[0]
			for _, part := range []tagged{s.clusters, s.idle, s.unattributed} {
				if part.measured.whole < 0 || part.measured.micro < 0 {
					t.Fatalf("a part is negative: %+v", s)
				}
				got.measured.add(part.measured.micro)
				got.measured.whole += part.measured.whole
			}
		}
		if got != want {
			t.Fatalf("the parts between %v add up to %+v, want %+v", cuts, got, want)
		}
	})
}

func TestEnergyByNodeAndJobIsConserved(t *testing.T) {
	t.Parallel()
	in := Input{Now: at(24), Energy: energyOf(
		hour("n1", 0, 10e6, 5e6, used("c1", "", "", 20e6), used("c1", "", "j1", 30e6)),
		&api.EnergyRecord{Node: "n2", Hour: midnight, From: midnight, To: midnight.Add(time.Hour), UnknownNanoseconds: int64(time.Hour)},
	)}
	nodes, clusters, err := EnergyOf(in, midnight, midnight.Add(time.Hour))
	if err != nil || len(clusters) != 2 || clusters[1].Job != "j1" || clusters[1].MeasuredMicrojoules != 30e6 {
		t.Fatalf("%+v, %v", clusters, err)
	}
	n1 := nodes["n1"]
	if *n1.Counter != measured(65e6) || *n1.Clusters != measured(50e6) || *n1.Idle != measured(10e6) || *n1.Unattributed != measured(5e6) {
		t.Errorf("node n1 is %+v", n1)
	}
	if n2 := nodes["n2"]; n2.Counter != nil || n2.UnknownNodeSeconds != 3600 {
		t.Errorf("a node without a reading is %+v; want no counter at all, and an hour unknown", n2)
	}
}

func TestANewerRecordTakesThePlaceOfTheStoredOne(t *testing.T) {
	t.Parallel()
	old, other := hour("n1", 0, 1e6, 0), hour("n2", 0, 7e6, 0)
	old.To = old.From.Add(time.Minute)
	newer, next := *hour("n1", 0, 2e6, 0), *hour("n1", 1, 4e6, 0)
	sum := int64(0)
	for r, err := range WithEnergy(energyOf(old, other)(midnight, midnight), []api.EnergyRecord{newer, next}) {
		if err != nil {
			t.Fatal(err)
		}
		sum += r.Idle.MeasuredMicrojoules
	}
	if sum != 13e6 {
		t.Errorf("%d uJ, want 2 + 4 J of n1 and 7 J of n2", sum)
	}
}

func TestRecordsOfADayBecomeOneThatHoldsAsMuch(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var records []*api.EnergyRecord
		amount := rapid.Int64Range(0, 1e15)
		for n := range rapid.IntRange(1, 24).Draw(t, "hours") {
			var shares []api.EnergyShare
			for j := range rapid.IntRange(0, 3).Draw(t, "jobs") {
				shares = append(shares, used(rapid.SampledFrom([]string{"c1", "c2"}).Draw(t, "cluster"), "", fmt.Sprint("j", n%3, j), amount.Draw(t, "used")))
			}
			records = append(records, hour("n1", n, amount.Draw(t, "idle"), amount.Draw(t, "rest"), shares...))
		}
		merged := MergeEnergy(records)
		sum := merged.Idle.Plus(merged.Unattributed)
		for _, s := range merged.Shares {
			sum = sum.Plus(s.EnergyAmount)
		}
		var want api.EnergyAmount
		for _, r := range records {
			want = want.Plus(r.Counter)
		}
		if merged.Counter != want || sum != want || !merged.From.Equal(records[0].From) || !merged.To.Equal(records[len(records)-1].To) {
			t.Fatalf("got %+v, whose parts add up to %+v; want %+v", merged, sum, want)
		}
	})
}

func TestADaysJobsWithoutNumberDoNotFillItsRecord(t *testing.T) {
	t.Parallel()
	var records []*api.EnergyRecord
	for n := range 24 {
		var shares []api.EnergyShare
		for j := range 1000 {
			shares = append(shares, used("c1", "", fmt.Sprint("j", n, "-", j), 1))
		}
		records = append(records, hour("n1", n, 0, 0, shares...))
	}
	merged := MergeEnergy(records)
	sum := int64(0)
	for _, s := range merged.Shares {
		sum += s.MeasuredMicrojoules
	}
	if len(merged.Shares) > mostMergedShares+1 || sum != 24_000 {
		t.Errorf("%d shares with %d uJ; want %d at most, with all 24000", len(merged.Shares), sum, mostMergedShares+1)
	}
}
