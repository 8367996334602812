package sim

import (
	"time"

	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// runs tells whether the member is alive on the host, frozen or not.
func (h *hostMember) runs() bool {
	return h.state == lifecycle.HostRunning || h.state == lifecycle.HostPaused
}

// hearReady lets the member's own agent say, after a while, that the member can be reached.
func (a *agent) hearReady(id string, h *hostMember) {
	if a.n.w.drawnFor(id+" is mute", 100) == 0 && a.n.w.may(StartFails) {
		return
	}
	a.n.w.after(a.n.w.between(10*time.Millisecond, 2*time.Second), func() {
		a.run(func() {
			if a.n.host[id] == h && h.runs() {
				m := a.member(id)
				m.ready = true
				if h.ill {
					m.unhealthy = illness
				}
				a.wake(0)
			}
		})
	})
}

const illness = `check "works" failed 3 times: exit code 1`

// hearHealth lets the node's agent, if there is one, hear how the member is.
func (n *node) hearHealth(id string, h *hostMember) {
	n.w.after(n.w.between(10*time.Millisecond, 5*time.Second), func() {
		a := n.agent
		if a == nil {
			return
		}
		a.run(func() {
			m := a.member(id)
			if n.host[id] != h || h.state != lifecycle.HostRunning || !m.ready {
				return
			}
			m.unhealthy = ""
			if h.ill {
				m.unhealthy = illness
			}
			a.wake(0)
		})
	})
}

// endSomeDay lets some members end by themselves.
func (n *node) endSomeDay(id string, h *hostMember) {
	w := n.w
	when := w.between(time.Second, 2*time.Minute)
	if !w.chance(MemberEnds, 8) {
		return
	}
	n.endAfter(when, id, h)
}

// endAfter lets a member end by itself after a while.
func (n *node) endAfter(when time.Duration, id string, h *hostMember) {
	w := n.w
	w.after(when, func() {
		if n.host[id] != h || !h.runs() || w.isCalm() {
			return
		}
		w.trace("%s: %s ends by itself", n.record.Name, id)
		h.state, h.message = lifecycle.HostExited, "ended by signal 9"
		h.endJobs()
		w.touched()
		a := n.agent
		if a == nil {
			return
		}
		a.run(func() {
			a.member(id).ready = false
			a.wake(0)
		})
	})
}

// beFrail lets a member that has just started end or fall ill at once: some nodes are frail for a while, and what some clusters start ends
// the first time wherever it is, so that they fail.
func (n *node) beFrail(id string, h *hostMember) {
	w := n.w
	soon := span(w.blindRandom, 10*time.Millisecond, 500*time.Millisecond)
	frail := time.Now().Before(n.frail)
	switch hopeless := h.first && w.drawnFor(h.cluster+" is hopeless", 15) == 0; {
	case (hopeless || frail && n.dies) && w.may(MemberEnds):
		n.endAfter(soon, id, h)
	case frail && w.may(MemberIll):
		h.ill, h.everIll = true, true
	}
}

// fallIllSomeDay lets the checks of some members fail, for a while or for good.
func (n *node) fallIllSomeDay(id string, h *hostMember) {
	w := n.w
	when, lasts := w.between(time.Second, 2*time.Minute), w.between(time.Second, 40*time.Second)
	if !w.chance(MemberIll, 8) {
		return
	}
	set := func(ill bool) func() {
		return func() {
			if n.host[id] == h && h.runs() && h.ill != ill && !(ill && w.isCalm()) {
				w.trace("%s: %s is ill: %t", n.record.Name, id, ill)
				h.ill, h.everIll = ill, true
				n.hearHealth(id, h)
			}
		}
	}
	w.after(when, set(true))
	w.after(when+lasts, set(false))
}
