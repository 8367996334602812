package sim

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// scheduleFaults lets one thing after the other go wrong until it is calm.
func (w *world) scheduleFaults() {
	w.after(span(w.faultRandom, time.Second, 40*time.Second), func() {
		if w.isCalm() {
			return
		}
		w.fault()
		w.scheduleFaults()
	})
}

// fault lets one thing go wrong. Everything is drawn before it is known whether it may happen, so that the rest stays as it is.
func (w *world) fault() {
	r := w.faultRandom
	kind := AgentRestart + Kind(r.IntN(int(kinds-AgentRestart)))
	n := w.nodes[r.IntN((mostNodes+mostBoxes)*16)%len(w.nodes)]
	short, long := span(r, 100*time.Millisecond, 30*time.Second), span(r, time.Minute, 30*time.Minute)
	one, rare, which := r.IntN(2) == 0, r.IntN(3) == 0, r.IntN(7*mostBoxes)
	where := r.IntN(64)
	if !w.cfg.Kinds.Has(kind) {
		return
	}
	away := short
	if rare {
		away = long
	}
	if kind >= BMC {
		w.machineFault(kind, which, short, away)
		return
	}
	w.checks.disturbed.Add(1)
	w.happened(kind.String())
	switch kind {
	case LeaderCrash, Usurp, Deposed:
		w.leaderFault(kind, n, short, one)
	case Fabric:
		w.fabric.fault(where%4, where/4, away)
	case Stall:
		w.up().stall(short)
	case Cut:
		n.cut(true, true, min(away, 5*time.Minute))
	case CutOneWay:
		n.cut(one, !one, min(away, 5*time.Minute))
	default:
		w.nodeFault(kind, n, short, away)
	}
}

// nodeFault is what goes wrong with a node.
func (w *world) nodeFault(kind Kind, n *node, short, away time.Duration) {
	switch kind {
	case AgentRestart:
		n.stopAgent()
		w.after(short, n.startAgent)
	case AgentSleep:
		n.sleep(short)
	case Power, Reinstall:
		switch {
		case n.box != nil:
			n.box.press(api.PowerOff)
		case n.up && kind == Power:
			w.trace("%s loses its power", n.record.Name)
			n.loseMemory()
			n.boot(away)
		case n.up:
			w.trace("%s is reinstalled", n.record.Name)
			n.loseMemory()
			n.loseDisk()
			n.boot(longestUnaware + away)
		}
	case Sick:
		n.fallSick(away / 2)
	case Reset:
		if n.link != nil {
			w.trace("the stream of %s is reset", n.record.Name)
			n.link.reset()
		}
	}
}

// leaderFault is what goes wrong with a leader. Towards the end of a run leaders live long enough to see deadlines pass.
func (w *world) leaderFault(kind Kind, n *node, short time.Duration, one bool) {
	s := w.up()
	if s == nil || w.steady {
		return
	}
	switch kind {
	case LeaderCrash:
		s.silent.Store(one)
		w.crash(s, short)
	case Usurp:
		w.usurp()
		if one {
			w.fallBack(n, s, time.Second+short/15)
		}
	case Deposed:
		w.trace("the leadership is lost")
		w.store.Depose()
	}
}

// fallBack lets a node's agent hear the new leader, and then start anew and find the old one, which does not know yet that it is deposed: its
// next agent has nothing but the disk to tell the two apart.
func (w *world) fallBack(n *node, old *server, after time.Duration) {
	n.prefers = w.up()
	if n.link != nil {
		n.link.reset()
	}
	w.after(after+time.Second, func() {
		n.stopAgent()
		n.prefers = old
		n.startAgent()
		w.after(5*time.Second, func() { n.prefers = nil })
	})
}

// machineFault is what goes wrong with a machine.
func (w *world) machineFault(kind Kind, which int, short, away time.Duration) {
	if len(w.boxes) == 0 {
		return
	}
	b := w.boxes[which%len(w.boxes)]
	w.happened(kind.String())
	w.checks.disturbed.Add(1)
	switch kind {
	case Button:
		switch which / mostBoxes % 3 {
		case 0:
			b.press(api.PowerOff)
		case 1:
			b.press(api.PowerOn)
		default:
			b.press(api.PowerOff)
			b.press(api.PowerOn)
		}
	case Cable:
		b.unplug(min(away, 6*time.Minute))
	case Hang:
		b.mu.Lock()
		b.hangs = true
		b.mu.Unlock()
	case BMC:
		w.ail(b, which/mostBoxes, min(5*time.Second+away, 6*time.Minute))
	}
}

// becomeCalm ends all faults.
func (w *world) becomeCalm() {
	if w.isCalm() {
		return
	}
	w.trace("calm")
	w.mu.Lock()
	w.calm = true
	w.mu.Unlock()
	for _, n := range w.nodes {
		n.sick = false
		n.mend()
		n.slow, n.frail = time.Time{}, time.Time{}
		if n.agent != nil {
			n.agent.awake()
			n.agent.hangs = time.Time{}
			n.agent.wake(0)
		}
		if n.box == nil {
			n.up = true
		}
		n.startAgent()
	}
	for _, b := range w.boxes {
		b.mend()
	}
	w.fabric.mend()
	if w.up() == nil {
		w.restart()
	}
	w.undrainAll()
	w.limitAtLast()
	w.careForMachines()
	w.awaitRest(time.Now())
}

// awaitRest waits until nothing has been committed for long, or as long as a site may take to come to rest.
func (w *world) awaitRest(since time.Time) {
	if time.Since(w.store.lastCommit()) >= restful || time.Since(since) >= w.settling() {
		w.endAll()
		return
	}
	w.after(time.Minute, func() { w.awaitRest(since) })
}

// restful is how long nothing is committed when nothing is waited for any more: longer than the deadlines that pass in silence, those of a
// boot and of a cleaning.
const restful = 16 * time.Minute

// await goes on as soon as something is so, or when it should have been so.
func (w *world) await(within time.Duration, is func() bool, then func()) {
	w.after(10*time.Second, func() {
		if within -= 10 * time.Second; within > 0 && !is() {
			w.await(within, is, then)
			return
		}
		then()
	})
}

// settling is how long a site may take to come to rest when nothing goes wrong any more: the longest pauses between attempts, the clean
// deadline, a start that is tried again.
const settling = 25 * time.Minute

// A boot that is tried twice and a stop, each to its deadline.
const settlingMachines = 45 * time.Minute

func (w *world) settling() time.Duration {
	if len(w.boxes) > 0 {
		return settlingMachines
	}
	return settling
}

// endAll deletes every cluster, after a look at where everything has come to rest, and another one once addresses have changed.
func (w *world) endAll() {
	w.checkRest()
	w.checkReachAtRest()
	w.addressesAtRest(w.deleteAll)
}

// deleteAll deletes every cluster; addresses that lead to them stay.
func (w *world) deleteAll() {
	w.submitMany()
	w.trace("everything is deleted")
	w.over = true
	for _, in := range w.intents() {
		w.delete(in.Name, in.UID)
	}
	w.endNetworks()
	w.await(settling, w.nothingHeld, func() {
		w.checkFloatingAtRest()
		w.endAddresses()
		w.await(settling, w.noneIsRemoved, w.hadAll)
	})
}

// nothingHeld reports whether every cluster is gone, and everything it had.
func (w *world) nothingHeld() (nothing bool) {
	w.read(func(m *mirror) {
		nothing = len(m.clusters)+len(m.chunks)+len(m.quarantines)+len(m.networks)+len(m.volumes) == 0
	})
	for _, n := range w.nodes {
		nothing = nothing && len(n.host)+len(n.networks) == 0
	}
	return nothing
}

// noneIsRemoved reports whether every machine that was to be removed is: some waited until they were free.
func (w *world) noneIsRemoved() bool {
	for m := range w.up().cache.View().Machines() {
		if m.Intent.RemoveRequestedAt != nil {
			return false
		}
	}
	return true
}

// hadAll lets every machine show that it can be had: on, off, and out of the site.
func (w *world) hadAll() {
	if len(w.boxes) == 0 {
		w.growOld()
		return
	}
	w.checkNoTenants()
	if !w.noneIsRemoved() {
		w.fail("machines", "a machine that was to be removed is still there")
	}
	w.enrolAll()
	w.releaseAll()
	w.after(time.Minute, func() {
		w.all(api.PowerActionOn, environments[1])
		w.await(settlingMachines, w.allIn(api.MachineReady), func() {
			w.checkAllReady()
			w.all(api.PowerActionOff, "")
			w.await(15*time.Minute, w.allIn(api.MachineOff), func() {
				w.checkAllOff()
				w.removeAll()
				w.await(15*time.Minute, w.allIn(""), func() {
					w.checkAllRemoved()
					w.growOld()
				})
			})
		})
	})
}

// allIn returns a test whether every machine is in a phase, "" for out of the site, and nothing is asked of it any more.
func (w *world) allIn(phase api.MachinePhase) func() bool {
	return func() bool {
		for _, b := range w.boxes {
			r, _ := w.store.machine(b.name)
			other := phase == api.MachineReady && r.Phase == phase && r.Boot.Environment != environments[1]
			if m := w.up().cache.View().Machine(b.name); r.Phase != phase || other || m != nil && m.PowerPending() != nil {
				return false
			}
		}
		return true
	}
}

// done reports whether the run is at its end.
func (w *world) done() bool { return w.ended }
