package state_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// energyRecord is of a node and an hour after the first one.
func energyRecord(node string, hour int, microjoules int64) api.EnergyRecord {
	from := now.Truncate(time.Hour).Add(time.Duration(hour) * time.Hour)
	return api.EnergyRecord{Node: node, Hour: from, From: from, To: from.Add(time.Hour), Idle: api.EnergyAmount{MeasuredMicrojoules: microjoules}}
}

func TestEnergyIsStoredByNodeAndHourReadByTimeAndPruned(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, s store.Store) {
		repo := state.New(s)
		cache, err := repo.OpenCache(t.Context())
		must(t, err)
		leader, _ := lead(t, repo)
		var all []api.EnergyRecord
		for hour := range 40 {
			all = append(all, energyRecord("n1", hour, int64(hour)), energyRecord("n2", hour, 1000))
		}
		_, err = leader.PutEnergy(t.Context(), all)
		must(t, err)
		_, err = leader.PutEnergy(t.Context(), []api.EnergyRecord{energyRecord("n1", 39, 99)}) // in place of the other
		must(t, err)
		hours := func(from, to int) (found []int64) {
			at := func(hour int) time.Time { return all[0].From.Add(time.Duration(hour) * time.Hour) }
			for r, err := range cache.UsageInput(t.Context(), now).Energy(at(from), at(to)) {
				must(t, err)
				if r.Node == "n1" {
					found = append(found, r.Idle.MeasuredMicrojoules)
				}
			}
			return found
		}
		// A record may begin a day before its hour, so those of a day after are looked at, too.
		if got := hours(3, 4); len(got) != 4+25-3+1 || got[0] != 3 || !slices.IsSorted(got) {
			t.Errorf("from hour 3 to 4: %v; want hours 3 to 29", got)
		}
		if got := hours(38, 100); !slices.Equal(got, []int64{38, 99}) {
			t.Errorf("from hour 38 on: %v", got)
		}
		newest, err := leader.NewestEnergy(t.Context(), all[0].From)
		must(t, err)
		if len(newest) != 2 {
			t.Fatalf("%d newest records, want one of each node", len(newest))
		}
		for _, r := range newest {
			if !r.Hour.Equal(all[len(all)-1].Hour) {
				t.Errorf("the newest of %s is of %s", r.Node, r.Hour)
			}
		}
		if n, err := leader.PruneEnergy(t.Context(), all[0].From.Add(10*time.Hour)); err != nil || n != 20 {
			t.Errorf("%d were removed, %v; want both nodes' first ten", n, err)
		}
		if got := hours(0, 100); len(got) != 30 || got[0] != 10 {
			t.Errorf("after that: %v", got)
		}
	})
}

func TestADeposedLeaderStoresNoEnergy(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, s store.Store) {
		repo := state.New(s)
		old, leadership := lead(t, repo)
		must(t, leadership.Resign(t.Context()))
		lead(t, repo)
		if _, err := old.PutEnergy(t.Context(), []api.EnergyRecord{energyRecord("n1", 0, 1)}); !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("got %v, want %v", err, store.ErrNotLeader)
		}
	})
}
