package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
)

// check tells the first thing that does not hold though it always must. What only a commit can break is looked at after commits.
func (w *world) check() error {
	if w.checked != w.store.revision {
		live, err := w.checkAllocations()
		if err != nil {
			return err
		}
		if err := w.checkLeader(); err != nil {
			return err
		}
		w.live, w.checked = live, w.store.revision
	}
	if err := w.checkHosts(); err != nil {
		return err
	}
	if w.stats.Steps%16 == 0 {
		return w.checkDeadlines()
	}
	return nil
}

// checkAllocations checks, over what is committed, that no core slot, no memory, no address and no network is allocated twice. It returns
// the IDs of all assignments that hold something.
func (w *world) checkAllocations() (map[string]bool, error) {
	live := map[string]bool{}
	holders := map[string]string{}
	memory := map[string]int64{}
	for _, n := range w.nodes {
		memory[n.record.Name] = n.record.Capacity.MemoryBytes
	}
	networks := map[int]string{}
	take := func(a *api.Assignment) error {
		live[a.ID] = true
		for _, s := range a.Slots {
			key := fmt.Sprintf("core slot %d of %s", s, a.Node)
			if other, taken := holders[key]; taken {
				return fmt.Errorf("%s is allocated twice: to %s and %s", key, other, a.ID)
			}
			holders[key] = a.ID
		}
		if memory[a.Node] -= a.MemoryBytes; memory[a.Node] < 0 {
			return fmt.Errorf("more memory of %s is allocated than it has, last to %s", a.Node, a.ID)
		}
		key := "address " + a.Address.String()
		if other, taken := holders[key]; taken {
			return fmt.Errorf("%s is allocated twice: to %s and %s", key, other, a.ID)
		}
		holders[key] = a.ID
		index, _ := placement.DefaultPool.IndexOf(a.Address)
		if other, taken := networks[index]; taken && other != a.ClusterUID {
			return fmt.Errorf("network %d is allocated twice: to %s and %s", index, other, a.ClusterUID)
		}
		networks[index] = a.ClusterUID
		return nil
	}
	for _, name := range w.store.names() {
		for _, a := range w.store.assignments(w.store.records[name]) {
			if a.Clean {
				continue
			}
			if err := take(a.Assignment); err != nil {
				return nil, err
			}
		}
	}
	for _, q := range w.store.quarantined() {
		if err := take(&q.Assignment); err != nil {
			return nil, err
		}
	}
	return live, nil
}

// checkHosts checks that nothing is left on any host of what was confirmed clean: its cores and addresses may be another's by now.
func (w *world) checkHosts() error {
	for _, n := range w.nodes {
		for id, h := range n.host {
			if !w.live[id] {
				return fmt.Errorf("%s on %s was confirmed clean and is %s", id, n.record.Name, h.state)
			}
		}
	}
	return nil
}

// checkLeader checks that the leader's view is what a replay of the committed records gives.
func (w *world) checkLeader() error {
	if w.leader == nil || w.leader.over {
		return nil
	}
	replayed, err := w.replay(w.leader)
	if err != nil {
		return fmt.Errorf("the committed records can't be replayed: %w", err)
	}
	return sameView(w.leader.view, replayed)
}

// slack is how much longer than its deadline a phase may last until the leader has acted.
const slack = time.Second

// checkDeadlines checks that no phase outlives its timer.
func (w *world) checkDeadlines() error {
	l := w.leader
	if l == nil || l.over {
		return nil
	}
	limit := map[api.ClusterPhase]time.Duration{
		api.ClusterPending:  lifecycle.DefaultDeathTimer + time.Second,
		api.ClusterStarting: lifecycle.DefaultDeadlines().Start,
		api.ClusterDeleting: lifecycle.DefaultDeadlines().Clean,
	}
	for _, name := range w.store.names() {
		phase, since := api.ClusterPending, l.since
		if r := w.store.records[name]; r != nil {
			phase, since = r.Phase, later(since, r.ChangedAt)
		} else {
			since = later(since, w.store.intents[name].CreatedAt)
		}
		if bound, ok := limit[phase]; ok && w.now.Sub(since) > bound+slack {
			return fmt.Errorf("cluster %s is %s for %s, its deadline is %s", name, phase, w.now.Sub(since), bound)
		}
	}
	return nil
}

// checkDeath checks that no node is called down that was heard of, or could not have been, within the death timer.
func (l *leader) checkDeath(n *node, to api.NodePhase) error {
	if to != api.NodeDown || l != l.w.leader {
		return nil
	}
	if silent := l.w.now.Sub(later(l.since, l.states[n.record.Name].heard)); silent < lifecycle.DefaultDeathTimer {
		return fmt.Errorf("node %s is called down %s after this leader could first have heard of it", n.record.Name, silent)
	}
	return nil
}

// checkAlarm checks that a cluster is not called degraded whose members all run as they did when it was ready, on nodes that
// are not down.
func (l *leader) checkAlarm(c *change) error {
	if l != l.w.leader {
		return nil
	}
	for _, a := range c.assignments {
		n := l.w.nodes[slices.IndexFunc(l.w.nodes, func(n *node) bool { return n.record.Name == a.Node })]
		h := n.host[a.ID]
		if l.states[a.Node].phase == api.NodeDown || h == nil || h.state != lifecycle.HostRunning || h.since.After(c.record.ChangedAt) {
			return nil
		}
	}
	return fmt.Errorf("cluster %s is called degraded, and every member of it runs as it did when it was ready", c.record.Name)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func sameView(live, replayed *placement.View) error {
	if !slices.Equal(live.Nodes(), replayed.Nodes()) {
		return fmt.Errorf("the leader knows nodes %v, the committed records %v", live.Nodes(), replayed.Nodes())
	}
	for _, name := range live.Nodes() {
		have, _ := live.Usage(name)
		want, _ := replayed.Usage(name)
		if have.FreeCores != want.FreeCores || have.FreeMemoryBytes != want.FreeMemoryBytes || have.QuarantinedCores != want.QuarantinedCores ||
			!slices.Equal(have.Holders, want.Holders) {
			return fmt.Errorf("the leader's view of %s is not what the committed records give:\nleader  %+v\nreplay  %+v", name, have, want)
		}
	}
	return nil
}

// checkEnd checks that nothing is left when all is deleted and calm.
func (w *world) checkEnd() error {
	if names := w.store.names(); len(names) > 0 {
		phase := api.ClusterPending
		if r := w.store.records[names[0]]; r != nil {
			phase = r.Phase
		}
		return fmt.Errorf("clusters %v were deleted and stay for ever, %s is %s", names, names[0], phase)
	}
	if left := len(w.store.chunks) + len(w.store.quarantines); left > 0 {
		return fmt.Errorf("%v and %v are left for ever", slices.Sorted(maps.Keys(w.store.chunks)), slices.Sorted(maps.Keys(w.store.quarantines)))
	}
	for _, n := range w.nodes {
		for id, h := range n.host {
			return fmt.Errorf("%s is left on %s for ever: %s", id, n.record.Name, h.state)
		}
		if u, _ := w.leader.view.Usage(n.record.Name); u.FreeCores != u.Cores || u.FreeMemoryBytes != u.MemoryBytes || len(u.Holders) > 0 {
			return fmt.Errorf("not all of %s is free at the end: %+v", n.record.Name, u)
		}
	}
	return nil
}

// everyTransition lists the transitions of all tables as Stats names them.
func everyTransition() []string {
	return slices.Concat(transitionsOf(lifecycle.Clusters()), transitionsOf(lifecycle.Members()), transitionsOf(lifecycle.Nodes()))
}

func transitionsOf[P ~string](m lifecycle.Machine[P]) []string {
	var all []string
	for _, t := range m.Transitions {
		for _, from := range t.From {
			all = append(all, transitionName(m.Name, from, t.To))
		}
	}
	return all
}

func transitionName[P ~string](kind string, from, to P) string {
	name := func(p P, none string) string {
		if p == "" {
			return none
		}
		return string(p)
	}
	return fmt.Sprintf("%s %s -> %s", kind, name(from, "new"), name(to, "gone"))
}
