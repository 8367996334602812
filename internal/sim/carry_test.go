package sim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/situation"
)

// longestCarry is how long a state is on its way at most.
const longestCarry = 20 * time.Second

// carry is a saved member's state on its way from one node's agent to another's. The bytes pass through a server: when either agent, the server or
// the network fails, both ends fail, each when it notices.
type carry struct {
	s    *server
	from *agent
	to   *agent
	// given and taken end the carry on either side. Without an error the whole state has arrived.
	given, taken func(error)
}

// errBroken ends a carry halfway.
var errBroken = errors.New("the connection to the other node broke")

// fetch brings the saved state of a member here from another node, and then restores it as on its own node.
func (a *agent) fetch(id string, m *memberMemory, d wanted) {
	if other := a.members[d.from]; a.n.host[d.from] != nil || other != nil && other.busy {
		return // an earlier attempt left something, and is being cleaned
	}
	m.cleaned, m.ready, m.unhealthy, m.recovered = false, false, "", time.Time{}
	m.busy, m.fetches = true, d.from
	a.n.host[id] = d.prepared()
	a.n.w.touched()
	a.n.w.after(a.n.w.between(time.Millisecond, 100*time.Millisecond), func() {
		a.run(func() {
			if err := a.beginCarry(id, m, d); err != nil {
				a.fetched(id, m, d, err)
			}
		})
	})
}

// fetched ends the way of a state to this node.
func (a *agent) fetched(id string, m *memberMemory, d wanted, err error) {
	a.n.w.trace("%s: fetching %s for %s from %s: %v", a.n.record.Name, d.from, id, d.fromNode, err)
	if err == nil {
		a.n.w.happened("state carried")
		a.restoreHere(id, m, d)
		return
	}
	a.n.w.happened("state not carried")
	a.n.w.checks.disturbed.Add(1)
	m.busy, m.fetches = false, ""
	m.attempts = m.attempts.Fail(err.Error(), time.Now())
	a.wake(0)
}

// beginCarry asks the server for the state, and the server asks the node that has it.
func (a *agent) beginCarry(id string, m *memberMemory, d wanted) error {
	w, l := a.n.w, a.n.link
	if !a.n.reaches(l) {
		return errCut
	}
	from, err := situation.CarriedFor(l.s.cache.View(), agentstream.CarryRequest{Target: agentstream.TargetState, Successor: id, Node: a.n.record.Name})
	if err != nil {
		return err
	}
	n := w.node(from.Node)
	other := n.agent
	if other == nil || other.asleep || !n.reaches(n.link) || n.link.s != l.s || time.Now().Before(other.hangs) {
		return fmt.Errorf("node %s does not answer", from.Node)
	}
	state, err := other.giveState(from.ID)
	if err != nil {
		return err
	}
	arriving := &hostMember{state: lifecycle.HostPrepared, cluster: state.cluster, name: state.name, index: state.index, forNext: id}
	a.n.host[d.from] = arriving
	w.touched()
	c := &carry{s: l.s, from: other, to: a}
	c.given = func(error) {
		other.member(from.ID).busy = false
		other.wake(0)
	}
	c.taken = func(err error) {
		if err == nil {
			arriving.state, arriving.jobs, arriving.everIll = lifecycle.HostSaved, state.copyJobs(), state.everIll
			w.touched()
		}
		a.fetched(id, m, d, err)
	}
	w.carries = append(w.carries, c)
	w.after(w.between(10*time.Millisecond, longestCarry), func() { w.arrive(c) })
	return nil
}

// giveState begins to give what the agent's node has of a saved member, if the leader still wants it there.
func (a *agent) giveState(id string) (*hostMember, error) {
	d, wanted := a.desired[id]
	h := a.n.host[id]
	switch m := a.member(id); {
	case !wanted || d.Release:
		return nil, fmt.Errorf("node %s has no such member", a.n.record.Name)
	case m.busy:
		return nil, errors.New("the member is being worked on")
	case h == nil || h.state != lifecycle.HostSaved:
		return nil, fmt.Errorf("the member is not saved on node %s", a.n.record.Name)
	default:
		m.busy = true
		return h, nil
	}
}

// leftovers reports whether a copy of a member's state, fetched for its successor, is still on the agent's node.
func (a *agent) leftovers(next string) bool {
	for _, h := range a.n.host {
		if h.forNext == next {
			return true
		}
	}
	return false
}

// reaches reports whether the node's agent can talk to the server of a stream, and hear it.
func (n *node) reaches(l *link) bool {
	return l != nil && l.s.alive() && !n.cuts.up.Load() && !n.cuts.down.Load()
}

// arrive ends a carry whose time has come, unless it broke before.
func (w *world) arrive(c *carry) {
	switch {
	case !slices.Contains(w.carries, c):
	case !c.s.alive():
		w.breakOff(func(other *carry) bool { return other == c })
	case c.from.asleep || c.to.asleep: // the bytes wait
		w.after(time.Second, func() { w.arrive(c) })
	default:
		w.carries = slices.DeleteFunc(w.carries, func(other *carry) bool { return other == c })
		c.taken(nil)
		c.given(nil)
	}
}

// breakOff ends carries halfway. Each end notices by itself.
func (w *world) breakOff(which func(*carry) bool) {
	var broken []*carry
	for _, c := range w.carries {
		if which(c) {
			broken = append(broken, c)
		}
	}
	w.carries = slices.DeleteFunc(w.carries, which)
	for _, c := range broken {
		w.after(w.between(time.Millisecond, 10*time.Second), func() { c.from.run(func() { c.given(errBroken) }) })
		w.after(w.between(time.Millisecond, 10*time.Second), func() { c.to.run(func() { c.taken(errBroken) }) })
	}
}

// breakCarries ends what the node gives or takes halfway.
func (n *node) breakCarries() {
	n.w.breakOff(func(c *carry) bool { return c.from.n == n || c.to.n == n })
}

// prepared is what a node has of a member at first.
func (d wanted) prepared() *hostMember {
	return &hostMember{
		state: lifecycle.HostPrepared, cluster: d.cluster, name: d.name, index: d.index, files: d.files, part: d.part, jobs: map[string]*jobRun{},
	}
}

// copyJobs are the member's jobs as its saved memory has them: they are in no member until they go on.
func (h *hostMember) copyJobs() map[string]*jobRun {
	jobs := map[string]*jobRun{}
	for _, run := range slices.Sorted(maps.Keys(h.jobs)) {
		jobs[run] = &jobRun{JobObserved: h.jobs[run].JobObserved}
	}
	return jobs
}
