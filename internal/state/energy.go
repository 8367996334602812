package state

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/usage"
)

// EnergyByHour is how long records of energy are kept for each hour. Then those of a day become one, and are kept as usage is.
const EnergyByHour = 7 * 24 * time.Hour

// longestRecord bounds the time before its hour in which a record of energy may begin: that of a day, of a node that had been away for another.
const longestRecord = 49 * time.Hour

// mergedBack bounds how far back hours are looked for that are to be merged: the leader looks each hour.
const mergedBack = 4 * 24 * time.Hour

// PutEnergy stores records of energy in place of those of the same node and hour, and returns the revision of the last commit, 0 for none.
func (l *Leader) PutEnergy(ctx context.Context, records []api.EnergyRecord) (revision int64, err error) {
	for len(records) > 0 {
		n := min(len(records), store.MaxOps)
		ops := make([]store.Op, n)
		for i := range ops {
			ops[i] = put(keyEnergy(records[i].Hour, records[i].Node), records[i])
		}
		if revision, err = l.repo.store.Commit(ctx, []store.Cond{l.leadership.Guard()}, ops); err != nil {
			return 0, fmt.Errorf("store the energy of nodes: %w", err)
		}
		records = records[n:]
	}
	return revision, nil
}

// NewestEnergy returns the newest record of each node that reported since a time.
func (l *Leader) NewestEnergy(ctx context.Context, since time.Time) ([]api.EnergyRecord, error) {
	newest := map[string]api.EnergyRecord{}
	for r, err := range l.repo.energyRecords(ctx)(since, since.Add(math.MaxInt64)) {
		if err != nil {
			return nil, err
		}
		newest[r.Node] = *r // they come in the order of hours
	}
	all := make([]api.EnergyRecord, 0, len(newest))
	for _, r := range newest {
		all = append(all, r)
	}
	return all, nil
}

// MergeEnergy makes one record of those of a node and a day, of the last days that ended before a time, and returns how many records it replaced. The
// new one has the day's last hour.
func (l *Leader) MergeEnergy(ctx context.Context, before time.Time) (int, error) {
	const day = 24 * time.Hour
	type nodeDay struct {
		node string
		day  int64
	}
	end := before.UTC().Truncate(day)
	days := map[nodeDay][]*api.EnergyRecord{}
	for r, err := range l.repo.energyRecords(ctx)(end.Add(-mergedBack), end.Add(-longestRecord)) {
		if err != nil {
			return 0, err
		}
		if !r.Hour.Before(end) {
			break
		}
		k := nodeDay{r.Node, r.Hour.Truncate(day).Unix()}
		days[k] = append(days[k], r)
	}
	var ops []store.Op
	replaced := 0
	commit := func() error {
		if len(ops) == 0 {
			return nil
		}
		if _, err := l.repo.store.Commit(ctx, []store.Cond{l.leadership.Guard()}, ops); err != nil {
			return fmt.Errorf("merge records of energy: %w", err)
		}
		ops = nil
		return nil
	}
	for k, records := range days {
		if len(records) < 2 {
			continue
		}
		// All of a day in one commit: what it replaces must not count twice.
		if len(ops)+len(records)+1 > store.MaxOps {
			if err := commit(); err != nil {
				return replaced, err
			}
		}
		merged := usage.MergeEnergy(records)
		merged.Hour = time.Unix(k.day, 0).UTC().Add(day - time.Hour)
		for _, r := range records {
			if !r.Hour.Equal(merged.Hour) {
				ops = append(ops, store.Op{Key: keyEnergy(r.Hour, r.Node), Delete: true})
			}
		}
		ops = append(ops, put(keyEnergy(merged.Hour, k.node), merged))
		replaced += len(records)
	}
	return replaced, commit()
}

// PruneEnergy removes records of energy of hours before a time, a bounded number of them, and returns how many. Call it again while it returns more
// than 0.
func (l *Leader) PruneEnergy(ctx context.Context, before time.Time) (int, error) {
	var ops []store.Op
	end := keyEnergyHour(before)
	for e, err := range l.repo.entries(ctx, prefixEnergy, "", math.MaxInt64) {
		if err != nil {
			return 0, err
		}
		if e.Key >= end || len(ops) == prunedAtOnce {
			break
		}
		ops = append(ops, store.Op{Key: e.Key, Delete: true})
	}
	return l.prune(ctx, ops, "records of energy")
}

// energyRecords yields the records of energy that may be of a time, in the order of hours.
func (r *Repo) energyRecords(ctx context.Context) func(from, to time.Time) iter.Seq2[*api.EnergyRecord, error] {
	return func(from, to time.Time) iter.Seq2[*api.EnergyRecord, error] {
		end := keyEnergyHour(to.Add(longestRecord)) + "/~" // after each name of a node
		return func(yield func(*api.EnergyRecord, error) bool) {
			for e, err := range r.entries(ctx, prefixEnergy, keyEnergyHour(from), math.MaxInt64) {
				if err == nil && e.Key > end {
					return
				}
				record := new(api.EnergyRecord)
				if err == nil {
					err = decode(e, record)
				}
				if !yield(record, err) || err != nil {
					return
				}
			}
		}
	}
}

// energyUsed is what projects used, as it was added up last.
type energyUsed struct {
	mu     sync.Mutex
	past   usage.EnergyPast
	since  time.Time // records before it were read, and change no more
	at     time.Time
	joules map[string]int64
}

const (
	// energyUsedFor is how long a sum holds: the leader stores energy twice a minute.
	energyUsedFor = 30 * time.Second
	// energyChangesFor is how old the records are that still change: those of this hour, and of the one before until all of its samples are in.
	energyChangesFor = time.Hour
)

// EnergyUsed is what each project used in api.EnergyWindow before a time, in joules, if the quota of any bounds that. It is half a minute old at most.
func (c *Cache) EnergyUsed(ctx context.Context, now time.Time) (map[string]int64, error) {
	if !slices.ContainsFunc(c.View().Projects, func(p *api.Project) bool { return p.Quota.EnergyJoules > 0 }) {
		return nil, nil
	}
	u := &c.energy
	u.mu.Lock()
	defer u.mu.Unlock()
	if age := now.Sub(u.at); u.joules != nil && age >= 0 && age < energyUsedFor {
		return u.joules, nil
	}
	since := u.since
	if since.IsZero() {
		since = now.Add(-api.EnergyWindow)
	}
	since = since.UTC().Truncate(time.Hour)
	if err := u.past.Read(since, c.repo.energyRecords(ctx)(since, now)); err != nil {
		return nil, fmt.Errorf("add up the energy of projects: %w", err)
	}
	u.joules, u.at, u.since = u.past.Joules(now), now, now.Add(-energyChangesFor)
	return u.joules, nil
}
