package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
)

// isMobile reports whether the site has much room, and users who move members all the time.
func (w *world) isMobile() bool { return w.cfg.Seed%4 == 3 && w.cfg.Kinds.Has(Move) }

// drawMachine makes members of a group virtual machines, which can move. What others draw stays as it is.
func (w *world) drawMachine(g *api.Group) {
	machine := w.moveRandom.IntN(2) == 0 || w.isMobile()
	if !machine || !w.cfg.Kinds.Has(Move) || g.Stack != api.StackContainer {
		return
	}
	g.Stack = api.StackVM
	if w.isMobile() {
		g.Size, g.Cores, g.Memory, g.Devices = min(g.Size, 2), 1, 0, nil
	}
}

// scheduleMoves lets the user of a cluster move members of it.
func (w *world) scheduleMoves(name, uid string, lasts time.Duration) {
	r := w.moveRandom
	count := r.IntN(4)
	if w.isMobile() {
		count *= 4
	}
	for range count {
		at, m := span(r, 0, min(lasts, 5*time.Minute)), moveRequest{
			to: r.IntN(3 * mostNodes), offline: r.IntN(3) == 0, member: r.IntN(8),
		}
		w.after(at, func() {
			if !w.isCalm() && w.cfg.Kinds.Has(Move) {
				w.move(name, uid, m)
			}
		})
	}
}

// moveRequest is what a user asks for: to is the number of a node, or beyond the nodes for any; member is one's number, or beyond the members for
// all.
type moveRequest struct {
	to, member int
	offline    bool
}

// move is what the API does with a request to move members, but for its look at the room: moves without room are asked for, too.
func (w *world) move(name, uid string, m moveRequest) {
	s := w.up()
	if s == nil {
		return
	}
	c := s.cluster(name, uid)
	if c == nil || !migratable(c) || resizing(c) {
		return
	}
	asked := &api.MoveIntent{AskedAt: s.now(), Offline: m.offline}
	if m.to < len(w.nodes) {
		asked.To = w.nodes[m.to].record.Name
	}
	var movers []string
	for a := range c.Held() {
		if a.IsMember() && lifecycle.Movable(c.Intent.Spec, a, m.offline) == "" && a.Node != asked.To {
			movers = append(movers, a.ID)
		}
	}
	slices.Sort(movers)
	if m.member < len(movers) {
		movers = movers[m.member : m.member+1]
	}
	if len(movers) == 0 {
		return
	}
	asked.Members = movers
	changed := c.Intent
	changed.Move = asked
	w.happened(Move.String())
	w.checks.disturbed.Add(1)
	w.trace("move %v of %s to %q, offline %t", movers, name, asked.To, asked.Offline)
	w.put(s, name, uid, changed)
}

// migratable reports whether the API takes a move.
func migratable(c *state.Cluster) bool {
	r := c.Record
	return r != nil && r.ExpiredAt == nil && !lifecycle.WantsSaved(&c.Intent, r) && !c.Intent.Paused && (r.Phase == api.ClusterReady || r.Phase == api.ClusterDegraded) &&
		len(openMoves(c)) == 0
}

// openMoves are the members whose move was asked for and has not ended.
func openMoves(c *state.Cluster) []string {
	asked := c.Intent.Move
	if asked == nil || c.Record == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(asked.Members), func(id string) bool {
		ended := slices.ContainsFunc(c.Record.Moves, func(r api.MoveRecord) bool { return r.Assignment == id && r.AskedAt.Equal(asked.AskedAt) })
		there := false
		for a := range c.Held() {
			there = there || a.ID == id
		}
		return ended || !there
	})
}

// receive takes in a member that runs on another node, as two drivers have it: the giver writes that it gives the member away, and says so; the
// taker runs it once it has heard that, and answers.
func (a *agent) receive(c *carry, given *hostMember, m *memberMemory, d wanted) {
	w := a.n.w
	h := a.n.host[c.next]
	c.given = func(err error) {
		switch {
		case err == nil:
			given.state, given.jobs = lifecycle.HostPrepared, map[string]*jobRun{}
			c.from.member(c.member).ready = false
		case c.stage == underway:
			given.departed = false
		default:
			w.happened("move undecided")
		}
		w.trace("%s: the move of %s to %s ends: %v", c.from.n.record.Name, c.member, c.next, err)
		c.from.freed(c.member)
	}
	c.taken = func(err error) {
		if err != nil {
			a.notFetched(c.next, m, d, fmt.Errorf("%w: %w", agentstream.ErrOver, err))
			return
		}
		w.trace("%s: %s goes on as %s", a.n.record.Name, c.member, c.next)
		if len(h.functions) > 0 {
			w.happened("moved to another function")
		}
		h.state, h.since, h.life, h.everIll = lifecycle.HostRunning, time.Now(), given.life, given.everIll
		h.jobs = given.copyJobs() // what stands still has them in memory too, in case that it is taken back
		h.takeJobs(a.n)
		w.checks.inherit(c.member, c.next, h)
		m.busy, m.fetches, m.neverRan = false, "", false
		m.moved = &driver.MoveReport{Bytes: 1}
		w.touched()
		a.n.endSomeDay(c.next, h)
		a.hearReady(c.next, h)
		a.wake(0)
	}
}

// handOver lets a running member stand still on its old node, when all of its memory is on the new one.
func (w *world) handOver(c *carry) {
	h := c.from.n.host[c.member]
	refused := w.chance(StartFails, 8)
	if h == nil || h.state != lifecycle.HostRunning || refused {
		w.carries = slices.DeleteFunc(w.carries, func(other *carry) bool { return other == c })
		c.taken(errUnfit)
		c.given(errUnfit)
		return
	}
	h.state, c.stage = lifecycle.HostHandedOver, handedOver
	w.touched()
	w.after(w.between(time.Millisecond, 200*time.Millisecond), func() { w.arrive(c) })
}

// takeBack lets a member go on that was handed over in vain.
func (a *agent) takeBack(id string, m *memberMemory) {
	a.drive(id, m, FreezeFails, "take back", time.Second, func(h *hostMember) {
		if h.state != lifecycle.HostHandedOver {
			return
		}
		h.state, h.departed = lifecycle.HostRunning, false
		a.n.w.happened("member taken back")
		a.hearReady(id, h)
	})
}

// inherit notes that a member goes on as another one, with the jobs that ran in it.
func (c *checks) inherit(from, next string, h *hostMember) {
	for run, first := range c.runs {
		if first == from && h.jobs[run] != nil {
			c.runs[run] = next
		}
	}
	c.ran[next] = true
}

// disturbCarry may let something go wrong while a member is on its way: often just when it is handed over.
func (w *world) disturbCarry(c *carry, takes time.Duration) {
	r := w.moveRandom
	at, what, which, away := span(r, 0, takes), r.IntN(8), r.IntN(2) == 0, span(r, 100*time.Millisecond, 90*time.Second)
	if late := span(r, 0, 400*time.Millisecond); r.IntN(2) == 0 {
		at = takes + late
	}
	if !w.chanceOf(r, Midway, 3) {
		return
	}
	w.after(at, func() {
		if w.isCalm() {
			return
		}
		n := c.from.n
		if which {
			n = c.to.n
		}
		w.checks.disturbed.Add(1)
		switch what {
		case 0, 1:
			n.stopAgent()
			w.after(away, n.startAgent)
		case 2:
			n.cut(true, true, away)
		case 3:
			n.cut(away%2 == 0, away%2 != 0, away)
		case 4, 5:
			if n.box == nil && n.up {
				w.trace("%s loses its power", n.record.Name)
				n.loseMemory()
				n.boot(away)
			}
		case 6:
			w.leaderFault([]Kind{LeaderCrash, Usurp, Deposed}[int(away)%3], n, min(away, 30*time.Second), which)
		default:
			w.breakOff(func(other *carry) bool { return other == c })
		}
	})
}

// checkLives checks that no member's memory runs twice: the one that it was saved or sent from, and the one that it goes on as.
func (w *world) checkLives() {
	runs := map[int]string{}
	for _, n := range w.nodes {
		if !n.box.carries(n.life) {
			continue
		}
		for id, h := range n.host {
			if !h.runs() || h.part || h.life == 0 {
				continue
			}
			if other, twice := runs[h.life]; twice {
				w.fail("twice", "the memory of one member runs as %s and as %s", min(other, id), max(other, id))
			}
			runs[h.life] = id
		}
	}
}

// checkMovesAtRest checks that every move that was asked for has ended, and that nothing of one is left.
func (w *world) checkMovesAtRest(site *situation.Site, c *state.Cluster) {
	if c.Record == nil || c.Record.Phase != api.ClusterReady {
		return
	}
	if open := openMoves(c); len(open) > 0 {
		w.fail("rest", "the moves of %v, asked for at %s, have not ended; its members are %s", open, c.Intent.Move.AskedAt, membersOf(site, c))
	}
	for a := range c.Held() {
		if h := w.node(a.Node).host[a.ID]; h != nil && h.state == lifecycle.HostHandedOver {
			w.fail("rest", "%s was handed over, and still stands still", a.ID)
		}
		if a.IsSuccessor() {
			w.fail("rest", "%s is still to succeed %s", a.ID, a.From)
		}
	}
}

// noteMoves counts how moves end, and checks that one that fails does not lose its member.
func (m *mirror) noteMoves(before, after *api.ClusterRecord) {
	had := map[string]held{}
	for _, h := range m.assignments(before) {
		had[h.ID] = h
	}
	for _, h := range m.assignments(after) {
		if old, there := had[h.ID]; there && old.releasedAt == nil && h.releasedAt != nil && h.IsSuccessor() && had[h.From].Assignment != nil {
			m.w.happened("successor withdrawn")
		}
	}
	if before == nil {
		return
	}
	for _, r := range after.Moves {
		if slices.ContainsFunc(before.Moves, func(o api.MoveRecord) bool { return o.Assignment == r.Assignment && o.AskedAt.Equal(r.AskedAt) }) {
			continue
		}
		if r.Failed == "" {
			m.w.happened("move done")
			continue
		}
		m.w.happened("move failed")
		if !slices.ContainsFunc(m.assignments(after), func(h held) bool { return h.ID == r.Assignment && h.releasedAt == nil }) {
			m.w.fail("moves", "the move of %s failed (%s), and the member is no longer held", r.Assignment, r.Failed)
		}
	}
}
