package sim

import (
	"context"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/state"
)

// takeNode ends what ran on it as a node; the lock is held.
func (b *box) takeNode() {
	was := b.life
	b.life++
	b.w.inbox.post(b.name, func() {
		if n := b.node; n.up && n.life == was {
			n.loseMemory()
			if n.record.InRAM {
				n.loseDisk()
			}
		}
	})
}

// unhear notes that what runs on the machine is not heard for a while.
func (b *box) unhear(d time.Duration) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.silentUntil = later(b.silentUntil, time.Now().Add(d))
}

// carries reports whether the machine still lives the life that a node's content is of.
func (b *box) carries(life int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.life == life
}

// setAgent notes whether its node agent is there.
func (b *box) setAgent(there bool) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.runs.agent = there && b.life == b.node.life
}

// nodeAgent starts the node agent of a boot.
func (t *talker) nodeAgent(ctx context.Context, generation int64, welcome boot.Welcome, finish func(after)) {
	t.mu.Lock()
	life := t.life
	t.mu.Unlock()
	t.w.inbox.post(t.name, func() {
		n := t.node
		if ctx.Err() != nil || !t.carries(life) {
			return
		}
		n.life, n.up, n.identity, n.leaving = life, true, welcome.Agent.Certificate.Certificate, false
		n.record.BootGeneration, n.record.InRAM = generation, !t.disk || welcome.Purpose == api.BootMember
		if n.isMember = welcome.Purpose == api.BootMember; n.isMember {
			n.loseDisk() // what its disks hold, nobody looks for
		}
		t.finish = finish
		n.startAgent()
	})
	<-ctx.Done()
}

// mindPower powers the machine off when the leader orders it, after its members have had time to end.
func (a *agent) mindPower() {
	n := a.n
	if off := a.powerOff; off == nil || n.box == nil || off.BootGeneration != n.record.BootGeneration || a.leaving {
		return
	}
	a.leaving = true
	b, w := n.box, n.w
	if b.chance(Hang, 6) {
		w.happened("does not go off by itself")
		w.trace("%s hangs on its way off", b.name)
		b.mu.Lock()
		b.idle = true
		b.mu.Unlock()
		a.asleep = true
		if w.isCalm() {
			b.lookAfter()
		}
		return
	}
	w.after(b.between(time.Second, 15*time.Second), func() {
		a.run(func() {
			life, finish := n.life, b.finish
			n.leaving = true
			n.stopAgent()
			w.after(b.between(time.Second, 8*time.Second), func() {
				if b.carries(life) {
					finish(powerOff)
				}
			})
		})
	})
}

// known reports whether a server lets the node's agent in: the identity of a boot ends with it.
func (n *node) known(view *state.View) bool {
	if n.identity == "" {
		return true
	}
	stored := view.Node(n.record.Name)
	return stored != nil && stored.Identity != nil && stored.Identity.ID == n.identity
}
