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

// longestCarry is how long a state or a running member is on its way at most.
const longestCarry = 20 * time.Second

// carry is a saved member's state, or a running member, on its way from one node's agent to another's. The bytes pass through a server: when either
// agent, the server or the network fails, both ends fail, each when it notices.
type carry struct {
	s        *server
	from, to *agent
	// member is the assignment that goes on, next the one it goes on as.
	member, next string
	live         bool
	stage        stage
	// given and taken end the carry on either side. Without an error all has arrived.
	given, taken func(error)
}

// stage is how far the carry of a running member is.
type stage int

const (
	// underway: the member runs on its old node.
	underway stage = iota
	// handedOver: it stands still there, and the word that gives it away is on its way.
	handedOver
	// arrived: it runs on its new node, and the old one has yet to hear of that.
	arrived
)

var (
	// errBroken ends a carry halfway.
	errBroken = errors.New("the connection to the other node broke")
	// errUnfit ends one whose member can't go on on the other node.
	errUnfit = errors.New("the memory does not fit this node")
)

// fetch brings a member here from another node: its saved state, which is then restored as on its own node, or the member itself.
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
				a.notFetched(id, m, d, err)
			}
		})
	})
}

// notFetched ends the way of a member to this node. A move that broke off is not tried again by itself.
func (a *agent) notFetched(id string, m *memberMemory, d wanted, err error) {
	a.n.w.trace("%s: %s is not fetched for %s from %s: %v", a.n.record.Name, d.from, id, d.fromNode, err)
	a.n.w.happened("member not carried")
	a.n.w.checks.disturbed.Add(1)
	m.busy, m.fetches = false, ""
	if errors.Is(err, agentstream.ErrOver) {
		m.attempts = m.attempts.GiveUp(err.Error(), time.Now())
	} else {
		m.attempts = m.attempts.Fail(err.Error(), time.Now())
	}
	a.wake(0)
}

// beginCarry asks the server for a member, and the server asks the node that has it.
func (a *agent) beginCarry(id string, m *memberMemory, d wanted) error {
	w, l := a.n.w, a.n.link
	if !a.n.reaches(l) {
		return errCut
	}
	request := agentstream.CarryRequest{Target: agentstream.TargetState, Successor: id, Node: a.n.record.Name}
	if d.live {
		request.Target = agentstream.TargetMove
	}
	from, err := situation.CarriedFor(l.s.cache.View(), request)
	if err != nil {
		return err
	}
	n := w.node(from.Node)
	other := n.agent
	if other == nil || other.asleep || !n.reaches(n.link) || n.link.s != l.s || time.Now().Before(other.hangs) {
		return fmt.Errorf("node %s does not answer", from.Node)
	}
	h, err := other.give(from.ID, request)
	if err != nil {
		return err
	}
	c := &carry{s: l.s, from: other, to: a, member: from.ID, next: id, live: d.live}
	if d.live {
		a.receive(c, h, m, d)
	} else {
		a.takeState(c, h, m, d)
	}
	w.carries = append(w.carries, c)
	takes := w.between(10*time.Millisecond, longestCarry)
	w.disturbCarry(c, takes)
	w.after(takes, func() { w.arrive(c) })
	return nil
}

// give begins to give what the agent's node has of a member, if the leader still wants that.
func (a *agent) give(id string, r agentstream.CarryRequest) (*hostMember, error) {
	d, wanted := a.desired[id]
	h, m, name := a.n.host[id], a.member(id), a.n.record.Name
	switch live := r.Target == agentstream.TargetMove; {
	case !wanted || d.Release:
		return nil, fmt.Errorf("node %s has no such member", name)
	case h != nil && (h.state == lifecycle.HostHandedOver || h.departed && !h.runs()) && !m.busy:
		return nil, fmt.Errorf("%w: the member has been sent already", agentstream.ErrOver)
	case m.busy:
		return nil, errors.New("the member is being worked on")
	case live && d.moveTo != r.Successor:
		return nil, fmt.Errorf("node %s has no order to move the member to %s", name, r.Successor)
	case h == nil || live && h.state != lifecycle.HostRunning || !live && h.state != lifecycle.HostSaved:
		return nil, fmt.Errorf("node %s does not have the member so that it could give it", name)
	default:
		m.busy = true
		h.departed = h.departed || live
		return h, nil
	}
}

// takeState takes in a saved member's state, and restores it.
func (a *agent) takeState(c *carry, state *hostMember, m *memberMemory, d wanted) {
	arriving := &hostMember{state: lifecycle.HostPrepared, cluster: state.cluster, name: state.name, addresses: state.addresses, machine: state.machine, forNext: c.next}
	a.n.host[c.member] = arriving
	a.n.w.touched()
	c.given = func(error) { c.from.freed(c.member) }
	c.taken = func(err error) {
		if err != nil {
			a.notFetched(c.next, m, d, err)
			return
		}
		arriving.state, arriving.jobs, arriving.everIll, arriving.life = lifecycle.HostSaved, state.copyJobs(), state.everIll, state.life
		a.n.w.touched()
		a.n.w.happened("state carried")
		a.restoreHere(c.next, m, d)
	}
}

// freed ends what the agent does for a member.
func (a *agent) freed(id string) {
	a.member(id).busy = false
	a.n.w.touched()
	a.wake(0)
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

// arrive takes a carry on whose time has come, unless it broke before.
func (w *world) arrive(c *carry) {
	is := func(other *carry) bool { return other == c }
	switch {
	case !slices.Contains(w.carries, c):
	case !c.s.alive():
		w.breakOff(is)
	case c.from.asleep || c.to.asleep: // the bytes wait
		w.after(time.Second, func() { w.arrive(c) })
	case c.live && c.stage == underway:
		w.handOver(c)
	case c.live && c.stage == handedOver:
		c.stage = arrived
		c.taken(nil)
		w.after(w.between(time.Millisecond, 200*time.Millisecond), func() { w.arrive(c) })
	default:
		w.carries = slices.DeleteFunc(w.carries, is)
		if !c.live {
			c.taken(nil)
		}
		c.given(nil)
	}
}

// breakOff ends carries halfway. Each end notices by itself. A word that gives a member away may arrive all the same.
func (w *world) breakOff(which func(*carry) bool) {
	var broken []*carry
	for _, c := range w.carries {
		if which(c) {
			broken = append(broken, c)
		}
	}
	w.carries = slices.DeleteFunc(w.carries, which)
	for _, c := range broken {
		arrives := w.random.IntN(2) == 0
		w.after(w.between(time.Millisecond, 10*time.Second), func() { c.from.run(func() { c.given(errBroken) }) })
		w.after(w.between(time.Millisecond, 10*time.Second), func() {
			c.to.run(func() {
				switch {
				case c.stage == arrived:
				case c.stage == handedOver && arrives:
					c.taken(nil)
				default:
					c.taken(errBroken)
				}
			})
		})
	}
}

// breakCarries ends what the node gives or takes halfway.
func (n *node) breakCarries() {
	n.w.breakOff(func(c *carry) bool { return c.from.n == n || c.to.n == n })
}

// reconsider ends carries that the leader no longer wants.
func (a *agent) reconsider() {
	a.n.w.breakOff(func(c *carry) bool {
		from, given := a.desired[c.member]
		to, taken := a.desired[c.next]
		given, taken = given && !from.Release && (!c.live || from.moveTo == c.next), taken && !to.Release
		return c.from == a && !given || c.to == a && !taken
	})
}

// prepared is what a node has of a member at first.
func (d wanted) prepared() *hostMember {
	return &hostMember{
		state: lifecycle.HostPrepared, cluster: d.cluster, name: d.name, addresses: d.addresses, files: d.files, part: d.part, machine: d.machine,
		jobs: map[string]*jobRun{}, size: d.size, slots: d.slots, functions: d.functions, volumes: mountable(d.volumes), volumesNumber: d.volumesNumber, layers: d.layers, layersNumber: d.layersNumber,
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
