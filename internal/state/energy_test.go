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
		for hour := range 100 {
			all = append(all, energyRecord("n1", hour, int64(hour)), energyRecord("n2", hour, 1000))
		}
		_, err = leader.PutEnergy(t.Context(), all)
		must(t, err)
		_, err = leader.PutEnergy(t.Context(), []api.EnergyRecord{energyRecord("n1", 99, 999)}) // in place of the other
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
		// A record may begin two days before its hour, so those of two days after are looked at, too.
		if got := hours(3, 4); len(got) != 4+49-3+1 || got[0] != 3 || !slices.IsSorted(got) {
			t.Errorf("from hour 3 to 4: %v; want hours 3 to 53", got)
		}
		if got := hours(98, 1000); !slices.Equal(got, []int64{98, 999}) {
			t.Errorf("from hour 98 on: %v", got)
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
		if got := hours(0, 1000); len(got) != 90 || got[0] != 10 {
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

func TestHoursOfADayBecomeOneRecordAndNothingIsLostOrCountedTwice(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, s store.Store) {
		repo := state.New(s)
		cache, err := repo.OpenCache(t.Context())
		must(t, err)
		leader, _ := lead(t, repo)
		var all []api.EnergyRecord
		for hour := range 60 {
			all = append(all, energyRecord("n1", hour, 1), energyRecord("n2", hour, 1000))
		}
		_, err = leader.PutEnergy(t.Context(), all)
		must(t, err)
		count := func(from, to time.Time) (records int, sum int64) {
			for r, err := range cache.UsageInput(t.Context(), now).Energy(from, to) {
				must(t, err)
				records, sum = records+1, sum+r.Idle.MeasuredMicrojoules
			}
			return records, sum
		}
		begin, end := all[0].From, all[len(all)-1].To
		before := begin.Truncate(24 * time.Hour).Add(49 * time.Hour) // two days are over
		for try := range 2 {
			replaced, err := leader.MergeEnergy(t.Context(), before)
			must(t, err)
			first := 24 - begin.Hour()
			if want := 2 * (first + 24); try == 0 && replaced != want || try == 1 && replaced != 0 {
				t.Errorf("try %d: %d were replaced, want %d and then none", try, replaced, want)
			}
			records, sum := count(begin, end)
			if want := 2*2 + 2*(60-first-24); records != want || sum != 60*1001 {
				t.Errorf("%d records with %d uJ are left, want %d with %d", records, sum, want, 60*1001)
			}
		}
		// Whoever asks for an afternoon finds the day.
		noon := begin.Truncate(24 * time.Hour).Add(36 * time.Hour)
		found := false
		for r, err := range cache.UsageInput(t.Context(), now).Energy(noon, noon.Add(time.Hour)) {
			must(t, err)
			found = found || r.Node == "n1" && r.From.Before(noon) && r.To.After(noon.Add(time.Hour))
		}
		if !found {
			t.Error("the record of a day is not found by a time within it")
		}
	})
}
