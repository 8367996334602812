package usage

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
)

// weeks draws records of some months, whose ends often lie close together, and what is held since.
func weeks(t *rapid.T) (records []*api.UsageRecord, open []Open) {
	moment := func(what string) time.Time {
		if rapid.Bool().Draw(t, "near the end") {
			return midnight.Add(-time.Duration(rapid.IntRange(0, 3*3600).Draw(t, what)) * time.Second)
		}
		return midnight.Add(-time.Duration(rapid.IntRange(0, 60*24*3600).Draw(t, what)) * time.Second)
	}
	owners := rapid.IntRange(0, 3).Draw(t, "owners") // one with many records, or several
	owner := func() (project, user string) {
		return []string{"", "default", "physics", "chemistry"}[rapid.IntRange(0, owners).Draw(t, "project")],
			rapid.SampledFrom([]string{"ann", "bob"}[:1+owners/2]).Draw(t, "user")
	}
	for n := range rapid.IntRange(0, 40).Draw(t, "records") {
		r := &api.UsageRecord{Seq: 1, UID: fmt.Sprint("u", n)}
		r.Project, r.User = owner()
		for range rapid.IntRange(0, 4).Draw(t, "spans") {
			from, to := moment("from"), moment("to")
			if last := len(r.Spans) - 1; last >= 0 && rapid.Bool().Draw(t, "together") {
				from, to = r.Spans[last].From, r.Spans[last].To
			}
			if to.Before(from) {
				from, to = to, from
			}
			r.Spans = append(r.Spans, api.UsageSpan{
				Kind: rapid.SampledFrom([]api.SpanKind{api.SpanAllocated, api.SpanAllocated, api.SpanCleaning}).Draw(t, "kind"),
				From: from, To: to, Cores: rapid.IntRange(0, 64).Draw(t, "cores"),
			})
		}
		records = append(records, r)
	}
	for range rapid.IntRange(0, 4).Draw(t, "open") {
		o := Open{Assignment: &api.Assignment{Slots: make([]int, rapid.IntRange(1, 8).Draw(t, "slots")), TakenAt: moment("taken")}}
		o.Project, o.User = owner()
		if rapid.Bool().Draw(t, "released") {
			at := moment("released at")
			o.ReleasedAt = &at
		}
		open = append(open, o)
	}
	return records, open
}

// past adds up records, in their order.
func past(records []*api.UsageRecord) []*Past {
	var all []*Past
	for _, r := range records {
		project, user := Owner(r)
		i := slices.IndexFunc(all, func(p *Past) bool { return p.Project == project && p.User == user })
		if i < 0 {
			i, all = len(all), append(all, &Past{Project: project, User: user})
		}
		all[i] = all[i].Plus(r)
	}
	return all
}

// newestEnd is the newest end of what an owner used, and of everybody's.
func newestEnd(records []*api.UsageRecord) (of map[owner]time.Time, all time.Time) {
	of = map[owner]time.Time{}
	for _, r := range records {
		project, user := Owner(r)
		for _, s := range r.Spans {
			if o := (owner{project: project, user: user}); s.Kind == api.SpanAllocated && s.From.Before(s.To) {
				if s.To.After(of[o]) {
					of[o] = s.To
				}
				if s.To.After(all) {
					all = s.To
				}
			}
		}
	}
	return of, all
}

// counted is what Decay must say, added up span by span. weigh is what a stretch counts at a time.
func counted(in *Input, now func(owner) time.Time, weigh func(from, to, now time.Time) float64) map[owner]float64 {
	sums := map[owner]float64{}
	_ = in.spans(func(o *owner, s *api.UsageSpan) bool {
		who := owner{project: o.project, user: o.user}
		at := in.Now
		if o.uid != "" {
			at = now(who)
		}
		to := s.To
		if to.After(at) {
			to = at
		}
		if s.Kind == api.SpanAllocated && s.From.Before(to) {
			sums[who] += float64(s.Cores) * weigh(s.From, to, at)
		}
		return true
	})
	return sums
}

// closed is the integral of what each second counts.
func closed(from, to, now time.Time) float64 {
	rate := math.Ln2 / HalfLife.Seconds()
	return math.Exp(-rate*now.Sub(to).Seconds()) * -math.Expm1(-rate*to.Sub(from).Seconds()) / rate
}

// midpoints is the same by adding up.
func midpoints(from, to, now time.Time) float64 {
	const steps = 500
	step := to.Sub(from).Seconds() / steps
	sum := 0.0
	for i := range steps {
		ago := now.Sub(from).Seconds() - (float64(i)+0.5)*step
		sum += math.Exp2(-ago/HalfLife.Seconds()) * step
	}
	return sum
}

func same(t *rapid.T, got map[string]Decayed, want map[owner]float64, relative float64) {
	t.Helper()
	totals, users := map[string]float64{}, 0
	for who, seconds := range want {
		totals[who.project] += seconds
		if seconds > 0 {
			users++
		}
		if now := got[who.project].ByUser[who.user]; math.Abs(now-seconds) > relative*seconds {
			t.Fatalf("%s of %s: %g core-seconds, want %g", who.user, who.project, now, seconds)
		}
	}
	for project, d := range got {
		if math.Abs(d.Total-totals[project]) > relative*totals[project] {
			t.Fatalf("%s: %g core-seconds, want %g", project, d.Total, totals[project])
		}
		users -= len(d.ByUser)
	}
	if users != 0 {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestDecayedSumsAreThoseOfAllRecordsAtAnyTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		records, open := weeks(t)
		newest, end := newestEnd(records)
		if end.IsZero() {
			end = midnight
		}
		now := midnight
		switch rapid.IntRange(0, 2).Draw(t, "when") {
		case 0: // as a leader's clock, at or after the newest end
			now = now.Add(time.Duration(rapid.IntRange(0, 500*24*3600).Draw(t, "later")) * time.Second)
		case 1: // as a clock that is a little behind
			now = end.Add(-time.Duration(rapid.Int64Range(0, int64(settledAfter)).Draw(t, "behind")))
		default: // far behind
			now = now.Add(-time.Duration(rapid.IntRange(0, 61*24*3600).Draw(t, "earlier")) * time.Second)
		}
		in := Input{Now: now, Records: all(records...), Open: open}
		at := func(who owner) time.Time {
			if horizon := newest[who].Add(-settledAfter); now.Before(horizon) {
				return horizon
			}
			return now
		}
		got := Decay(now, past(records), slices.Values(open))
		same(t, got, counted(&in, at, closed), 1e-9)
		same(t, got, counted(&in, at, midpoints), 1e-3)
		shuffled := rapid.Permutation(records).Draw(t, "order")
		same(t, Decay(now, past(shuffled), slices.Values(open)), counted(&in, at, closed), 1e-9)
	})
}

func TestHalfIsLeftAfterAHalfLife(t *testing.T) {
	t.Parallel()
	r := &api.UsageRecord{Project: "physics", User: "eve", Spans: []api.UsageSpan{
		{Kind: api.SpanAllocated, From: midnight.Add(-time.Hour), To: midnight, Cores: 3}, {Kind: api.SpanCleaning, From: midnight, To: midnight.Add(time.Hour), Cores: 3},
	}}
	at := func(now time.Time) float64 {
		return Decay(now, past([]*api.UsageRecord{r}), slices.Values([]Open{}))["physics"].Total
	}
	whole := at(midnight)
	if whole <= 0.99*3*3600 || whole >= 3*3600 {
		t.Errorf("%g core-seconds of 3 cores that were held for an hour, want a little less than %d", whole, 3*3600)
	}
	for n, part := range []float64{1, 0.5, 0.25, 0.125} {
		if got := at(midnight.Add(time.Duration(n) * HalfLife)); math.Abs(got-part*whole) > 1e-9*whole {
			t.Errorf("%d half-lives later: %g, want %g", n, got, part*whole)
		}
	}
}

func TestAnOlderPastStaysAsItWasWhenTheNewestIsAddedTo(t *testing.T) {
	t.Parallel()
	record := func(n int) *api.UsageRecord {
		to := midnight.Add(time.Duration(n/2%7) * 20 * time.Minute) // those of two records began and ended together
		return &api.UsageRecord{Spans: []api.UsageSpan{{Kind: api.SpanAllocated, From: to.Add(-time.Hour), To: to, Cores: n}}}
	}
	line, values := []*Past{{}}, []float64{0}
	for n := range 200 {
		next := line[n].Plus(record(n))
		line, values = append(line, next), append(values, next.at(midnight))
	}
	for n, p := range line {
		if got := p.at(midnight); got != values[n] {
			t.Errorf("after %d records it was %g, and is %g after all", n, values[n], got)
		}
	}
	if kept := len(line[len(line)-1].late); kept >= 200 {
		t.Errorf("%d stretches are kept one by one of 200, want those of the last hour", kept)
	}
}

func BenchmarkDecayOfAYear(b *testing.B) {
	var records []*api.UsageRecord
	in := year(10_000)
	for r := range in.Records {
		records = append(records, r)
	}
	ended := past(records)
	for b.Loop() {
		Decay(in.Now, ended, slices.Values(in.Open))
	}
}
