package sim

import (
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// scheduleUsers lets users create clusters one after the other and delete each some time later. After the last it becomes calm: all
// is deleted, all machines come back, and nothing goes wrong any more.
func (w *world) scheduleUsers() {
	t := time.Duration(0)
	for i := range w.cfg.Lives {
		if i == w.cfg.Lives*2/3 {
			// From here on leaders live long enough to see deadlines pass: each new one starts them anew.
			w.after(t, func() { w.steady = true })
		}
		if i < w.cfg.Lives*2/3 {
			t += w.between(0, 20*time.Second)
		} else {
			t += w.between(0, 3*time.Minute)
		}
		w.after(t, w.create)
	}
	rest := w.between(time.Second, 5*time.Minute)
	if w.random.IntN(4) == 0 {
		rest += 2 * lifecycle.DefaultDeadlines().Clean // long enough for what can't be cleaned to be quarantined
	}
	w.after(t+rest, w.becomeCalm)
}

func (w *world) create() {
	w.ids++
	name := fmt.Sprintf("c%d", w.ids)
	if w.chance(4) {
		// Some names are used again and again; a name that is taken is refused.
		name = fmt.Sprintf("again%d", w.random.IntN(3))
	}
	if w.store.intents[name] != nil {
		return
	}
	in := &api.ClusterIntent{Name: name, UID: fmt.Sprintf("u%d", w.ids), CreatedAt: w.now}
	for g := range 1 + w.random.IntN(2) {
		in.Spec.Groups = append(in.Spec.Groups, api.Group{
			Name: fmt.Sprintf("%s-%d", name, g), Size: 1 + w.random.IntN(4),
			Shape: api.Shape{Cores: 1 + w.random.IntN(3), Memory: api.Bytes(w.random.IntN(3)) << 29},
			Stack: api.StackContainer, Environment: "local",
		})
	}
	w.stats.Lives++
	w.stats.Transitions[transitionName("cluster", "", api.ClusterPending)]++
	w.trace("create %s (%s)", name, in.UID)
	w.store.intents[name] = in
	w.store.revision++
	w.wakeLeader()
	// Most live for a while; some are deleted before they are up.
	life := w.between(10*time.Second, 4*time.Minute)
	if w.chance(4) {
		life = w.between(0, 3*time.Second)
	}
	w.after(life, func() { w.delete(in) })
}

func (w *world) delete(in *api.ClusterIntent) {
	if w.store.intents[in.Name] != in || in.DeleteRequestedAt != nil {
		return
	}
	w.trace("delete %s", in.Name)
	at := w.now
	changed := *in
	changed.DeleteRequestedAt = &at
	w.store.intents[in.Name] = &changed
	w.store.revision++
	w.wakeLeader()
}

func (w *world) wakeLeader() {
	if w.leader != nil {
		w.leader.wake(0)
	}
}

// becomeCalm ends all faults.
func (w *world) becomeCalm() {
	w.trace("calm")
	w.calm = true
	for _, name := range w.store.names() {
		if in := w.store.intents[name]; in != nil {
			w.delete(in)
		}
	}
	for _, n := range w.nodes {
		if !n.silentSince.IsZero() {
			n.silentSince = time.Time{}
			n.disconnect()
		}
		n.up, n.sick = true, false
		n.startAgent()
	}
	w.wakeLeader()
}

// scheduleFaults lets one thing after the other go wrong until it is calm.
func (w *world) scheduleFaults() {
	w.after(w.between(time.Second, 40*time.Second), func() {
		if w.calm {
			return
		}
		w.fault()
		w.scheduleFaults()
	})
}

func (w *world) fault() {
	n := w.nodes[w.random.IntN(len(w.nodes))]
	switch w.random.IntN(8) {
	case 0:
		n.stopAgent()
		w.after(w.between(100*time.Millisecond, 30*time.Second), n.startAgent)
	case 1:
		n.fail()
	case 2:
		n.disconnect()
	case 3:
		n.fallSilent()
	case 4:
		if w.leader != nil && !w.steady {
			w.leader.crash()
		}
	case 5:
		if !w.steady {
			w.usurp()
		}
	case 6:
		n.fallSick()
	case 7:
		n.reinstall()
	}
}

// fail lets a machine lose its power, and come back much later.
func (n *node) fail() {
	if !n.up {
		return
	}
	n.w.trace("%s fails", n.record.Name)
	n.stopAgent()
	n.up = false
	n.boots++
	for _, h := range n.host {
		// Nothing runs any more, but files are left on its disk.
		h.state = lifecycle.HostPrepared
	}
	away := n.w.between(time.Second, time.Minute)
	if n.w.chance(3) {
		away = n.w.between(time.Minute, 30*time.Minute)
	}
	n.w.after(away, func() {
		n.up = true
		n.startAgent()
	})
}

// fallSick lets everything fail that drivers do on the node, for a while.
func (n *node) fallSick() {
	n.w.trace("%s falls sick", n.record.Name)
	n.sick = true
	n.w.after(n.w.between(10*time.Second, 15*time.Minute), func() { n.sick = false })
}

// reinstall lets a machine come back without anything that was on it.
func (n *node) reinstall() {
	if n.up {
		n.fail()
		clear(n.host)
	}
}

// fallSilent lets an agent hang with its connection open, and break it at last.
func (n *node) fallSilent() {
	if n.conn == nil || !n.silentSince.IsZero() {
		return
	}
	n.w.trace("%s falls silent", n.record.Name)
	n.silentSince = n.w.now
	n.conn.l.wake(0)
	c := n.conn
	n.w.after(n.w.between(time.Second, 20*time.Second), func() {
		if n.conn == c {
			n.disconnect()
		}
	})
}

// usurp elects another leader while the old one goes on, believing that it leads: what it still decides must not become true.
func (w *world) usurp() {
	old := w.leader
	if old == nil {
		return
	}
	w.trace("leader of term %d is deposed and does not notice", old.term)
	for _, n := range w.nodes {
		n.disconnect()
	}
	w.elect()
	for range 3 {
		w.after(w.between(0, 5*time.Second), old.pass)
	}
}
