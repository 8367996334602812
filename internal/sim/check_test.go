package sim

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// checks remember what the checks need to know from step to step.
type checks struct {
	// hosts tells that a host has changed since the last check.
	hosts    bool
	revision int64
	// disturbed counts what makes forecasts void.
	disturbed atomic.Int64
	promise   promise              // the lock of looked guards it
	ready     map[string]time.Time // when a cluster was last called ready
	runs      map[string]string    // the member of each run of a job
	ran       map[string]bool      // IDs of assignments that have run
	noticed   time.Time
	reported  time.Time
}

func newChecks() *checks {
	return &checks{ready: map[string]time.Time{}, runs: map[string]string{}, ran: map[string]bool{}}
}

// touched notes that something on a host has changed.
func (w *world) touched() { w.checks.hosts = true }

// check fails with the first thing that does not hold though it always must. What only a commit or a host can break is looked at when
// one of them has changed.
func (w *world) check() {
	c := w.checks
	revision := w.store.revision()
	changed := revision != c.revision
	c.revision = revision
	for _, l := range w.store.takeLanded() {
		w.checkPhase(&l)
	}
	if changed || c.hosts {
		w.checkHosts()
		w.checkHostFunctions()
		w.checkLives()
		w.checkDisks()
		w.read(func(m *mirror) { w.checkSizes(m.held) })
		w.checkIdentities()
		w.checkFabric()
		c.hosts = false
	}
	if w.stats.Steps%16 == 0 {
		w.checkDeadlines()
		w.checkSilence()
		w.checkStreams()
		w.checkLost()
	}
	if time.Since(c.noticed) > 7*time.Second && !w.over {
		w.checkNoticed()
		c.noticed = time.Now()
	}
	if time.Since(c.reported) > 10*time.Minute {
		w.checkReport()
		c.reported = time.Now()
	}
}

// takeLanded returns the changes of phase since the last call.
func (s *witness) takeLanded() []landed {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.landed
	s.landed = nil
	return all
}

// checkAllocations checks, over what is committed, that no core slot, no memory, no address and no network is allocated twice.
func (m *mirror) checkAllocations() {
	w := m.w
	live := map[string]bool{}
	holders := map[any]string{}
	memory := map[string]int64{}
	for _, n := range w.nodes {
		memory[n.record.Name] = n.record.Capacity.MemoryBytes
	}
	ranges := map[api.IDRange]string{}
	devices, whole := newDeviceUse(), map[string]*api.Assignment{}
	type slot struct {
		node string
		slot int
	}
	m.from = map[string]string{}
	held := map[string]*api.Assignment{}
	take := func(a *api.Assignment) {
		live[a.ID], m.from[a.ID], m.saved[a.ID] = true, a.From, a.Saved
		if a.Saved && (len(a.Slots) > 0 || a.NodeMemoryBytes() > 0) {
			w.fail("saved", "%s is saved, and holds slots %v and %d bytes", a.ID, a.Slots, a.NodeMemoryBytes())
		}
		for _, s := range a.Slots {
			key := slot{a.Node, s}
			if other, taken := holders[key]; taken {
				w.fail("double allocation", "core slot %d of %s is allocated twice: to %s and %s", s, a.Node, other, a.ID)
			}
			holders[key] = a.ID
		}
		if memory[a.Node] -= a.NodeMemoryBytes(); memory[a.Node] < 0 {
			w.fail("double allocation", "more memory of %s is allocated than it has, last to %s", a.Node, a.ID)
		}
		if other, taken := ranges[a.UserIDs]; taken && other != a.ClusterUID {
			w.fail("double allocation", "user IDs %v are allocated twice: to %s and %s", a.UserIDs, other, a.ClusterUID)
		}
		ranges[a.UserIDs] = a.ClusterUID
		if other := whole[a.Node]; other != nil && (a.Whole || other.Whole) {
			w.fail("double allocation", "node %s is given away whole, and to %s and %s", a.Node, other.ID, a.ID)
		}
		if whole[a.Node] == nil || a.Whole {
			whole[a.Node] = a
		}
		m.checkPorts(a, holders)
		m.checkFunctions(a, holders)
		devices.take(w, a)
	}
	for _, name := range m.names() {
		for _, a := range m.assignments(m.clusters[name].record) {
			if !a.clean {
				take(a.Assignment)
				held[a.ID] = a.Assignment
			}
		}
	}
	for _, q := range m.quarantines {
		take(&q.Assignment)
	}
	m.live, m.held = live, held
}

// checkPorts checks that the ports of an assignment are on networks that are stored, at addresses that nobody else has.
func (m *mirror) checkPorts(a *api.Assignment, holders map[any]string) {
	type place struct {
		network string
		address netip.Addr
	}
	for _, p := range a.Ports {
		n := m.networks[p.Network]
		if n == nil || !n.Prefix.Contains(p.Address) {
			m.w.fail("networks", "%s has address %s on network %s, which is %+v", a.ID, p.Address, p.Network, n)
		}
		key := place{p.Network, p.Address}
		if other, taken := holders[key]; taken && other != a.From && m.from[other] != a.ID {
			m.w.fail("double allocation", "address %s is allocated twice: to %s and %s", p.Address, other, a.ID)
		}
		holders[key] = a.ID
	}
}

// checkNetworks checks that no two networks have an index or an address in common.
func (m *mirror) checkNetworks() {
	for _, q := range m.quarantines {
		for _, p := range q.Assignment.Ports {
			if m.networks[p.Network] == nil {
				m.w.fail("networks", "network %s is gone, and %s, which is quarantined, has a port on it", p.Network, q.Assignment.ID)
			}
		}
	}
	indexes := map[int]string{}
	vids := map[int]string{}
	for uid, n := range m.networks {
		if other, taken := indexes[n.Index]; taken && other != uid {
			m.w.fail("double allocation", "index %d is that of networks %s and %s", n.Index, uid, other)
		}
		indexes[n.Index] = uid
		if other, taken := indexes[n.PKey]; n.PKey != 0 && taken && other != uid {
			m.w.fail("double allocation", "partition key %d of network %s is a number of network %s", n.PKey, uid, other)
		}
		if other, taken := vids[n.VLAN]; n.VLAN != 0 && taken {
			m.w.fail("double allocation", "VLAN %d is that of networks %s and %s", n.VLAN, uid, other)
		}
		vids[n.VLAN] = uid
		if n.VLAN != 0 && n.ClusterUID != "" {
			m.w.happened("own network on a VLAN")
		}
		if n.PKey != 0 && n.ClusterUID != "" {
			m.w.happened("own partition")
		}
		if n.PKey != 0 {
			indexes[n.PKey] = uid
		}
		for other, o := range m.networks {
			if other < uid && o.Prefix.Overlaps(n.Prefix) {
				m.w.fail("double allocation", "networks %s and %s have overlapping subnets %s and %s", other, uid, o.Prefix, n.Prefix)
			}
		}
	}
}

// checkQuotas checks that no project gets more than it may hold. One whose quota was lowered keeps what it has.
func (m *mirror) checkQuotas() {
	w := m.w
	for name, p := range m.projects {
		used, had, q := m.usedBy(name), m.used[name], p.Quota
		m.used[name] = used
		over := func(what string, has, had, may int64) {
			if may > 0 && has > may && has > had {
				w.fail("quota", "project %s is given %d %s, its quota is %d", name, has, what, may)
			}
		}
		over("cores", int64(used.Cores), int64(had.Cores), int64(q.Cores))
		over("bytes of memory", int64(used.Memory), int64(had.Memory), int64(q.Memory))
		over("members", int64(used.Members), int64(had.Members), int64(q.Members))
		over("clusters", int64(used.Clusters), int64(had.Clusters), int64(q.Clusters))
		for counter, may := range q.Devices {
			over(counter, used.Devices[counter], had.Devices[counter], may)
		}
	}
}

// checkHosts checks that nothing is left on any host of what was confirmed clean: its cores and addresses may be another's by now.
func (w *world) checkHosts() {
	w.read(func(m *mirror) {
		for _, n := range w.nodes {
			if !n.box.carries(n.life) || n.box.excused() {
				continue
			}
			for id, h := range n.host {
				if by := cmp.Or(h.forNext, id); !m.live[by] && !m.forgiven[by] {
					w.fail("hosts", "%s on %s was confirmed clean, and %s is %s", by, n.record.Name, id, h.state)
				}
			}
		}
	})
}

// excused reports whether a machine may be taken for off that is on: its BMC lied.
func (b *box) excused() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Since(b.lied) < 20*time.Minute
}

// checkPhase checks what a change of phase says against what is so.
func (w *world) checkPhase(l *landed) {
	r := &l.record
	switch {
	case r.Phase == api.ClusterDegraded && l.from == api.ClusterReady && len(r.Lost) == 0:
		w.checkAlarm(r, l.all)
	case r.Phase == api.ClusterReady:
		w.checks.ready[r.Name] = time.Now()
		w.checkReady(r, l)
		w.checkFenced(r, l.all)
	case r.Phase == api.ClusterFailed:
		w.checkFailed(r, l.all)
	case r.Phase == api.ClusterDeleting:
		for _, a := range l.all {
			if a.releasedAt == nil && !a.clean {
				w.fail("phases", "cluster %s is being deleted and still holds %s", r.Name, a.ID)
			}
		}
	case r.Phase == api.ClusterSaved:
		for _, a := range l.all {
			if a.releasedAt == nil && !a.clean && !a.Saved && !a.IsSnapshot() {
				w.fail("phases", "cluster %s is saved and still holds %s, which is not", r.Name, a.ID)
			}
		}
	}
}

// checkReady checks that a cluster is called ready with all that its user asked for in place.
func (w *world) checkReady(r *api.ClusterRecord, l *landed) {
	names := map[string]bool{}
	for _, a := range l.all {
		if a.releasedAt != nil || a.Spare || a.IsSuccessor() || a.IsSnapshot() {
			continue
		}
		if !w.checks.ran[a.ID] {
			w.fail("ready", "cluster %s is called ready, and %s has never run", r.Name, a.ID)
		}
		if a.IsMember() {
			names[a.Member] = true
		}
	}
	for _, m := range lifecycle.DesiredMembers(l.intent.Spec, l.intent.Removed) {
		if !names[m.Member] {
			w.fail("ready", "cluster %s is called ready without %s", r.Name, m.Member)
		}
		delete(names, m.Member)
	}
	if len(names) > 0 {
		w.fail("ready", "cluster %s is called ready with %v, which its user does not want", r.Name, names)
	}
}

// checkFailed checks that a cluster is not called failed all of whose members run and are well.
func (w *world) checkFailed(r *api.ClusterRecord, all []held) {
	s := w.store.leader()
	if s == nil || len(r.Lost) > 0 {
		return
	}
	for _, a := range all {
		if a.releasedAt != nil || a.Spare || a.IsSuccessor() || a.IsSnapshot() {
			continue
		}
		if a.Whole {
			return // its ports may not be in their networks
		}
		h := w.node(a.Node).host[a.ID]
		if h == nil || h.state != lifecycle.HostRunning || h.everIll || time.Since(h.since) < time.Minute {
			return
		}
		phase, _, _ := s.monitor.Node(a.Node)
		if seen, _ := s.monitor.MemberState(a.Node, a.ID); phase != api.NodeReady || seen.Phase != api.MemberReady || !seen.Current && a.IsMember() {
			return
		}
	}
	w.fail("failed", "cluster %s is called failed (%s), and all members it has run and are well", r.Name, r.Message)
}

// checkAlarm checks that a cluster is not called degraded whose members all run as they did when it was ready, well and with
// nodes that are not down.
func (w *world) checkAlarm(r *api.ClusterRecord, all []held) {
	s := w.store.leader()
	for _, a := range all {
		if a.releasedAt != nil || a.Spare || a.IsSuccessor() || a.IsSnapshot() {
			continue
		}
		if a.Whole {
			return // its ports may not be in their networks, or can't be read
		}
		n := w.node(a.Node)
		h := n.host[a.ID]
		if s != nil {
			if phase, _, _ := s.monitor.Node(a.Node); phase == api.NodeDown {
				return
			}
		}
		if !n.box.carries(n.life) || h == nil || h.state != lifecycle.HostRunning || h.everIll || h.since.After(w.checks.ready[r.Name]) {
			return
		}
	}
	w.fail("alarm", "cluster %s is called degraded (%s), and every member of it runs as it did when it was ready", r.Name, r.Message)
}

// noteAnswers notes, before a step, which nodes have answered the leader up to now, and since when without a break.
func (w *world) noteAnswers() {
	s := w.store.leader()
	if s == nil {
		return
	}
	for _, n := range w.nodes {
		if n.speaks(s) {
			n.spoke = time.Now()
		}
		if !n.canAnswer(s) {
			n.answers = nil
			continue
		}
		n.answered = time.Now()
		if n.answers != n.link {
			n.answers, n.answersSince = n.link, n.answered
		}
	}
}

// checkStreams checks that a node which answers the leader is ready, for an agent notices after the death timer that a server no longer hears it,
// and that no stream of a node outlives the beginning of the next.
func (w *world) checkStreams() {
	s := w.store.leader()
	if s == nil {
		return
	}
	for _, n := range w.nodes {
		if n.answers == nil || n.answers != n.link || time.Since(n.answersSince) < 2*lifecycle.DefaultDeathTimer {
			continue
		}
		if phase, _, why := s.monitor.Node(n.record.Name); phase != api.NodeReady {
			w.fail("streams", "node %s has answered on one stream for %s and is %s: %s", n.record.Name, time.Since(n.answersSince), phase, why)
		}
		w.checkHeard(s, n)
		for _, l := range n.links {
			if l != n.link && l.s == s && !l.served.Load() {
				w.fail("streams", "the leader goes on with a stream of node %s, which has had another for %s", n.record.Name, time.Since(n.answersSince))
			}
		}
	}
}

// checkHeard checks that what the server has of a node's members is what its agent said last.
func (w *world) checkHeard(s *server, n *node) {
	a := n.agent
	if a == nil || a.said == nil || time.Since(a.saidAt) < 2*lifecycle.DefaultDeathTimer {
		return
	}
	for _, m := range a.said.Members {
		if phase, _, _ := s.monitor.Member(n.record.Name, m.ID); phase != m.Phase {
			w.fail("heard", "%s said %s ago that %s is %s, and the server believes that it is %q", n.record.Name, time.Since(a.saidAt), m.ID, m.Phase, phase)
		}
	}
	said := a.said.Clean
	if n.isMember {
		said = nil // it is not believed that nothing is left of itself
	}
	if clean := s.monitor.Clean(n.record.Name); !slices.Equal(clean, said) {
		w.fail("heard", "%s said %s ago that %v are clean, and the server believes that %v are", n.record.Name, time.Since(a.saidAt), said, clean)
	}
}

// checkLost checks that nobody goes on holding what is on a node that is down: a member there is lost, and so is one that has a part there.
func (w *world) checkLost() {
	s := w.store.leader()
	if s == nil || w.store.inDoubt() || time.Since(s.busyUntil()) < slack {
		return
	}
	down := map[string]bool{}
	for _, n := range w.nodes {
		silent := time.Since(later(later(n.answered, s.risen), w.store.leaderSince()))
		down[n.record.Name] = silent > lifecycle.DefaultDeathTimer+2*slack
	}
	w.read(func(m *mirror) {
		for _, e := range m.clusters {
			if e.record == nil || e.intent == nil || e.intent.DeleteRequestedAt != nil || e.record.ExpiredAt != nil || e.record.Phase == api.ClusterFailed {
				continue
			}
			all := m.assignments(e.record)
			moving := map[string]bool{} // they may run on other nodes by now
			for _, a := range all {
				moving[a.From] = moving[a.From] || a.releasedAt == nil && a.IsSuccessor()
			}
			for _, a := range all {
				if a.releasedAt == nil && !a.Spare && !a.Saved && !a.IsSuccessor() && !a.IsSnapshot() && !moving[a.ID] && down[a.Node] && !m.onItsWay(a.Assignment) {
					w.fail("lost", "cluster %s, which is %s, still holds %s on node %s, which is down", e.record.Name, e.record.Phase, a.ID, a.Node)
				}
			}
		}
	})
}

// checkSilence checks that a node that can't answer is down for the leader as soon as the death timer has run out.
func (w *world) checkSilence() {
	s := w.store.leader()
	if s == nil {
		return
	}
	w.noteAnswers() // one may have connected just now
	for _, n := range w.nodes {
		silent := time.Since(later(n.answered, s.risen))
		if phase, _, _ := s.monitor.Node(n.record.Name); silent > lifecycle.DefaultDeathTimer+slack && phase != api.NodeDown {
			w.fail("death", "node %s could not answer for %s and is %s", n.record.Name, silent, phase)
		}
	}
}

// slack is how much longer than its deadline something may last until the leader has acted.
const slack = time.Second

// checkDeadlines checks that no phase outlives its timer, and that no assignment is cleaned for longer than it may be.
func (w *world) checkDeadlines() {
	s := w.store.leader()
	if s == nil || w.store.inDoubt() || time.Since(s.busyUntil()) < slack {
		return
	}
	busy := s.busyUntil()
	now, since, deadlines := s.now(), s.leadsSince(), lifecycle.DefaultDeadlines()
	w.read(func(m *mirror) {
		for _, name := range m.names() {
			e := m.clusters[name]
			r := e.record
			overdue := func(what string, from time.Time, bound time.Duration) {
				if lasted := now.Sub(later(since, from)); lasted > bound+slack {
					w.fail("deadline", "%s of cluster %s lasts for %s, its deadline is %s", what, name, lasted, bound)
				}
			}
			switch {
			case r == nil:
				// While a machine boots, what it will offer is not known yet, and a leader that stood still finds out only now who is silent.
				if still, last := m.booting(); !still {
					last = later(last, busy)
					overdue("the decision", later(e.intent.CreatedAt, now.Add(-time.Since(last))), lifecycle.DefaultDeathTimer+time.Second)
				}
				continue
			case r.ExpiredAt != nil && r.Phase != api.ClusterDeleting:
				overdue("the grace", *r.ExpiredAt, deadlines.Grace)
			case r.ExpiredAt != nil:
			case r.Phase == api.ClusterStarting:
				overdue("the start", r.ChangedAt, startOf(m.assignments(r), deadlines))
			case r.Phase == api.ClusterSaving && (r.GaveUp == nil || e.intent.SaveAskedAt == nil || !r.GaveUp.AskedAt.Equal(*e.intent.SaveAskedAt)):
				overdue("the save", r.ChangedAt, deadlines.Save)
			}
			if e.intent.DeleteRequestedAt != nil && r.Phase != api.ClusterDeleting {
				overdue("the wait for its deletion", *e.intent.DeleteRequestedAt, 0)
			}
			for _, a := range m.assignments(r) {
				if a.releasedAt != nil && !a.clean {
					overdue(fmt.Sprintf("the cleaning of %s", a.ID), *a.releasedAt, deadlines.Clean)
				}
			}
		}
	})
}

// booting reports whether a machine boots, and when a machine's phase changed last.
func (m *mirror) booting() (still bool, last time.Time) {
	for _, seen := range m.machines {
		still, last = still || seen.record.Phase == api.MachineBooting, later(last, seen.changed)
	}
	return still, last
}

// leadsSince is when the server began to lead, by its own clock.
func (s *server) leadsSince() time.Time { return s.now().Add(-time.Since(s.w.store.leaderSince())) }

// revision is that of the newest commit.
func (s *witness) revision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mirror.revision
}
