package usage

import (
	"maps"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestTheEnergyOfAProjectIsThatOfTheLastThirtyDays(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 31, 12, 30, 0, 0, time.UTC)
	record := func(node string, before time.Duration, joules int64, project string) *api.EnergyRecord {
		return &api.EnergyRecord{Node: node, Hour: now.Add(-before).Truncate(time.Hour), Shares: []api.EnergyShare{
			{Project: project, EnergyAmount: api.EnergyAmount{MeasuredMicrojoules: joules * 600_000, ModelledMicrojoules: joules * 400_000}},
		}}
	}
	var past EnergyPast
	read := func(since time.Duration, records ...*api.EnergyRecord) {
		t.Helper()
		if err := past.Read(now.Add(-since).Truncate(time.Hour), energyOf(records...)(time.Time{}, now)); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, want map[string]int64) {
		t.Helper()
		if got := past.Joules(now); !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	read(api.EnergyWindow, record("n1", api.EnergyWindow, 100, "physics"), record("n1", api.EnergyWindow+2*time.Hour, 900, "physics"),
		record("n2", 24*time.Hour, 20, "physics"), record("n1", 0, 3, "physics"), record("n1", 0, 7, ""))
	want("at first", map[string]int64{"physics": 123, "default": 7})
	read(time.Hour, record("n1", 0, 4, "physics"), record("n2", time.Hour, 5, "default"))
	want("with newer records in place of the newest", map[string]int64{"physics": 124, "default": 5})
	now = now.Add(2 * time.Hour)
	want("two hours later", map[string]int64{"physics": 24, "default": 5})
}
