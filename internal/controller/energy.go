package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/energy"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// Energy is how the leader keeps account of energy.
type Energy struct {
	// Book is the account. A new leader opens it anew.
	Book *energy.Book
	// Sample is what a node's agent read last, and when that came; nil: nothing.
	Sample func(node string) (*api.EnergySample, time.Time)
	// Sensors returns what was read last of a machine's BMC, by its UID; nil: nothing, or no machine's are read.
	Sensors func(uid string) *api.MachineSensors
	// run names the leadership, which began at a time of the machine's clock: samples of machines without an agent of the site's are of it.
	run   string
	began time.Time
	// ran are the jobs that were seen running lately, by the UID of their cluster, in the order of IDs.
	ran map[string][]ranJob
}

// ranJob is a job that was seen running from a look to another one, by the machine's clock.
type ranJob struct {
	id          string
	first, last time.Time
}

// Pace of the account of energy: samples come every five seconds, and what they add up to is stored twice a minute.
const (
	energyEvery      = 5 * time.Second
	energyStoreEvery = 30 * time.Second
)

// keepEnergy keeps account of energy until ctx ends. It is apart from the passes, which nothing that is only measured should hold up.
func (l *leader) keepEnergy(ctx context.Context) {
	e := l.cfg.Energy
	if e == nil {
		return
	}
	newest, err := l.writer.NewestEnergy(ctx, l.clock.at(l.cfg.Now()).Add(-energyGoesBack))
	if err != nil {
		l.log.WarnContext(ctx, "the stored account of energy can't be read; what was used since is lost", "error", err)
	}
	e.Book.Open(newest)
	e.run, e.began = fmt.Sprint("leader ", l.writer.Term()), l.cfg.Now()
	tick := time.NewTicker(energyEvery)
	defer tick.Stop()
	stored := l.cfg.Now()
	for {
		view, now := l.cfg.Cache.View(), l.cfg.Now()
		takeEnergy(e, view, l.clock.at(now), now)
		if now.Sub(stored) >= energyStoreEvery {
			stored = now
			if err := l.storeEnergy(ctx, e.Book); err != nil && ctx.Err() == nil {
				l.log.WarnContext(ctx, "the account of energy can't be stored; retrying", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// energyGoesBack is how far back a new leader looks for records to go on with.
const energyGoesBack = 24 * time.Hour

func (l *leader) storeEnergy(ctx context.Context, book *energy.Book) error {
	pending := book.Pending()
	_, err := l.writer.PutEnergy(ctx, pending)
	if errors.Is(err, store.ErrNotLeader) {
		return nil // the next one goes on from what is stored
	}
	if err != nil {
		return err
	}
	for i := range pending {
		book.Stored(&pending[i])
	}
	return nil
}

// takeEnergy takes the newest sample of each node. now is the time of decisions, reading the machine's clock at the same moment.
func takeEnergy(e *Energy, view *state.View, now, reading time.Time) {
	e.seeJobs(view, reading)
	known := map[string]bool{}
	for n := range view.Agents() {
		known[n.Name] = true
		bmc := e.bmc(view.Machine(n.Name), now)
		sample, at := e.Sample(n.Name)
		if sample == nil && bmc != nil {
			sample = e.whole(view, n.Name, reading)
		}
		if sample != nil {
			heard := at
			if heard.IsZero() { // nobody sent it
				heard = reading
			}
			e.Book.Take(n.Name, sample, energy.World{Owners: e.ownersOn(view, n.Name, heard), BMC: bmc, ReadAt: at}, now)
		}
	}
	e.Book.Forget(known)
}

// whole is a sample of a machine that a member has whole, whose agent is not believed: all that its BMC says is the member's. nil: no member has it.
func (e *Energy) whole(view *state.View, node string, reading time.Time) *api.EnergySample {
	for _, c := range view.ClustersOnNode(node) {
		for a := range c.Held() {
			if a.Node == node && a.Whole {
				elapsed := int64(reading.Sub(e.began))
				return &api.EnergySample{Run: e.run + ", " + a.ID, ElapsedNanoseconds: elapsed, BusyNanoseconds: elapsed, CPUs: 1, Members: map[string]int64{a.ID: elapsed}}
			}
		}
	}
	return nil
}

// seeJobs notes which jobs run now. Those that have not run since the sample before the newest are forgotten.
func (e *Energy) seeJobs(view *state.View, reading time.Time) {
	before := e.ran
	e.ran = map[string][]ranJob{}
	seen := map[string]bool{}
	for _, j := range view.Jobs { // in the order of IDs
		if j.Phase != api.JobRunning {
			continue
		}
		seen[j.ID] = true
		job := ranJob{id: j.ID, first: reading, last: reading}
		for _, was := range before[j.ClusterUID] {
			if was.id == j.ID {
				job.first = was.first
			}
		}
		e.ran[j.ClusterUID] = append(e.ran[j.ClusterUID], job)
	}
	for cluster, jobs := range before {
		for _, j := range jobs {
			if !seen[j.id] && reading.Sub(j.last) < 4*energyEvery {
				e.ran[cluster] = append(e.ran[cluster], j)
			}
		}
		slices.SortFunc(e.ran[cluster], func(a, b ranJob) int { return strings.Compare(a.id, b.id) })
	}
}

// jobsAt returns the IDs of a cluster's jobs that may have run in the interval of a sample received at this time. The leader looks every five seconds, and so
// do agents, so a job counts if it was seen running up to one interval before or after.
func (e *Energy) jobsAt(cluster string, heard time.Time) []string {
	var ids []string
	for _, j := range e.ran[cluster] {
		if !j.first.Add(-energyEvery).After(heard) && !j.last.Add(energyEvery).Before(heard) {
			ids = append(ids, j.id)
		}
	}
	return ids
}

// ownersOn are the owners of the assignments on a node, those among them that are being cleaned, with the jobs that ran in the time of a sample.
func (e *Energy) ownersOn(view *state.View, node string, heard time.Time) map[string]energy.Owner {
	owners := map[string]energy.Owner{}
	for _, c := range view.ClustersOnNode(node) {
		o := energy.Owner{ClusterUID: c.UID(), Cluster: c.Name(), Project: c.Intent.Project, User: c.Intent.User, Jobs: e.jobsAt(c.UID(), heard)}
		for a := range c.AllWithRef() {
			if a.Node == node {
				owners[a.ID] = o
			}
		}
	}
	return owners
}

// oldestBMC is how old a reading of a BMC may be: they are read each minute.
const oldestBMC = 5 * time.Minute

// bmc is the power that a machine's BMC reports; nil: it has none that is read.
func (e *Energy) bmc(m *state.Machine, now time.Time) *api.EnergyReading {
	if m == nil || e.Sensors == nil {
		return nil
	}
	read := e.Sensors(m.UID())
	if read == nil {
		return nil
	}
	out := &api.EnergyReading{Source: api.EnergyBMC, Tag: api.EnergyUnavailable, Scope: "the whole machine"}
	watts, reason := sensors.Power(read.Sensors)
	switch {
	case read.State == api.SensorUnavailable && read.Message != "":
		out.Reason = read.Message
	case now.Sub(read.ReadAt) > oldestBMC:
		out.Reason = "its BMC was read last at " + read.ReadAt.UTC().Format(time.RFC3339)
	case reason != "":
		out.Reason = reason
	default:
		out.Tag, out.Watts = api.EnergyMeasured, &watts
	}
	return out
}
