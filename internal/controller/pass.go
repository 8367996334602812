package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/decision"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// pass is one look at everything: what is stored, and what agents say.
type pass struct {
	*leader
	*situation.Site
	view *state.View
	// now is the leader's time, for all that is stored; raw is the machine's, for what is measured against the agents' words.
	now, raw time.Time
	asked    []situation.Asked
	// again: an answer of admission is to be asked for again, though nothing but time may have changed.
	again bool
	// lost: members were lost in this pass. Their replacements are asked for in the next, and come before all others then.
	lost bool
	// taken are the numbers that are handed out once, with what this pass gave out; nil until they are needed.
	taken *placement.Numbers
	// later are the reasons why networks of projects have no numbers yet, by UID.
	later map[string]error
	// verifying: a machine is being inspected, maybe to prove that it boots.
	verifying bool
	// warm is how many machines wait in their boot agents, warmSoon how many are inspected and may wait then.
	warm, warmSoon int
	// given are the assignments that this pass gave addresses on networks of projects, by the networks' UIDs.
	given map[string][]api.Assignment
}

// newPass looks at everything once.
func (l *leader) newPass(view *state.View) *pass {
	raw := l.cfg.Now()
	now := l.clock.at(raw)
	site := situation.Observe(view, l.cfg.Agents, l.cfg.Fabrics, now, raw, l.since, l.cfg.Deadlines)
	site.Encrypted = l.cfg.EncryptUnderlay
	return &pass{leader: l, view: view, now: now, raw: raw, Site: site, later: map[string]error{}}
}

// clusters plans every cluster and makes the plans true. What they need room for is gathered for admission.
func (p *pass) clusters(ctx context.Context) error {
	var errs []error
	var changes []decided
	for _, c := range p.view.Clusters {
		if rest, ok := p.resting[c.UID()]; ok && rest.cluster == c && (rest.until.IsZero() || p.now.Before(rest.until)) {
			p.asked = append(p.asked, rest.asked...)
			p.sooner(rest.until)
			continue
		}
		change, err := p.cluster(c)
		if err != nil {
			errs = append(errs, fmt.Errorf("cluster %q: %w", c.Name(), err))
		} else if change.Dirty {
			changes = append(changes, decided{c, change})
		}
	}
	errs = append(errs, p.commitAll(ctx, changes)...)
	if len(p.resting) > len(p.view.Clusters) {
		maps.DeleteFunc(p.resting, func(uid string, r resting) bool {
			c := p.view.Cluster(r.cluster.Name())
			return c == nil || c.UID() != uid
		})
	}
	return errors.Join(errs...)
}

// resting is a cluster for which nothing was to be done: while its record, its user's wishes, what is heard of the nodes that it is on and the
// clock give no reason, nothing is.
type resting struct {
	cluster *state.Cluster
	asked   []situation.Asked
	until   time.Time
}

// cluster plans one cluster. When there is nothing to commit, it notes what the cluster needs, and whether it rests.
func (p *pass) cluster(c *state.Cluster) (decision.Change, error) {
	change, err := decision.Apply(c.Decision(), lifecycle.PlanCluster(p.Cluster(c)), p.now)
	if err != nil {
		return change, err
	}
	p.sooner(change.WakeAt)
	if change.Dirty {
		return change, nil
	}
	var asked []situation.Asked
	for _, need := range change.Needs {
		asked = append(asked, situation.Asked{Cluster: c, Need: need})
	}
	p.asked = append(p.asked, asked...)
	if settled(c) && !boots(p.view, c) {
		p.resting[c.UID()] = resting{cluster: c, asked: asked, until: change.WakeAt}
	}
	return change, nil
}

// boots reports whether a machine that a member has whole is on its way: what is decided of the cluster depends on the machine's record.
func boots(view *state.View, c *state.Cluster) bool {
	for a := range c.Held() {
		if !a.ByProvisioner() {
			continue
		}
		if m := view.Machine(a.Node); m == nil || m.Record == nil || m.Record.Phase != api.MachineReady {
			return true
		}
	}
	return false
}

// settled reports whether what is decided of a cluster depends on its own nodes only. Others may have to prove clean what is being released, and
// the end of a cluster depends on quarantines.
func settled(c *state.Cluster) bool {
	if c.Record == nil {
		return true
	}
	for range c.Releasing() {
		return false
	}
	return c.Record.Phase != api.ClusterDeleting
}

// stir ends the rest of the clusters on nodes that were told something new, that said something new, or that are held to be something else than
// in the last pass.
func (p *pass) stir(told, news []string) {
	stirred := slices.Concat(told, news)
	for name, now := range p.Nodes {
		if p.nodes[name] != now {
			stirred = append(stirred, name)
		}
	}
	for name := range p.nodes {
		if _, known := p.Nodes[name]; !known {
			stirred = append(stirred, name)
		}
	}
	for _, node := range stirred {
		for _, c := range p.view.ClustersOnNode(node) {
			delete(p.resting, c.UID())
		}
	}
	p.leader.nodes = maps.Clone(p.Nodes) // planning adds to it
}

// decided is a change of a cluster that is to be committed.
type decided struct {
	cluster *state.Cluster
	change  decision.Change
}

// commitAll makes changes of different clusters true. A cluster that changed meanwhile is planned again in the next pass.
func (p *pass) commitAll(ctx context.Context, all []decided) []error {
	each, err := p.commitEach(ctx, all)
	errs := []error{err}
	for i, err := range each {
		if err != nil && !errors.Is(err, store.ErrConflict) {
			errs = append(errs, fmt.Errorf("cluster %q: %w", all[i].cluster.Name(), err))
		}
	}
	return errs
}

// commitEach makes changes of different clusters true, then records their events. It returns what went wrong with each, and with the events.
func (p *pass) commitEach(ctx context.Context, all []decided) (each []error, err error) {
	each = make([]error, len(all))
	var writes []state.Decided
	var of []int
	var events []api.Event
	for i, d := range all {
		if d.change.Dirty {
			writes, of = append(writes, state.Decided{Base: d.cluster, Write: p.write(d.change)}), append(of, i)
		} else {
			events = append(events, d.change.Events...)
		}
	}
	for n, outcome := range p.writer.CommitAll(ctx, writes) {
		d := all[of[n]]
		if each[of[n]] = outcome.Err; outcome.Err == nil {
			p.landed(d.cluster, d.change, outcome.Revision)
			events = append(events, d.change.Events...)
		}
	}
	return each, p.emit(ctx, events)
}

func (p *pass) write(change decision.Change) state.Write {
	w := state.Write{
		Record: change.Record, Add: change.Add, Quarantines: change.Quarantines, Networks: change.Networks, Usage: change.Usage, Forget: change.Forget,
	}
	for _, uid := range change.Joins {
		w.Joins = append(w.Joins, p.view.NetworkJoin(uid))
	}
	return w
}

// landed notes that a change of a cluster is true.
func (p *pass) landed(c *state.Cluster, change decision.Change, revision int64) {
	p.committed = max(p.committed, revision)
	p.lost = p.lost || c.Record != nil && len(change.Record.Lost) > len(c.Record.Lost)
}

// emit stores events. They tell what became true, so losing them with a crash loses no truth.
func (p *pass) emit(ctx context.Context, events []api.Event) error {
	if len(events) == 0 {
		return nil
	}
	for _, e := range events {
		p.log.InfoContext(ctx, e.Message, "cluster", e.Cluster, "reason", e.Reason, "member", e.Member, "node", e.Node, "fabric", e.Fabric)
	}
	_, err := p.cfg.Repo.AppendEvents(ctx, events...)
	return err
}

// quarantinesPerPass bounds how many quarantines end in one pass, each by a commit: when a rack comes back, who is lost elsewhere is not
// to wait for all of it. The next pass goes on.
const quarantinesPerPass = 50

// quarantines frees what was quarantined and has been confirmed clean after all.
func (p *pass) quarantines(ctx context.Context) error {
	var errs []error
	ended := 0
	for _, q := range p.view.Quarantines {
		ops := lifecycle.PlanQuarantine(*q, func(by api.Prover) bool { return p.Proved(&q.Assignment, by) }, p.gone)
		if len(ops) == 0 {
			continue
		}
		if ended++; ended > quarantinesPerPass {
			break
		}
		errs = append(errs, p.quarantine(ctx, q, ops))
	}
	return errors.Join(errs...)
}

// gone reports whether a prover is the agent of a node that was taken out of the inventory.
func (p *pass) gone(by api.Prover) bool {
	return by.By == api.ExecutorAgent && p.view.Agent(by.At) == nil
}

func (p *pass) quarantine(ctx context.Context, q *api.Quarantine, ops []lifecycle.QuarantineOperation) error {
	change, err := decision.ApplyQuarantine(*q, ops, p.now)
	if err != nil {
		return fmt.Errorf("quarantined assignment %s: %w", q.Assignment.ID, err)
	}
	if change.End != "" {
		revision, err := p.writer.Unquarantine(ctx, change.End, change.Spans...)
		if err != nil {
			return err // nor has the event happened
		}
		p.committed = max(p.committed, revision)
	}
	return p.emit(ctx, change.Events)
}

// justStarted reports whether no node can have joined yet: neither server nor cluster is older than an agent takes to connect.
func (p *pass) justStarted(c *state.Cluster) bool {
	const patience = lifecycle.DefaultDeathTimer
	return !p.view.AnyAgent() && p.now.Sub(p.since) < patience && p.now.Sub(c.Intent.CreatedAt) < patience
}
