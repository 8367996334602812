package condition

import (
	"math"
	"testing"
	"time"
)

// fates are those of packets that come at equal distances.
func fates(c Condition, packets, bytes int, apart time.Duration) []fate {
	m, all := newModel(c), make([]fate, packets)
	for i := range all {
		all[i] = m.next(time.Duration(i)*apart, bytes)
	}
	return all
}

func count(all []fate, is func(fate) bool) (n int) {
	for _, f := range all {
		if is(f) {
			n++
		}
	}
	return n
}

// within fails unless a count of independent events of this chance is less than six standard deviations off, which one run of a billion is.
func within(t *testing.T, what string, got, of int, chance float64) {
	t.Helper()
	mean := chance * float64(of)
	if off := math.Abs(float64(got) - mean); off > 6*math.Sqrt(mean*(1-chance)) {
		t.Errorf("%s: %d of %d packets, want about %.0f", what, got, of, mean)
	}
}

func TestChancesAreThoseOfTheCondition(t *testing.T) {
	const packets = 200_000
	c := Condition{Delay: 10 * time.Millisecond, Loss: 0.02, Duplicate: 0.01, Corrupt: 0.005, Reorder: 0.25, Seed: 7}
	all := fates(c, packets, 100, time.Millisecond)
	through := count(all, func(f fate) bool { return !f.lost })
	within(t, "lost", packets-through, packets, c.Loss)
	within(t, "duplicated", count(all, func(f fate) bool { return f.duplicated }), through, c.Duplicate)
	within(t, "corrupted", count(all, func(f fate) bool { return f.corrupted }), through, c.Corrupt)
	within(t, "overtaking", count(all, func(f fate) bool { return f.overtakes }), through, c.Reorder)
	for _, f := range all {
		if f.corrupted && (f.bit < 0 || f.bit >= 800) {
			t.Fatalf("bit %d of a packet of 100 B is turned over", f.bit)
		}
	}
}

func TestASeedRepeatsARun(t *testing.T) {
	c := Condition{Delay: 10 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.1, Duplicate: 0.1, Seed: 1}
	first, second := fates(c, 1000, 100, time.Millisecond), fates(c, 1000, 100, time.Millisecond)
	c.Seed = 2
	other, differ := fates(c, 1000, 100, time.Millisecond), 0
	for i := range first {
		if first[i] != second[i] {
			t.Fatalf("packet %d had %+v and %+v", i, first[i], second[i])
		}
		if first[i] != other[i] {
			differ++
		}
	}
	if differ == 0 {
		t.Error("another seed gave the same run")
	}
}

// One condition must not change what another draws, so that runs that differ in one of them can be compared packet by packet.
func TestLossIsTheSameWhateverElseHappens(t *testing.T) {
	lost := func(c Condition) (at []int) {
		for i, f := range fates(c, 5000, 100, time.Millisecond) {
			if f.lost {
				at = append(at, i)
			}
		}
		return at
	}
	alone, among := lost(Condition{Loss: 0.05}), lost(Condition{Loss: 0.05, Delay: time.Second, Jitter: time.Second, Duplicate: 0.5, Corrupt: 0.5, Reorder: 0.5})
	if len(alone) == 0 || len(alone) != len(among) {
		t.Fatalf("%d and %d packets were lost", len(alone), len(among))
	}
	for i := range alone {
		if alone[i] != among[i] {
			t.Fatalf("packets %d and %d were lost", alone[i], among[i])
		}
	}
}

func TestJitterKeepsOrderAndBounds(t *testing.T) {
	c := Condition{Delay: 10 * time.Millisecond, Jitter: 4 * time.Millisecond}
	last, least, most := time.Duration(0), time.Hour, time.Duration(0)
	for i, f := range fates(c, 20_000, 100, time.Second) {
		if f.at < last {
			t.Fatalf("packet %d leaves before the one that came before it", i)
		}
		late := f.at - time.Duration(i)*time.Second
		last, least, most = f.at, min(least, late), max(most, late)
	}
	if least < 6*time.Millisecond || least > 6100*time.Microsecond || most > 14*time.Millisecond || most < 13900*time.Microsecond {
		t.Errorf("delays were %v to %v, want 6 to 14 ms", least, most)
	}
	last = 0
	for i, f := range fates(c, 20_000, 100, time.Microsecond) {
		if f.at < last {
			t.Fatalf("of packets close together, %d leaves before the one that came before it", i)
		}
		last = f.at
	}
}

func TestARateSendsNoFasterAndLosesWhatDoesNotFit(t *testing.T) {
	c := Condition{BitsPerSecond: 8_000_000, QueueBytes: 10_000} // 1 B in 1 µs
	all := fates(c, 1000, 1000, 0)
	if got := count(all, func(f fate) bool { return !f.overflowed }); got != 10 {
		t.Errorf("%d packets of 1,000 B got into a queue of 10,000 B, want 10", got)
	}
	for i := range 10 {
		if want := time.Duration(i+1) * time.Millisecond; all[i].at != want {
			t.Errorf("packet %d leaves at %v, want %v", i, all[i].at, want)
		}
	}
	for i, f := range fates(c, 100, 1000, 2*time.Millisecond) { // half the rate
		if want := time.Duration(2*i+1) * time.Millisecond; f.overflowed || f.at != want {
			t.Fatalf("packet %d has fate %+v, want to leave at %v", i, f, want)
		}
	}
	double := Condition{BitsPerSecond: 8_000_000, QueueBytes: 10_000, Duplicate: 1}
	if got := fates(double, 2, 1000, 0)[1]; got.at != 3*time.Millisecond || got.again != 4*time.Millisecond {
		t.Errorf("the second of two packets that come twice leaves at %v and %v, want 3 and 4 ms", got.at, got.again)
	}
}

func TestBadConditionsAreRefused(t *testing.T) {
	for name, c := range map[string]Condition{
		"negative delay":            {Delay: -1},
		"a delay of hours":          {Delay: time.Hour},
		"jitter beyond the delay":   {Delay: time.Millisecond, Jitter: 2 * time.Millisecond},
		"loss of more than all":     {Loss: 1.1},
		"loss that is no number":    {Loss: math.NaN()},
		"negative duplication":      {Duplicate: -0.1},
		"corruption beyond 1":       {Corrupt: 2},
		"reordering without delay":  {Reorder: 0.1},
		"negative rate":             {BitsPerSecond: -1},
		"a queue without a rate":    {QueueBytes: 1},
		"a negative queue":          {BitsPerSecond: 1, QueueBytes: -1},
		"negative jitter":           {Delay: time.Second, Jitter: -1},
		"reordering that isn't one": {Delay: time.Second, Reorder: math.Inf(1)},
	} {
		if c.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for _, c := range []Condition{{}, {Delay: time.Second, Jitter: time.Second, Loss: 1, Duplicate: 1, Corrupt: 1, Reorder: 1, BitsPerSecond: 1, QueueBytes: 1}} {
		if err := c.Validate(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
