package gpumeasure

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func trips(ages map[string]int) map[string]api.RoundTrip {
	all := map[string]api.RoundTrip{}
	for name, age := range ages {
		all[name] = api.RoundTrip{Seconds: 1e-5, At: time.Unix(int64(1000-age), 0)}
	}
	return all
}

func TestWhatWasNeverMeasuredIsMeasuredFirstThenTheOldest(t *testing.T) {
	others := []string{"n1", "n2", "n3", "n4", "n5"}
	for want, c := range map[string]struct {
		before *api.NodeMeasures
		most   int
	}{
		"[n2 n3 n4 n5]": {nil, 9},
		"[n2 n3]":       {nil, 2},
		"[n4 n3 n5]":    {&api.NodeMeasures{RoundTrips: trips(map[string]int{"n2": 1, "n3": 7, "n5": 3})}, 3},
	} {
		if got := fmt.Sprint(Peers("n1", others, c.before, c.most)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if !slices.Equal(others, []string{"n1", "n2", "n3", "n4", "n5"}) {
		t.Errorf("the list of nodes was changed: %v", others)
	}
}

func TestRoundTripsStayWithTheirAgeUntilTheyAreMeasuredAgain(t *testing.T) {
	before := &api.NodeMeasures{Node: "n1", RoundTrips: trips(map[string]int{"n2": 9, "n3": 9, "gone": 9}), Loads: map[string]api.GPULoad{"g": {Busy: 1}}}
	now := api.NodeMeasures{Node: "n1", RoundTrips: trips(map[string]int{"n3": 0})}
	got := Merge(before, now, func(name string) bool { return name != "gone" })
	if len(got.RoundTrips) != 2 || got.RoundTrips["n2"].At != time.Unix(991, 0) || got.RoundTrips["n3"].At != time.Unix(1000, 0) || len(got.Loads) > 0 {
		t.Errorf("got %+v, want n2 of before, n3 of now, and no load that was not measured", got)
	}
	if len(before.RoundTrips) != 3 {
		t.Errorf("what was stored was changed: %+v", before)
	}
	many := map[string]int{}
	for i := range 2 * mostKept {
		many[fmt.Sprint("m", i)] = i
	}
	got = Merge(&api.NodeMeasures{RoundTrips: trips(many)}, now, func(string) bool { return true })
	if _, old := got.RoundTrips[fmt.Sprint("m", mostKept)]; len(got.RoundTrips) != mostKept || old || got.RoundTrips["n3"].Seconds == 0 {
		t.Errorf("%d are kept, want the %d newest", len(got.RoundTrips), mostKept)
	}
}
